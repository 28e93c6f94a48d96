//! Waiting for a service that is slow, away or rate-limited.
//!
//! Invariants: every wait before the code has begun ends, at latest after [`BEFORE_START`]; the user is told why it lasts; the
//! service's own `Retry-After` is honoured.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::mcp::errors::{Origin, Status};
use super::names::{Verdict, verdict};
use crate::backend::{Event, EventSender};

/// How long a cell waits for the service before its code has begun.
pub const BEFORE_START: Duration = Duration::from_secs(5 * 60);
/// How long it waits where no connection has ever been made: a wrong address or no network is told soon.
pub const FIRST_CONTACT: Duration = Duration::from_secs(20);
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LAST_DELAY: Duration = Duration::from_secs(30);

/// Delays of 1, 2, 4 … 30 seconds.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST_DELAY }
    }
}

impl Backoff {
    /// The delay before the next attempt, at least what the service asks for.
    pub fn delay(&mut self, status: &Status) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(LAST_DELAY);
        status.retry_after.map_or(delay, |asked| asked.max(delay))
    }

    /// The service answered: begin again.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Tells the user why a cell waits.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// Where notices go.
    pub events: &'a EventSender,
    /// Whether the service has ever been reached by this process.
    pub reached: &'a AtomicBool,
}

impl Waiting<'_> {
    /// Shows one line.
    pub async fn notice(&self, line: impl Into<String>) {
        self.events.send(Event::Notice(line.into())).await;
    }

    /// Repeats a call that may safely be repeated until it succeeds, fails for good or the patience is at its end.
    pub async fn persist<T, F, Fut>(&self, mut attempt: F) -> Result<T, Status>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T, Status>> + Send,
        T: Send,
    {
        let started = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            let status = match attempt().await {
                Ok(value) => {
                    self.reached.store(true, Ordering::Relaxed);
                    return Ok(value);
                }
                Err(status) => status,
            };
            if status.origin == Origin::Service {
                self.reached.store(true, Ordering::Relaxed);
            }
            let Some(patience) = self.patience(&status) else {
                return Err(status);
            };
            let delay = backoff.delay(&status);
            if started.elapsed() + delay > patience {
                return Err(status);
            }
            self.notice(line(&status, delay)).await;
            tokio::time::sleep(delay).await;
        }
    }

    /// How long to wait for this to pass; `None`: it will not.
    pub fn patience(&self, status: &Status) -> Option<Duration> {
        match verdict(status) {
            Verdict::NotSent if !self.reached.load(Ordering::Relaxed) => Some(FIRST_CONTACT),
            Verdict::NotSent | Verdict::RateLimited | Verdict::Unknown => Some(BEFORE_START),
            Verdict::NotFound | Verdict::Final => None,
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
    use crate::colab::mcp::errors::Code;

    #[test]
    fn delays_double_up_to_a_limit_and_honour_the_service() {
        let mut backoff = Backoff::default();
        let mut status = Status::new(Code::Unavailable, Origin::Service, "");
        let delays: Vec<u64> = (0..7).map(|_| backoff.delay(&status).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
        backoff.reset();
        status.retry_after = Some(Duration::from_secs(7));
        assert_eq!(backoff.delay(&status).as_secs(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_told_and_ends() {
        let (sender, mut receiver) = events();
        let reached = AtomicBool::new(false);
        let waiting = Waiting {
            events: &sender,
            reached: &reached,
        };
        for (origin, code, limit) in [
            (Origin::Connect, Code::Unavailable, FIRST_CONTACT),
            (Origin::Service, Code::ResourceExhausted, BEFORE_START),
            (Origin::Transport, Code::Unavailable, BEFORE_START),
        ] {
            let started = Instant::now();
            let status = Status::new(code, origin, "no");
            let failed = waiting
                .persist(|| std::future::ready(Err::<(), _>(status.clone())))
                .await;
            assert_eq!(failed, Err(status));
            assert!(started.elapsed() <= limit);
            assert!(matches!(receiver.try_recv(), Some(Event::Notice(_))));
            while receiver.try_recv().is_some() {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_final_failure_is_not_repeated() {
        let (sender, _receiver) = events();
        let reached = AtomicBool::new(true);
        let waiting = Waiting {
            events: &sender,
            reached: &reached,
        };
        let mut attempts = 0;
        let failed = waiting
            .persist(|| {
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
