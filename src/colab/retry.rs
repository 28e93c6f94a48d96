//! What is tried again, how often, and after how long: one table for every tool and code.
//!
//! `TABLE` is the whole policy; the first row that fits decides. [`super::waiting`] carries it out for every tool but
//! `execute_code`, whose rows say `Reattach`: there the identical call is sent again, which is the business of
//! [`super::execution`]. Invariants:
//!
//! * What may have run is tried again only where that is harmless: reading, or naming the same thing (`create_session` with its
//!   id, `create_runtime` with its request id).
//! * RESOURCE_EXHAUSTED did not run, so it is always tried again, until [`PATIENCE`] is used up.
//! * The server's own word on when to come back (`Retry-After`, `RetryInfo`) is a lower bound of the wait.

use std::time::Duration;

use super::mcp::errors::{Code, Origin, REASON_CERTIFICATE, Status};

/// How long all attempts of one call may go on before it is given up.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// The first wait, and the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What to do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It will not get better.
    GiveUp,
    /// Try again, at most so many times (`None`: until [`PATIENCE`] is used up).
    Retry {
        /// The number of further attempts.
        times: Option<u32>,
        /// What has to be read before, because the failed attempt may have done its work.
        read_first: Option<ReadFirst>,
    },
    /// The code may be running: send the identical call again, for as long as the caller's patience lasts.
    Reattach {
        /// What tells whether session and machine are still there.
        read_first: ReadFirst,
    },
}

/// What is read before a call is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFirst {
    /// `list_runtimes`: whether the machine has come into being.
    Runtimes,
    /// `list_sessions`: whether the session is still there.
    Sessions,
}

/// One row: for these tools, a failure like this is dealt with like that.
struct Row {
    tools: &'static [&'static str],
    codes: &'static [Code],
    origins: &'static [Origin],
    verdict: Verdict,
}

/// Any tool, code or origin.
const ANY_TOOL: &[&str] = &[];
const ANY_CODE: &[Code] = &[];
const ANY_ORIGIN: &[Origin] = &[];

const READING: &[&str] = &[
    "get_runtime",
    "get_subscription",
    "list_runtime_specs",
    "list_runtimes",
    "list_sessions",
];
const DELETING: &[&str] = &["delete_runtime", "delete_session"];
/// The answer was lost, or the service had a bad moment: the call may or may not have run.
const UNCLEAR: &[Code] = &[
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::Internal,
    Code::Aborted,
    Code::Unknown,
];
const ANSWERED_OR_LOST: &[Origin] = &[Origin::Service, Origin::Transport];

const fn again(times: u32) -> Verdict {
    Verdict::Retry {
        times: Some(times),
        read_first: None,
    }
}

/// The policy. The first row that fits decides.
const TABLE: &[Row] = &[
    // Rate limited: documented as "did not run".
    Row {
        tools: ANY_TOOL,
        codes: &[Code::ResourceExhausted],
        origins: ANY_ORIGIN,
        verdict: Verdict::Retry {
            times: None,
            read_first: None,
        },
    },
    // The token's own server had a bad moment.
    Row {
        tools: ANY_TOOL,
        codes: &[Code::Unavailable, Code::DeadlineExceeded],
        origins: &[Origin::Credentials],
        verdict: again(3),
    },
    Row {
        tools: ANY_TOOL,
        codes: ANY_CODE,
        origins: &[Origin::Credentials, Origin::Protocol],
        verdict: Verdict::GiveUp,
    },
    // Code may be running; even where nothing was sent this time, an earlier attempt may have been.
    Row {
        tools: &["execute_code"],
        codes: &[Code::Unavailable, Code::DeadlineExceeded, Code::Internal],
        origins: ANY_ORIGIN,
        verdict: Verdict::Reattach {
            read_first: ReadFirst::Sessions,
        },
    },
    // Nothing was sent: about half a minute of attempts, so that a wrong address is not waited for in vain.
    Row {
        tools: ANY_TOOL,
        codes: &[Code::Unavailable],
        origins: &[Origin::Connect],
        verdict: again(5),
    },
    Row {
        tools: READING,
        codes: UNCLEAR,
        origins: ANSWERED_OR_LOST,
        verdict: again(5),
    },
    // With its id it gives the session that is there already.
    Row {
        tools: &["create_session"],
        codes: UNCLEAR,
        origins: ANSWERED_OR_LOST,
        verdict: again(5),
    },
    // NOT_FOUND on the second attempt means that the first one did it.
    Row {
        tools: DELETING,
        codes: UNCLEAR,
        origins: ANSWERED_OR_LOST,
        verdict: again(3),
    },
    // Only with the request id of the first attempt, and only after a look at what has come into being.
    Row {
        tools: &["create_runtime"],
        codes: &[Code::Unavailable, Code::DeadlineExceeded, Code::Aborted],
        origins: ANSWERED_OR_LOST,
        verdict: Verdict::Retry {
            times: Some(3),
            read_first: Some(ReadFirst::Runtimes),
        },
    },
];

/// What the table says about a failure of a tool.
pub fn verdict(tool: &str, status: &Status) -> Verdict {
    if status.reason.as_deref() == Some(REASON_CERTIFICATE) {
        return Verdict::GiveUp;
    }
    fn fits<T: PartialEq>(set: &[T], item: &T) -> bool {
        set.is_empty() || set.contains(item)
    }
    TABLE
        .iter()
        .find(|row| {
            fits(row.tools, &tool)
                && fits(row.codes, &status.code)
                && fits(row.origins, &status.origin)
        })
        .map_or(Verdict::GiveUp, |row| row.verdict)
}

