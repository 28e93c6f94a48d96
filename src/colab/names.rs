//! From the service's errors to the names and sentences that the user sees.
//!
//! Every [`Status`] that ends a cell becomes a [`BackendError`] here and nowhere else: a name of DESIGN §5, what happened in the
//! service's own words, and a next step.

use super::mcp::errors::{Code, Origin, Status};
use super::retry;
use crate::backend::{BackendError, ErrorName};

/// What a failed call means for the code that it carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was sent.
    NotSent,
    /// The service refused for now; the code did not run.
    RateLimited,
    /// The code may run, may have run, or may never have begun.
    Unknown,
    /// The runtime is gone.
    NotFound,
    /// Trying again would change nothing.
    Final,
}

/// The machine-readable reasons that the service gives.
pub mod reason {
    /// The user has as many runtimes as allowed.
    pub const TOO_MANY: &str = "TOO_MANY_ACTIVE_RUNTIMES";
    /// The user's usage time is spent.
    pub const USAGE_TIME: &str = "QUOTA_EXCEEDED_USAGE_TIME";
    /// The user is barred.
    pub const DENYLISTED: &str = "DENYLISTED";
}

/// How a failed `execute_code` is to be taken, in the terms of the table of [`retry`].
pub fn verdict(status: &Status) -> Verdict {
    if has_reason(status, reason::USAGE_TIME) {
        return Verdict::Final;
    }
    match retry::verdict("execute_code", status) {
        retry::Verdict::Reattach { .. } if status.origin == Origin::Connect => Verdict::NotSent,
        retry::Verdict::Reattach { .. } => Verdict::Unknown,
        retry::Verdict::Retry { .. } if status.origin == Origin::Credentials => Verdict::NotSent,
        retry::Verdict::Retry { .. } => Verdict::RateLimited,
        retry::Verdict::GiveUp if status.code == Code::NotFound => Verdict::NotFound,
        retry::Verdict::GiveUp => Verdict::Final,
    }
}

/// Whether the service gave this reason, as `ErrorInfo` or in its words.
pub fn has_reason(status: &Status, reason: &str) -> bool {
    status.reason.as_deref() == Some(reason) || status.message.contains(reason)
}

/// The error that a final status is shown as.
pub fn named(status: &Status) -> BackendError {
    let said = said(status);
    if status.origin == Origin::Credentials || status.code == Code::Unauthenticated {
        return BackendError::new(ErrorName::ColabAuthRequired, auth_text(status, &said));
    }
    if [reason::TOO_MANY, reason::USAGE_TIME, reason::DENYLISTED]
        .iter()
        .any(|known| has_reason(status, known))
    {
        return quota(status, &[]);
    }
    match status.code {
        Code::PermissionDenied => permission(status, &said),
        Code::ResourceExhausted => BackendError::new(
            ErrorName::ColabRateLimited,
            format!(
                "Colab refused the request because too many were made lately{said}. Nothing was run. Wait a few minutes and run the cell again."
            ),
        ),
        Code::NotFound => runtime_lost(&said),
        Code::Cancelled => BackendError::new(
            ErrorName::ColabCellStopped,
            format!(
                "Colab stopped this cell before it ended{said}. Variables are kept. Run the cell again if it is safe to repeat."
            ),
        ),
        Code::Aborted => BackendError::new(
            ErrorName::ColabCellStopped,
            format!(
                "Colab aborted this cell before it ended{said}. Whether variables are kept is not known: look before running the cell again."
            ),
        ),
        Code::Unavailable | Code::DeadlineExceeded => unreachable(status),
        _ if matches!(status.origin, Origin::Connect | Origin::Transport) => unreachable(status),
        _ => BackendError::new(
            ErrorName::ColabProtocolError,
            format!(
                "Colab answered in a way that this kernel cannot use ({:?}{said}). Run the cell again; if it stays so, set COLAB_KERNEL_LOG=debug and report what the log shows.",
                status.code
            ),
        ),
    }
}

/// The service could not be reached, or not for long enough.
pub fn unreachable(status: &Status) -> BackendError {
    let said = said(status);
    BackendError::new(
        ErrorName::ColabUnreachable,
        format!(
            "Colab could not be reached{said}. Check the network, the proxy settings and COLAB_KERNEL_ENDPOINT, then run the cell again."
        ),
    )
}

/// A call was answered by nothing for too long, and what became of its code is not known.
pub fn gave_up(status: &Status) -> BackendError {
    let error = named(status);
    BackendError::new(
        error.name,
        format!(
            "{} It is not known whether this cell has run: look before repeating what is not safe to repeat.",
            error.message
        ),
    )
}

