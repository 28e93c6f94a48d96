//! The coalescer: one cell's text in few `stream` messages.
//!
//! * No character is added, dropped or moved: what was pushed comes out in the same order, streams included.
//! * The first text goes out at once. After that a message is sent when [`INTERVAL`] has passed, when [`PIECE`] bytes have come
//!   together, or when the other stream is written to.
//! * A message holds at most [`PIECE`] bytes of text and is cut between characters. Text that comes alone is not cut below that.
//! * Publishing is paced (see `pace.rs`) and waits for slow subscribers, and [`Coalescer::push`] with it.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::iopub::IoPub;
use super::message::Parent;
use crate::backend::StreamName;

/// The longest text of one message.
pub const PIECE: usize = 128 * 1024;
/// The time between two messages of a stream that is written to all the time.
pub const INTERVAL: Duration = Duration::from_millis(50);

/// Gathers one cell's text into few `stream` messages.
#[derive(Debug)]
pub struct Coalescer {
    iopub: IoPub,
    parent: Parent,
    name: StreamName,
    pending: String,
    /// Before that time, text is gathered.
    quiet_until: Instant,
}

#[derive(Serialize)]
struct Stream<'a> {
    name: &'static str,
    text: &'a str,
}

impl Coalescer {
    /// A coalescer for the cell of this request.
    pub fn new(iopub: IoPub, parent: Parent) -> Self {
        Self {
            iopub,
            parent,
            name: StreamName::Stdout,
            pending: String::new(),
            quiet_until: Instant::now(),
        }
    }

    /// Takes text. Not cancel-safe: text of a dropped call may be missing. Waits while text comes faster than it may be published, which is the back-pressure.
    pub async fn push(&mut self, name: StreamName, text: &str) {
        if name != self.name {
            self.flush().await;
            self.name = name;
        }
        let mut rest = text;
        while self.pending.len() + rest.len() >= PIECE {
            let cut = rest.floor_char_boundary(PIECE - self.pending.len());
            if self.pending.is_empty() {
                self.publish(&rest[..cut]).await;
            } else {
                self.pending.push_str(&rest[..cut]);
                self.flush().await;
            }
            rest = &rest[cut..];
        }
        if rest.is_empty() {
            return;
        }
        self.pending.push_str(rest);
        self.flush_due().await;
    }

    /// When [`Self::flush_due`] must be called: nothing else brings out what is pending.
    pub fn due(&self) -> Option<Instant> {
        (!self.pending.is_empty()).then_some(self.quiet_until)
    }

    /// Publishes what is due.
    pub async fn flush_due(&mut self) {
        if Instant::now() >= self.quiet_until {
            self.flush().await;
        }
    }

    /// Publishes everything: before any display, result, error or idle.
    pub async fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut text = std::mem::take(&mut self.pending);
        self.publish(&text).await;
        // The room is used again.
        text.clear();
        self.pending = text;
    }

    async fn publish(&mut self, text: &str) {
        self.iopub.pace(text.len()).await;
        let content = Stream {
            name: self.name.as_str(),
            text,
        };
        self.iopub.publish(&self.parent, "stream", &content).await;
        self.quiet_until = Instant::now() + INTERVAL;
    }
}
