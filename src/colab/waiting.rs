//! Waiting for a service that is slow, away or rate-limited, and telling the user so.
//!
//! What is tried again, and when, is the table in [`super::retry`]; here it is carried out for calls that may simply be made
//! again. Invariant: every failure that is waited out is told in one line that says why.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::mcp::errors::Status;
use super::names::{Verdict, verdict};
use super::retry;
use crate::backend::{Event, EventSender};

/// Tells the user why a cell waits.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// Where notices go.
    pub events: &'a EventSender,
}

impl Waiting<'_> {
    /// Shows one line.
    pub async fn notice(&self, line: impl Into<String>) {
        self.events.send(Event::Notice(line.into())).await;
    }

    /// Makes a call of this tool, again where the table says so, until it succeeds or the table gives it up.
    pub async fn persist<T, F, Fut>(&self, tool: &str, mut attempt: F) -> Result<T, Status>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T, Status>> + Send,
        T: Send,
    {
        let started = Instant::now();
        let mut failures = 0;
        loop {
            let status = match attempt().await {
                Ok(value) => return Ok(value),
                Err(status) => status,
            };
            failures += 1;
            let spent = started.elapsed();
            let Some(delay) = retry::next_wait(tool, &status, failures, spent, retry::jitter())
            else {
                return Err(status);
            };
            self.notice(line(&status, delay)).await;
            tokio::time::sleep(delay).await;
        }
    }
}

/// What the user reads meanwhile.
pub fn line(status: &Status, delay: Duration) -> String {
    let why = match verdict(status) {
        Verdict::RateLimited => "Colab limits the rate of requests; the cell has not run yet",
        Verdict::NotSent => "Colab cannot be reached",
        _ => "Colab does not answer",
    };
    format!("{why}; trying again in {} s", delay.as_secs().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::events;
    use crate::colab::mcp::errors::{Code, Origin};

    #[tokio::test(start_paused = true)]
    async fn waiting_is_told_and_ends() {
        let (sender, mut receiver) = events();
        let waiting = Waiting { events: &sender };
        for (origin, code, words) in [
            (Origin::Connect, Code::Unavailable, "cannot be reached"),
            (Origin::Service, Code::ResourceExhausted, "limits the rate"),
            (Origin::Transport, Code::Unavailable, "does not answer"),
        ] {
            let started = Instant::now();
            let status = Status::new(code, origin, "no");
            let failed = waiting
                .persist("list_runtimes", || {
                    std::future::ready(Err::<(), _>(status.clone()))
                })
                .await;
            assert_eq!(failed, Err(status));
            assert!(started.elapsed() <= retry::PATIENCE);
            let Some(Event::Notice(line)) = receiver.try_recv() else {
                panic!("no notice");
            };
            assert!(line.contains(words), "{line}");
            while receiver.try_recv().is_some() {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_final_failure_is_not_repeated() {
        let (sender, _receiver) = events();
        let waiting = Waiting { events: &sender };
        let mut attempts = 0;
        let failed = waiting
            .persist("list_runtimes", || {
                attempts += 1;
                std::future::ready(Err::<(), _>(Status::new(
                    Code::PermissionDenied,
                    Origin::Service,
                    "no",
                )))
            })
            .await;
        assert!(failed.is_err());
        assert_eq!(attempts, 1);
    }
}