/// The runtime is gone, and the session's variables with it.
pub fn runtime_lost(said: &str) -> BackendError {
    BackendError::new(
        ErrorName::ColabRuntimeLost,
        format!(
            "The Colab runtime is gone{said}: its variables and files are lost, and this cell is not run again by itself. Run the cell again to start on another runtime, after the cells that it needs."
        ),
    )
}

/// The session is gone while a cell was under way.
pub fn session_lost() -> BackendError {
    BackendError::new(
        ErrorName::ColabSessionLost,
        "Colab closed the session while this cell was under way: variables are lost, and it is not known how far the cell came, so it is not run again by itself. Files on the runtime are kept. Run the notebook's earlier cells again before this one.",
    )
}

/// The cell ran, but in a session that Colab had opened anew in between.
pub fn session_recreated() -> BackendError {
    BackendError::new(
        ErrorName::ColabSessionLost,
        "Colab has replaced the session: this cell ran without the variables of the cells before it. The next cell opens a new session. Run the notebook from its beginning.",
    )
}

/// The service has stopped the cell because its connection was lost.
pub fn cell_stopped() -> BackendError {
    BackendError::new(
        ErrorName::ColabCellStopped,
        "The connection to Colab was lost and Colab stopped this cell because of that. Variables are kept. Run the cell again if it is safe to repeat.",
    )
}

/// The wait ended by the user's wish, with nothing submitted.
pub fn interrupted_before() -> BackendError {
    BackendError::new(
        ErrorName::KeyboardInterrupt,
        "interrupted before the cell was submitted",
    )
}

/// A limit of the account, with what runs now.
pub fn quota(status: &Status, running: &[String]) -> BackendError {
    let said = said(status);
    let text = if has_reason(status, reason::TOO_MANY) {
        let running = if running.is_empty() {
            "Which ones run is shown at https://colab.research.google.com under Runtime > Manage sessions".to_owned()
        } else {
            format!("Running now: {}", running.join(", "))
        };
        format!(
            "Colab allows no further runtime for this account{said}. {running}. Use one of them with --runtime NAME (or COLAB_KERNEL_RUNTIME=NAME), or delete one at https://colab.research.google.com under Runtime > Manage sessions."
        )
    } else if has_reason(status, reason::USAGE_TIME) {
        format!(
            "The usage time of this Colab account is spent{said}. Wait until it is renewed, or see https://colab.research.google.com/signup for other plans."
        )
    } else if has_reason(status, reason::DENYLISTED) {
        format!(
            "Colab has barred this account from new runtimes{said}. The terms and how to appeal are at https://research.google.com/colaboratory/faq.html."
        )
    } else {
        format!(
            "Colab refused a new runtime{said}. See https://colab.research.google.com for what this account has."
        )
    };
    BackendError::new(ErrorName::ColabQuotaExceeded, text)
}

/// No machine of the wanted kind is to be had.
pub fn accelerator(wanted: &str, why: &str, eligible: &[String]) -> BackendError {
    let choice = if eligible.is_empty() {
        "Colab names none that this account may have".to_owned()
    } else {
        format!("This account may have: {}", eligible.join(", "))
    };
    BackendError::new(
        ErrorName::ColabAcceleratorUnavailable,
        format!(
            "A Colab runtime with {wanted} is not to be had: {why}. {choice}. Choose with --accelerator NAME (or COLAB_KERNEL_ACCELERATOR=NAME), or try again later."
        ),
    )
}

fn permission(status: &Status, said: &str) -> BackendError {
    if has_reason(status, "ACCESS_TOKEN_SCOPE_INSUFFICIENT") {
        return BackendError::new(ErrorName::ColabAuthRequired, auth_text(status, said));
    }
    let next = match status.reason.as_deref() {
        Some("SERVICE_DISABLED") => match status.metadata.get("activationUrl") {
            Some(url) => format!("Enable the Colab API at {url}, wait a minute, and try again."),
            None => "Enable the Colab API (colaboratory.googleapis.com) in the quota project, wait a minute, and try again.".to_owned(),
        },
        Some("USER_PROJECT_DENIED") => "The quota project is not yours to use: ask for the permission serviceusage.services.use on it, or name another with COLAB_KERNEL_QUOTA_PROJECT.".to_owned(),
        Some("IAM_PERMISSION_DENIED") => "Ask the project's owner for the role roles/mcp.toolUser and the permission serviceusage.services.use.".to_owned(),
        _ => "Check, in this order: the Colab API (colaboratory.googleapis.com) is enabled in the quota project; COLAB_KERNEL_QUOTA_PROJECT (or the quota project of the credentials) is one where you have serviceusage.services.use; you have the role roles/mcp.toolUser there; the account is on the service's allow-list.".to_owned(),
    };
    BackendError::new(
        ErrorName::ColabPermissionDenied,
        format!("Colab refused the request for lack of permission{said}. {next}"),
    )
}

