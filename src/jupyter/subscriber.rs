//! One iopub subscriber: what it wants, what waits for it, and what happens when it does not read.
//!
//! The policy, in one place. Two amounts of waiting bytes count: [`ROOM`] and, above it, [`LIMIT`].
//!
//! * A subscriber that reads, however slowly, gets everything: above `ROOM` the publisher waits with `stream` text, above
//!   `LIMIT` with everything.
//! * One that has read nothing for [`STALL`] while more than `ROOM` waits is *stalled* until it has read half of it. Nobody
//!   waits for it. Text for it is dropped, and it is told how much when it reads again. All other messages (status, results,
//!   displays, errors …) are still kept for it, up to `LIMIT`; beyond, it is disconnected, so that no message is missing unnoticed.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::message::Parent;

/// Bytes that may wait before text is held back.
pub(super) const ROOM: usize = 8 * 1024 * 1024;
/// Bytes that may wait before everything is held back.
pub(super) const LIMIT: usize = 32 * 1024 * 1024;
/// How long a subscriber may read nothing while the publisher waits for it.
pub(super) const STALL: Duration = Duration::from_millis(250);

const TOPICS: usize = 1000;
const BATCH_MESSAGES: usize = 64;
const BATCH_BYTES: usize = 1024 * 1024;

/// A message to publish, encoded once for all subscribers.
#[derive(Debug, Clone)]
pub(super) struct Published {
    pub(super) topic: String,
    pub(super) wire: Bytes,
    pub(super) parent: Parent,
    /// Whether it is `stream` text, which a stalled subscriber may lose.
    pub(super) text: bool,
}

/// Whether a message can be taken now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// Yes (or it need not be: nobody waits for this subscriber).
    Free,
    /// Not before it reads; at the latest then it counts as stalled.
    Wait(Instant),
}

/// Text that a stalled subscriber did not get.
#[derive(Debug, Clone)]
pub(super) struct Lost {
    pub(super) bytes: usize,
    pub(super) parent: Parent,
}

#[derive(Debug)]
pub(super) struct Subscriber {
    queue: Mutex<Queue>,
    filled: Notify,
    closing: Notify,
}

#[derive(Debug)]
struct Queue {
    topics: HashMap<Bytes, usize>,
    waiting: VecDeque<Bytes>,
    bytes: usize,
    pushed: u64,
    written: u64,
    progress: Instant,
    stalled: bool,
    lost: Option<Lost>,
    closed: bool,
}

