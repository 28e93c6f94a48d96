//! One error type for every surface on which the service may report one.

use std::collections::BTreeMap;
use std::time::Duration;

/// A `google.rpc.Status`, whatever form it came in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct Status {
    /// The canonical code.
    pub code: Code,
    /// Where in the exchange it arose.
    pub origin: Origin,
    /// The service's words (or ours, for local causes). Never contains a secret.
    pub message: String,
    /// `ErrorInfo.reason`
    pub reason: Option<String>,
    /// `ErrorInfo.metadata`
    pub metadata: BTreeMap<String, String>,
    /// `Retry-After` or `RetryInfo.retryDelay`
    pub retry_after: Option<Duration>,
}

/// `google.rpc.Code`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Code {
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

/// Where an error arose: it decides whether the call can have reached the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// No credentials, or they could not be refreshed: nothing was sent.
    Credentials,
    /// The connection could not be made: nothing was sent.
    Connect,
    /// The request was sent and no answer, or not a whole one, came back.
    Transport,
    /// The service answered with an error.
    Service,
    /// An answer came that is not MCP.
    Protocol,
}

impl Status {
    /// A status without details.
    pub fn new(code: Code, origin: Origin, message: impl Into<String>) -> Self {
        Self {
            code,
            origin,
            message: message.into(),
            reason: None,
            metadata: BTreeMap::new(),
            retry_after: None,
        }
    }
}
