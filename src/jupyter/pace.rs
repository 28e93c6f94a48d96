//! How many `stream` messages the process publishes in a second.
//!
//! Jupyter Server drops iopub messages above 1000 a second; 800 leave room for those that are not text. Within the bound nothing
//! waits: a big print goes out at once, in large messages.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Half a second's share, so that no second holds more than 800.
const ALL: Window = Window {
    messages: 400,
    length: Duration::from_millis(500),
};
/// Small messages are spread more evenly and leave some room: a client that is late by a moment must not count more than 800 in
/// any second of its own. Large ones need all of the share for their throughput.
const SMALL: Window = Window {
    messages: 70,
    length: Duration::from_millis(100),
};
/// Below this many bytes a message is small.
const SMALL_BYTES: usize = 64 * 1024;

/// So many messages in so much time, at the most.
#[derive(Debug, Clone, Copy)]
struct Window {
    messages: usize,
    length: Duration,
}

impl Window {
    /// The time before which there is no room for another message, if that has not come yet. Forgets what is over.
    fn full_until(self, times: &mut VecDeque<Instant>, now: Instant) -> Option<Instant> {
        while times.len() >= self.messages {
            let until = *times.front()? + self.length;
            if now < until {
                return Some(until);
            }
            times.pop_front();
        }
        None
    }
}

/// The times of the latest messages.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    all: VecDeque<Instant>,
    small: VecDeque<Instant>,
}

impl Pace {
    /// Waits for the turn of a message with so many bytes of text.
    pub(super) async fn wait(&self, bytes: usize) {
        while let Err(until) = self.try_now(Instant::now(), bytes) {
            tokio::time::sleep_until(until).await;
        }
    }

    fn try_now(&self, now: Instant, bytes: usize) -> Result<(), Instant> {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let small = bytes < SMALL_BYTES;
        if let Some(until) = ALL.full_until(&mut times.all, now) {
            return Err(until);
        }
        if small {
            if let Some(until) = SMALL.full_until(&mut times.small, now) {
                return Err(until);
            }
            times.small.push_back(now);
        }
        times.all.push_back(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times at which messages of this size go out for five seconds, if nothing else holds them back.
    fn five_seconds(bytes: usize) -> Vec<Instant> {
        let pace = Pace::default();
        let start = Instant::now();
        let mut now = start;
        let mut sent = Vec::new();
        while now < start + Duration::from_secs(5) {
            match pace.try_now(now, bytes) {
                Ok(()) => sent.push(now),
                Err(until) => now = until,
            }
        }
        sent
    }

    fn most_within(sent: &[Instant], length: Duration) -> usize {
        let within = |(index, time): (usize, &Instant)| {
            let rest = sent[index..].iter();
            rest.take_while(|later| **later < *time + length).count()
        };
        sent.iter().enumerate().map(within).max().unwrap()
    }

    #[test]
    fn no_second_holds_more_than_eight_hundred_and_large_messages_use_the_share() {
        let large = five_seconds(SMALL_BYTES);
        assert!(most_within(&large, Duration::from_secs(1)) <= 800);
        assert_eq!(large.len(), 4000);
    }

    #[test]
    fn small_messages_leave_room_for_a_late_client() {
        let small = five_seconds(10);
        assert!(most_within(&small, Duration::from_millis(1100)) <= 800);
        assert_eq!(small.len(), 3500);
    }
}