impl Subscriber {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::new(Queue {
                topics: HashMap::new(),
                waiting: VecDeque::new(),
                bytes: 0,
                pushed: 0,
                written: 0,
                progress: Instant::now(),
                stalled: false,
                lost: None,
                closed: false,
            }),
            filled: Notify::new(),
            closing: Notify::new(),
        }
    }

    /// Subscribes to a topic; the welcome goes out before anything else of it.
    pub(super) fn subscribe(&self, topic: Bytes, welcome: Bytes) {
        let mut queue = self.queue();
        if queue.topics.len() >= TOPICS {
            self.close(&mut queue);
            return;
        }
        let count = queue.topics.entry(topic).or_insert(0);
        *count += 1;
        if *count == 1 {
            self.push(&mut queue, welcome);
        }
    }

    pub(super) fn cancel(&self, topic: &[u8]) {
        let mut queue = self.queue();
        if let Some(count) = queue.topics.get_mut(topic) {
            *count -= 1;
            if *count == 0 {
                queue.topics.remove(topic);
            }
        }
    }

    /// Sends what is no message, such as a PONG.
    pub(super) fn answer(&self, frame: Bytes) {
        let mut queue = self.queue();
        if queue.bytes > LIMIT {
            self.close(&mut queue);
        } else {
            self.push(&mut queue, frame);
        }
    }

    /// Whether the message can be taken now.
    pub(super) fn room(&self, message: &Published, now: Instant) -> Room {
        let mut queue = self.queue();
        if !queue.wants(message) || queue.bytes <= queue.limit(message) || queue.is_stalled(now) {
            Room::Free
        } else {
            Room::Wait(queue.progress + STALL)
        }
    }

    /// Takes the message, or does with it what the policy says. Called when there is room for it.
    pub(super) fn take(&self, message: &Published) {
        let mut queue = self.queue();
        if !queue.wants(message) {
            return;
        }
        if queue.bytes <= queue.limit(message) {
            self.push(&mut queue, message.wire.clone());
        } else if message.text {
            let bytes = queue.lost.as_ref().map_or(0, |lost| lost.bytes) + message.wire.len();
            queue.lost = Some(Lost {
                bytes,
                parent: message.parent.clone(),
            });
        } else {
            tracing::warn!("disconnected a subscriber that does not read");
            self.close(&mut queue);
        }
    }

    /// What it has missed, once it reads again.
    pub(super) fn take_lost(&self) -> Option<Lost> {
        let mut queue = self.queue();
        if queue.stalled {
            return None;
        }
        queue.lost.take()
    }

    /// How many messages it has been given so far.
    pub(super) fn pushed(&self) -> u64 {
        self.queue().pushed
    }

    /// Whether so many messages are written, or nobody waits for it.
    pub(super) fn settled(&self, target: u64) -> bool {
        let queue = self.queue();
        queue.written >= target || queue.closed || queue.stalled
    }

    /// Marks it gone.
    pub(super) fn leave(&self) {
        self.close(&mut self.queue());
    }

    /// Waits until it is to be disconnected.
    pub(super) async fn closed(&self) {
        self.closing.notified().await;
    }

    /// Writes what waits, for ever. `moved` is told of all progress.
    pub(super) async fn write_to(
        &self,
        mut stream: impl AsyncWrite + Unpin,
        moved: &Notify,
    ) -> io::Result<()> {
        loop {
            let batch = self.next_batch().await;
            let mut slices: Vec<_> = batch.iter().map(|wire| io::IoSlice::new(wire)).collect();
            let mut rest = &mut slices[..];
            while !rest.is_empty() {
                let written = stream.write_vectored(rest).await?;
                if written == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                io::IoSlice::advance_slices(&mut rest, written);
                self.progressed(written);
                moved.notify_waiters();
            }
            self.queue().written += batch.len() as u64;
            moved.notify_waiters();
        }
    }

    async fn next_batch(&self) -> Vec<Bytes> {
        loop {
            let batch = self.queue().batch();
            if !batch.is_empty() {
                return batch;
            }
            self.filled.notified().await;
        }
    }

    fn progressed(&self, bytes: usize) {
        let mut queue = self.queue();
        queue.bytes = queue.bytes.saturating_sub(bytes);
        queue.progress = Instant::now();
        if queue.stalled && queue.bytes <= ROOM / 2 {
            queue.stalled = false;
        }
    }

    fn push(&self, queue: &mut Queue, wire: Bytes) {
        if queue.closed {
            return;
        }
        if queue.bytes == 0 {
            queue.progress = Instant::now();
        }
        queue.bytes += wire.len();
        queue.pushed += 1;
        queue.waiting.push_back(wire);
        self.filled.notify_one();
    }

    fn close(&self, queue: &mut Queue) {
        queue.closed = true;
        queue.topics.clear();
        queue.waiting.clear();
        self.closing.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn wants(&self, message: &Published) -> bool {
        self.topics
            .keys()
            .any(|topic| message.topic.as_bytes().starts_with(topic))
    }

    fn limit(&self, message: &Published) -> usize {
        if message.text { ROOM } else { LIMIT }
    }

    fn is_stalled(&mut self, now: Instant) -> bool {
        if !self.stalled && now >= self.progress + STALL {
            tracing::warn!("a subscriber has stopped reading; text for it is dropped");
            self.stalled = true;
        }
        self.stalled
    }

    fn batch(&mut self) -> Vec<Bytes> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_MESSAGES
            && bytes < BATCH_BYTES
            && let Some(wire) = self.waiting.pop_front()
        {
            bytes += wire.len();
            batch.push(wire);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: bool, size: usize) -> Published {
        Published {
            topic: "kernel.x.stream".into(),
            wire: vec![0; size].into(),
            parent: Parent::none(),
            text,
        }
    }

    fn subscribed(topic: &'static str) -> Subscriber {
        let subscriber = Subscriber::new();
        subscriber.subscribe(topic.into(), Bytes::from_static(b"welcome"));
        subscriber
    }

    #[test]
    fn topics_are_prefixes_and_are_cancelled_as_often_as_subscribed() {
        let text = message(true, 1);
        let other = subscribed("kernel.y");
        other.take(&text);
        assert_eq!(other.pushed(), 1, "the welcome only");
        let subscriber = subscribed("kernel.");
        subscriber.subscribe("kernel.".into(), Bytes::new());
        subscriber.cancel(b"kernel.");
        subscriber.take(&text);
        assert_eq!(subscriber.pushed(), 2);
        subscriber.cancel(b"kernel.");
        subscriber.cancel(b"kernel.");
        subscriber.take(&text);
        assert_eq!(subscriber.pushed(), 2);
    }

    #[test]
    fn text_waits_for_a_reader_and_is_dropped_for_one_that_stopped() {
        let subscriber = subscribed("");
        subscriber.take(&message(true, ROOM + 1));
        let text = message(true, 100);
        let now = Instant::now();
        assert!(matches!(subscriber.room(&text, now), Room::Wait(_)));
        assert_eq!(subscriber.room(&message(false, 1), now), Room::Free);
        assert_eq!(subscriber.room(&text, now + STALL * 2), Room::Free);
        subscriber.take(&text);
        subscriber.take(&message(false, 1));
        assert_eq!(
            subscriber.pushed(),
            3,
            "welcome, first text, the other message"
        );
        assert!(subscriber.take_lost().is_none(), "not while it is stalled");
        assert!(subscriber.settled(u64::MAX), "nobody waits for it");
        subscriber.progressed(ROOM);
        assert_eq!(subscriber.take_lost().unwrap().bytes, 100);
        assert!(!subscriber.settled(3));
    }

    #[test]
    fn one_that_never_reads_is_disconnected_before_a_message_would_be_missing() {
        let subscriber = subscribed("");
        subscriber.take(&message(false, LIMIT + 1));
        let status = message(false, 1);
        assert!(matches!(
            subscriber.room(&status, Instant::now()),
            Room::Wait(_)
        ));
        assert_eq!(
            subscriber.room(&status, Instant::now() + STALL * 2),
            Room::Free
        );
        subscriber.take(&status);
        assert!(subscriber.queue().closed);
    }
}
