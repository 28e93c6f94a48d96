//! Failures as Google's services report them, and the surfaces on which they may show.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

/// `ErrorInfo.domain` of every failure.
const DOMAIN: &str = "colaboratory.googleapis.com";

/// Why a call failed: a `google.rpc.Status` with its `ErrorInfo`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Failure {
    pub code: Code,
    pub message: String,
    pub reason: &'static str,
    pub metadata: Vec<(String, Value)>,
    pub retry_after: Option<Duration>,
}

/// `google.rpc.Code`, as far as the emulator uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    Cancelled,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    Internal,
    Unavailable,
}

impl Code {
    /// Number, name and HTTP status (google.rpc.Code and its HTTP mapping).
    pub fn parts(self) -> (u16, &'static str, u16) {
        match self {
            Self::Cancelled => (1, "CANCELLED", 499),
            Self::InvalidArgument => (3, "INVALID_ARGUMENT", 400),
            Self::DeadlineExceeded => (4, "DEADLINE_EXCEEDED", 504),
            Self::NotFound => (5, "NOT_FOUND", 404),
            Self::AlreadyExists => (6, "ALREADY_EXISTS", 409),
            Self::ResourceExhausted => (8, "RESOURCE_EXHAUSTED", 429),
            Self::FailedPrecondition => (9, "FAILED_PRECONDITION", 400),
            Self::Aborted => (10, "ABORTED", 409),
            Self::Internal => (13, "INTERNAL", 500),
            Self::Unavailable => (14, "UNAVAILABLE", 503),
        }
    }
}

impl Failure {
    /// A failure without metadata.
    pub fn new(code: Code, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            reason,
            metadata: Vec::new(),
            retry_after: None,
        }
    }

    /// An argument that breaks a documented rule.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, "INVALID_ARGUMENT", message)
    }

    /// A resource that is not there.
    pub fn not_found(name: &str) -> Self {
        Self::new(
            Code::NotFound,
            "RESOURCE_NOT_FOUND",
            format!("Resource '{name}' was not found"),
        )
        .with("resource", name)
    }

    /// Adds one entry of `ErrorInfo.metadata`.
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.metadata.push((key.to_owned(), value.into().into()));
        self
    }

    /// `details` of the status.
    pub fn details(&self) -> Value {
        let mut details = vec![json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": self.reason,
            "domain": DOMAIN,
            "metadata": self.metadata.iter().cloned().collect::<Map<_, _>>(),
        })];
        if let Some(after) = self.retry_after {
            details.push(json!({
                "@type": "type.googleapis.com/google.rpc.RetryInfo",
                "retryDelay": format!("{}s", after.as_secs_f64()),
            }));
        }
        details.into()
    }

    /// The body that Google's HTTP APIs send with an error status.
    pub fn http_body(&self) -> Value {
        let (_, name, http) = self.code.parts();
        json!({"error": {
            "code": http,
            "message": self.message,
            "status": name,
            "details": self.details(),
        }})
    }

    /// `google.rpc.Status` with its number.
    pub fn status(&self) -> Value {
        let (number, name, _) = self.code.parts();
        json!({
            "code": number,
            "message": self.message,
            "status": name,
            "details": self.details(),
        })
    }
}

/// Takes a lock that is never held across an await. A panic elsewhere does not make its data wrong.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
