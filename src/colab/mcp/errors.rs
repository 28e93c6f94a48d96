//! One error type for every surface on which the service may report one.
//!
//! [`Status`] is what callers see; `normalise` (beside this file) makes it from HTTP answers, JSON-RPC errors and failed tool
//! results. Invariants:
//!
//! * A status never holds a secret: what looks like a token is masked before it becomes a message.
//! * `origin` tells whether the call can have reached the service, `code` what the service (or we) made of it.

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

/// [`Status::reason`] of a server whose certificate was not accepted: trying again cannot help.
pub const REASON_CERTIFICATE: &str = "CERTIFICATE_NOT_ACCEPTED";

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

    /// The call was sent and its answer was lost: it may or may not have run.
    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, Origin::Transport, message)
    }

    /// Something came back that is not MCP.
    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, Origin::Protocol, message)
    }
}

/// Every code with its number (`google/rpc/code.proto`) and canonical name.
const CODES: [(Code, i64, &str); 16] = [
    (Code::Cancelled, 1, "CANCELLED"),
    (Code::Unknown, 2, "UNKNOWN"),
    (Code::InvalidArgument, 3, "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, 4, "DEADLINE_EXCEEDED"),
    (Code::NotFound, 5, "NOT_FOUND"),
    (Code::AlreadyExists, 6, "ALREADY_EXISTS"),
    (Code::PermissionDenied, 7, "PERMISSION_DENIED"),
    (Code::ResourceExhausted, 8, "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, 9, "FAILED_PRECONDITION"),
    (Code::Aborted, 10, "ABORTED"),
    (Code::OutOfRange, 11, "OUT_OF_RANGE"),
    (Code::Unimplemented, 12, "UNIMPLEMENTED"),
    (Code::Internal, 13, "INTERNAL"),
    (Code::Unavailable, 14, "UNAVAILABLE"),
    (Code::DataLoss, 15, "DATA_LOSS"),
    (Code::Unauthenticated, 16, "UNAUTHENTICATED"),
];

impl Code {
    /// The code of this number, 1 to 16.
    pub fn from_number(number: i64) -> Option<Self> {
        CODES
            .iter()
            .find(|(_, n, _)| *n == number)
            .map(|(code, ..)| *code)
    }

    /// The code of this canonical name, such as `NOT_FOUND`.
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "CANCELED" {
            return Some(Self::Cancelled);
        }
        CODES
            .iter()
            .find(|(.., canonical)| *canonical == name)
            .map(|(code, ..)| *code)
    }

    /// The code of this name in camel case, such as `NotFound`: the way that several gRPC libraries print it.
    pub(crate) fn from_camel(name: &str) -> Option<Self> {
        CODES
            .iter()
            .map(|(code, ..)| *code)
            .find(|code| format!("{code:?}") == name)
    }

    /// The canonical name, such as `NOT_FOUND`.
    pub fn name(self) -> &'static str {
        CODES
            .iter()
            .find(|(code, ..)| *code == self)
            .map_or("UNKNOWN", |(.., name)| name)
    }

    /// What an HTTP status means where the body does not say it better (the mapping of `google/rpc/code.proto`).
    pub fn from_http(status: u16) -> Self {
        match status {
            400 | 406 | 413 | 414 | 415 | 422 | 431 => Self::InvalidArgument,
            401 | 407 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 | 410 => Self::NotFound,
            405 | 501 => Self::Unimplemented,
            408 | 504 | 524 => Self::DeadlineExceeded,
            409 => Self::Aborted,
            416 => Self::OutOfRange,
            429 => Self::ResourceExhausted,
            499 => Self::Cancelled,
            500 => Self::Internal,
            502 | 503 | 520..=523 | 525..=530 => Self::Unavailable,
            402 | 411 | 412 | 417..=428 | 430 | 432..=498 => Self::FailedPrecondition,
            505..=599 => Self::Internal,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_number_and_by_both_names() {
        for (code, number, name) in CODES {
            assert_eq!(Code::from_number(number), Some(code));
            assert_eq!(Code::from_name(name), Some(code));
            assert_eq!(Code::from_camel(&format!("{code:?}")), Some(code));
            assert_eq!(code.name(), name);
        }
        assert_eq!(Code::from_number(0), None);
        assert_eq!(Code::from_number(17), None);
        assert_eq!(Code::from_name("NOT_A_CODE"), None);
    }

    #[test]
    fn http_statuses_map_to_the_documented_codes() {
        for (status, code) in [
            (400, Code::InvalidArgument),
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::NotFound),
            (409, Code::Aborted),
            (429, Code::ResourceExhausted),
            (499, Code::Cancelled),
            (500, Code::Internal),
            (503, Code::Unavailable),
            (504, Code::DeadlineExceeded),
        ] {
            assert_eq!(Code::from_http(status), code, "HTTP {status}");
        }
    }
}