fn auth_text(status: &Status, said: &str) -> String {
    // The token source knows its own remedy; its words stand alone.
    if status.origin == Origin::Credentials && !status.message.is_empty() {
        return status.message.clone();
    }
    format!(
        "Colab did not accept the credentials{said}. Set COLAB_KERNEL_TOKEN to a valid token, or sign in with: gcloud auth application-default login --scopes=https://www.googleapis.com/auth/cloud-platform,https://www.googleapis.com/auth/colaboratory"
    )
}

/// The service's own words, ready to stand behind a clause.
pub fn said(status: &Status) -> String {
    let message = status.message.trim().trim_end_matches('.');
    let reason = status
        .reason
        .as_deref()
        .filter(|reason| !message.contains(reason));
    match (message.is_empty(), reason) {
        (true, None) => String::new(),
        (true, Some(reason)) => format!(" ({reason})"),
        (false, None) => format!(" ({message})"),
        (false, Some(reason)) => format!(" ({message}; {reason})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: Code, origin: Origin) -> Status {
        Status::new(code, origin, "words of the service")
    }

    #[test]
    fn every_code_has_a_name_and_keeps_the_words_of_the_service() {
        use Code::*;
        let cases = [
            (Unauthenticated, ErrorName::ColabAuthRequired),
            (PermissionDenied, ErrorName::ColabPermissionDenied),
            (ResourceExhausted, ErrorName::ColabRateLimited),
            (NotFound, ErrorName::ColabRuntimeLost),
            (Cancelled, ErrorName::ColabCellStopped),
            (Aborted, ErrorName::ColabCellStopped),
            (Unavailable, ErrorName::ColabUnreachable),
            (DeadlineExceeded, ErrorName::ColabUnreachable),
            (InvalidArgument, ErrorName::ColabProtocolError),
            (Unimplemented, ErrorName::ColabProtocolError),
            (Internal, ErrorName::ColabProtocolError),
        ];
        for (code, name) in cases {
            let error = named(&status(code, Origin::Service));
            assert_eq!(error.name, name, "{code:?}");
            assert!(
                error.message.contains("words of the service"),
                "{code:?}: {}",
                error.message
            );
        }
    }

    #[test]
    fn the_hint_of_the_token_source_stands_alone() {
        let error = named(&status(Code::Unauthenticated, Origin::Credentials));
        assert_eq!(error.message, "words of the service");
    }

    #[test]
    fn a_disabled_api_names_the_page_that_enables_it() {
        let mut status = status(Code::PermissionDenied, Origin::Service);
        status.reason = Some("SERVICE_DISABLED".into());
        status
            .metadata
            .insert("activationUrl".into(), "https://enable.example/x".into());
        assert!(named(&status).message.contains("https://enable.example/x"));
    }

    #[test]
    fn a_reason_counts_wherever_it_is_given() {
        let status = Status::new(
            Code::FailedPrecondition,
            Origin::Service,
            "TOO_MANY_ACTIVE_RUNTIMES: delete one",
        );
        let error = quota(&status, &["runtimes/a (T4)".into()]);
        assert_eq!(error.name, ErrorName::ColabQuotaExceeded);
        assert!(error.message.contains("runtimes/a (T4)"));
        assert!(error.message.contains("--runtime"));
        assert!(error.message.contains("Manage sessions"));
    }

    #[test]
    fn what_a_failure_means_follows_from_where_it_arose() {
        use Verdict::*;
        let cases = [
            (Code::Unavailable, Origin::Connect, NotSent),
            (Code::Unavailable, Origin::Service, Unknown),
            (Code::Unavailable, Origin::Transport, Unknown),
            (Code::Internal, Origin::Service, Unknown),
            (Code::Internal, Origin::Protocol, Final),
            (Code::DeadlineExceeded, Origin::Service, Unknown),
            (Code::ResourceExhausted, Origin::Service, RateLimited),
            (Code::NotFound, Origin::Service, NotFound),
            (Code::Unauthenticated, Origin::Credentials, Final),
            (Code::InvalidArgument, Origin::Service, Final),
        ];
        for (code, origin, expected) in cases {
            assert_eq!(
                verdict(&status(code, origin)),
                expected,
                "{code:?} {origin:?}"
            );
        }
    }
}
