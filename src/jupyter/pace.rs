//! How many `stream` messages the process publishes in a second.
//!
//! Jupyter Server drops iopub messages above 1000 a second; 800 leave room for those that are not text. Within the bound nothing
//! waits: a big print goes out at once, in large messages.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Half a second's share, so that no second holds more than 800.
const MESSAGES: usize = 400;
const WINDOW: Duration = Duration::from_millis(500);

/// The times of the latest messages.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<VecDeque<Instant>>);

impl Pace {
    /// Waits for its turn.
    pub(super) async fn wait(&self) {
        while let Err(until) = self.try_now(Instant::now()) {
            tokio::time::sleep_until(until).await;
        }
    }

    fn try_now(&self, now: Instant) -> Result<(), Instant> {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if times.len() >= MESSAGES
            && let Some(oldest) = times.front()
        {
            let until = *oldest + WINDOW;
            if now < until {
                return Err(until);
            }
            times.pop_front();
        }
        times.push_back(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_holds_more_than_eight_hundred() {
        let pace = Pace::default();
        let start = Instant::now();
        let mut now = start;
        let mut sent = Vec::new();
        while now < start + Duration::from_secs(5) {
            match pace.try_now(now) {
                Ok(()) => sent.push(now),
                Err(until) => now = until,
            }
        }
        for (index, time) in sent.iter().enumerate() {
            let within = sent[index..]
                .iter()
                .take_while(|later| **later < *time + Duration::from_secs(1))
                .count();
            assert!(within <= 800, "{within}");
        }
        assert_eq!(sent.len(), 4000, "and the share is used");
    }
}
