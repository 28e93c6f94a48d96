//! One iopub subscriber: what it wants, what waits for it, and what happens when it does not read.
//!
//! The policy, in one place:
//!
//! * A subscriber that reads, however slowly, gets everything: with [`ROOM`] bytes waiting for it the publisher waits with
//!   `stream` text, with [`LIMIT`] bytes with everything.
//! * One that has read nothing for a while (the publisher says how long; see [`Room::Wait`]) when that point is reached is
//!   *stalled* until it has read half of it. Nobody waits for it. Text for it is dropped, and it is told how much when it reads
//!   again. All other messages (status, results, displays, errors …) are still kept for it, up to `LIMIT`; beyond, it is
//!   disconnected, so that no message is missing unnoticed.
//! * Messages are encoded once and shared: a thousand waiting messages cost the same for one subscriber as for ten.

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
pub(super) const ROOM: usize = 12 * 1024 * 1024;
/// Bytes that may wait before everything is held back.
pub(super) const LIMIT: usize = 32 * 1024 * 1024;
/// With fewer bytes waiting a subscriber keeps up.
const BEHIND: usize = 4 * 1024 * 1024;
/// How long the publisher waits at least before it calls somebody stalled: its writer may not have had its turn.
const CHANCE: Duration = Duration::from_millis(50);

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
    /// Not before it reads; if it has not by then, it counts as stalled.
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
    /// It is behind and has read nothing since.
    behind: Option<Instant>,
    /// The publisher waits for it, and it has read nothing since.
    awaited: Option<Instant>,
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
                behind: None,
                awaited: None,
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

    /// Whether it reads as fast as is published.
    pub(super) fn keeps_up(&self) -> bool {
        self.queue().bytes <= BEHIND
    }

    /// Whether the message can be taken now. `patience`: how long it may read nothing.
    pub(super) fn room(&self, message: &Published, now: Instant, patience: Duration) -> Room {
        let mut queue = self.queue();
        if !queue.wants(message) || queue.bytes <= queue.limit(message) || queue.stalled {
            return Room::Free;
        }
        let behind = *queue.behind.get_or_insert(now);
        let awaited = *queue.awaited.get_or_insert(now);
        let until = (behind + patience).max(awaited + CHANCE);
        if now < until {
            return Room::Wait(until);
        }
        tracing::warn!("a subscriber has stopped reading; text for it is dropped");
        queue.stalled = true;
        Room::Free
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
        queue.behind = (queue.bytes > BEHIND).then(Instant::now);
        queue.awaited = None;
        if queue.stalled && queue.bytes <= ROOM / 2 {
            queue.stalled = false;
        }
    }

    fn push(&self, queue: &mut Queue, wire: Bytes) {
        if queue.closed {
            return;
        }
        queue.bytes += wire.len();
        if queue.bytes > BEHIND {
            queue.behind.get_or_insert_with(Instant::now);
        }
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
        let patience = Duration::from_secs(1);
        let room = |message: &Published, now| subscriber.room(message, now, patience);
        assert!(matches!(room(&text, now), Room::Wait(_)));
        assert_eq!(room(&message(false, 1), now), Room::Free);
        subscriber.progressed(1);
        assert!(matches!(room(&text, now), Room::Wait(_)), "it reads");
        assert_eq!(room(&text, now + patience * 2), Room::Free);
        subscriber.take(&text);
        subscriber.take(&message(false, 1));
        assert_eq!(
            subscriber.pushed(),
            3,
            "welcome, first text, the other message"
        );
        assert!(subscriber.take_lost().is_none(), "not while it is stalled");
        assert!(subscriber.settled(u64::MAX), "nobody waits for it");
        subscriber.progressed(ROOM - 1);
        assert_eq!(subscriber.take_lost().unwrap().bytes, 100);
        assert!(!subscriber.settled(3));
    }

    #[test]
    fn a_publisher_that_was_busy_gives_the_writer_its_chance() {
        let subscriber = subscribed("");
        subscriber.take(&message(true, ROOM + 1));
        let text = message(true, 100);
        let late = Instant::now() + Duration::from_secs(60);
        assert!(matches!(
            subscriber.room(&text, late, CHANCE),
            Room::Wait(_)
        ));
    }

    #[test]
    fn one_that_never_reads_is_disconnected_before_a_message_would_be_missing() {
        let subscriber = subscribed("");
        subscriber.take(&message(false, LIMIT + 1));
        let status = message(false, 1);
        let now = Instant::now();
        let room = |now| subscriber.room(&status, now, CHANCE);
        assert!(matches!(room(now), Room::Wait(_)));
        assert_eq!(room(now + CHANCE * 2), Room::Free);
        subscriber.take(&status);
        assert!(subscriber.queue().closed);
    }
}