/// The wait before the attempt after `failures` failures in a row: doubling from 1 s to 30 s, of which `jitter` (0 to 1) takes up
/// to half away, and never less than what the server asked for.
pub fn wait(failures: u32, retry_after: Option<Duration>, jitter: f64) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let wait = doubled
        .min(LONGEST_WAIT)
        .mul_f64(1.0 - 0.5 * jitter.clamp(0.0, 1.0));
    wait.max(retry_after.unwrap_or_default())
}

/// The wait before a tool is tried again, or `None` if it is not: the table, the number of failures so far, and the time already
/// spent.
pub fn next_wait(
    tool: &str,
    status: &Status,
    failures: u32,
    spent: Duration,
    jitter: f64,
) -> Option<Duration> {
    let Verdict::Retry { times, .. } = verdict(tool, status) else {
        return None;
    };
    if times.is_some_and(|times| failures > times) {
        return None;
    }
    let wait = wait(failures, status.retry_after, jitter);
    // A wait that ends after our patience does is not begun.
    (spent + wait <= PATIENCE).then_some(wait)
}

/// A random share for [`wait`].
pub fn jitter() -> f64 {
    let random = uuid::Uuid::new_v4().as_u64_pair().0 >> 12;
    #[allow(clippy::cast_precision_loss)]
    let share = (random & 0xFFFF_FFFF) as f64 / f64::from(u32::MAX);
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: Code, origin: Origin) -> Status {
        Status::new(code, origin, "x")
    }

    fn is_retried(tool: &str, code: Code, origin: Origin) -> bool {
        matches!(verdict(tool, &status(code, origin)), Verdict::Retry { .. })
    }

    #[test]
    fn the_table_says_what_the_service_documents() {
        for tool in [
            "execute_code",
            "create_session",
            "list_runtimes",
            "create_runtime",
            "delete_session",
        ] {
            assert_eq!(
                verdict(tool, &status(Code::ResourceExhausted, Origin::Service)),
                Verdict::Retry {
                    times: None,
                    read_first: None
                },
                "{tool}"
            );
            for code in [
                Code::NotFound,
                Code::PermissionDenied,
                Code::InvalidArgument,
                Code::FailedPrecondition,
                Code::Unauthenticated,
            ] {
                assert_eq!(
                    verdict(tool, &status(code, Origin::Service)),
                    Verdict::GiveUp,
                    "{tool} {code:?}"
                );
            }
            assert_eq!(
                verdict(tool, &status(Code::Unauthenticated, Origin::Credentials)),
                Verdict::GiveUp
            );
            assert_eq!(
                verdict(tool, &status(Code::Internal, Origin::Protocol)),
                Verdict::GiveUp
            );
        }
        for code in [Code::Unavailable, Code::DeadlineExceeded] {
            for origin in [Origin::Service, Origin::Transport, Origin::Connect] {
                assert_eq!(
                    verdict("execute_code", &status(code, origin)),
                    Verdict::Reattach {
                        read_first: ReadFirst::Sessions
                    }
                );
            }
        }
        assert!(is_retried(
            "list_sessions",
            Code::Unavailable,
            Origin::Transport
        ));
        assert!(is_retried(
            "create_session",
            Code::DeadlineExceeded,
            Origin::Service
        ));
        assert_eq!(
            verdict(
                "create_runtime",
                &status(Code::Unavailable, Origin::Transport)
            ),
            Verdict::Retry {
                times: Some(3),
                read_first: Some(ReadFirst::Runtimes)
            }
        );
        assert!(!is_retried(
            "create_runtime",
            Code::Internal,
            Origin::Service
        ));
    }

    #[test]
    fn a_certificate_is_not_tried_again() {
        let mut status = status(Code::Unavailable, Origin::Connect);
        assert!(matches!(
            verdict("list_runtimes", &status),
            Verdict::Retry { .. }
        ));
        status.reason = Some(REASON_CERTIFICATE.to_owned());
        assert_eq!(verdict("list_runtimes", &status), Verdict::GiveUp);
        assert_eq!(verdict("execute_code", &status), Verdict::GiveUp);
    }

    #[test]
    fn waits_double_to_half_a_minute_and_honour_the_server() {
        let seconds: Vec<u64> = (1..8)
            .map(|failures| wait(failures, None, 0.0).as_secs())
            .collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(wait(1, None, 1.0), Duration::from_millis(500));
        assert_eq!(
            wait(1, Some(Duration::from_secs(7)), 1.0),
            Duration::from_secs(7)
        );
        assert_eq!(wait(u32::MAX, None, 0.0), LONGEST_WAIT);
        assert!(
            (0..100)
                .map(|_| jitter())
                .all(|share| (0.0..=1.0).contains(&share))
        );
    }

    #[test]
    fn attempts_and_patience_end() {
        let lost = status(Code::Unavailable, Origin::Transport);
        assert!(next_wait("list_runtimes", &lost, 5, Duration::ZERO, 0.0).is_some());
        assert!(next_wait("list_runtimes", &lost, 6, Duration::ZERO, 0.0).is_none());
        let limited = status(Code::ResourceExhausted, Origin::Service);
        assert!(next_wait("list_runtimes", &limited, 50, Duration::from_secs(200), 0.0).is_some());
        assert!(next_wait("list_runtimes", &limited, 50, Duration::from_secs(299), 0.0).is_none());
        let mut later = limited;
        later.retry_after = Some(Duration::from_secs(3600));
        assert!(next_wait("list_runtimes", &later, 1, Duration::ZERO, 0.0).is_none());
        assert!(next_wait("execute_code", &lost, 1, Duration::ZERO, 0.0).is_none());
    }
}
