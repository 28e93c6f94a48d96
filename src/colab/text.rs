//! Publishing what a cell printed exactly once.
//!
//! Text is published as it comes. When a call is repeated to listen on, the service may send the cell's text again from its
//! beginning or go on where it was: new text is held while it is a prefix of what was published and no longer than that. More than
//! was published is a replay, something else is a continuation, and in the end the result settles. Invariants: no character is
//! added, dropped or changed; nothing is published twice.

use super::api::ExecuteCodeResult;
use super::mcp::Progress;
use super::progress::{Chunk, Decoder, Shape};
use super::reconcile::{Record, channel};
use crate::backend::{Event, EventSender, StreamName};

/// The published text of one cell. Without a sender nothing is shown, and nothing is remembered.
#[derive(Debug)]
pub struct Publisher {
    events: Option<EventSender>,
    decoder: Decoder,
    record: Record,
    replay: Option<Replay>,
    preface: Option<String>,
}

impl Publisher {
    /// A publisher for one cell. `shape`: what earlier cells told of the service's notifications.
    pub fn new(events: Option<EventSender>, shape: Shape) -> Self {
        Self {
            events,
            decoder: Decoder::new(shape),
            record: Record::default(),
            replay: None,
            preface: None,
        }
    }

    /// A line of ours that is said as soon as the cell is handed over.
    pub fn preface(&mut self, line: impl Into<String>) {
        self.preface = Some(line.into());
    }

    /// Whether that line is still to be said.
    pub fn has_preface(&self) -> bool {
        self.preface.is_some()
    }

    /// The cell is handed over.
    pub async fn submitted(&mut self) {
        self.send(Event::Submitted).await;
        if let Some(line) = self.preface.take() {
            self.say(&line).await;
        }
    }

    /// What is known of the service's notifications now.
    pub fn shape(&self) -> Shape {
        self.decoder.shape()
    }

    /// Whether any text was published.
    pub fn has_published(&self) -> bool {
        !self.record.is_empty()
    }

    /// How many bytes of each stream were published.
    pub(super) fn published(&self) -> [usize; 2] {
        [self.record.len(0), self.record.len(1)]
    }

    /// Publishes the text of a notification.
    pub async fn progress(&mut self, progress: Progress) {
        for chunk in self.decode(progress) {
            self.take(chunk).await;
        }
    }

    /// The text of a notification, unpublished.
    pub(super) fn decode(&mut self, progress: Progress) -> Vec<Chunk> {
        self.decoder.decode(progress)
    }

    /// The call is repeated: what comes next may have come before.
    pub fn reattach(&mut self) {
        self.replay = (!self.record.is_empty()).then(|| Replay::new(&self.record));
    }

    /// Publishes what the result has and progress had not.
    pub async fn settle(&mut self, result: &ExecuteCodeResult) {
        for chunk in self.decoder.settle(result) {
            self.take(chunk).await;
        }
        if self.events.is_none() {
            return;
        }
        let missing = self.record.missing(result, self.replay.is_some());
        self.publish(Chunk {
            stream: Some(StreamName::Stdout),
            text: missing.stdout,
        })
        .await;
        self.publish(Chunk {
            stream: Some(StreamName::Stderr),
            text: missing.stderr,
        })
        .await;
        if missing.lost {
            self.say(
                "Colab cut the text of this cell because it was too long; a part of it is missing",
            )
            .await;
        }
    }

    /// One line of ours on stderr.
    pub async fn say(&mut self, line: &str) {
        self.send(Event::Stream {
            name: StreamName::Stderr,
            text: format!("colab-kernel: {line}\n"),
        })
        .await;
    }

    /// Passes an event on.
    pub async fn send(&self, event: Event) {
        if let Some(events) = &self.events {
            events.send(event).await;
        }
    }

    /// Publishes text that may have been published before the call was repeated.
    pub(super) async fn take(&mut self, chunk: Chunk) {
        let Some(replay) = &mut self.replay else {
            return self.publish(chunk).await;
        };
        for chunk in replay.pass(chunk) {
            self.publish(chunk).await;
        }
    }

    /// Publishes text that is known to be new.
    pub(super) async fn publish(&mut self, chunk: Chunk) {
        if chunk.text.is_empty() || self.events.is_none() {
            return;
        }
        self.record.push(&chunk);
        self.send(Event::Stream {
            name: chunk.stream.unwrap_or(StreamName::Stdout),
            text: chunk.text,
        })
        .await;
    }
}

/// Tells text that comes again from text that goes on.
#[derive(Debug)]
struct Replay {
    /// What was published on each stream, as far as it is remembered, and how much it was.
    before: [(String, usize); 2],
    /// How much of it has come again.
    at: [usize; 2],
    held: Vec<Chunk>,
    verdict: Option<Verdict>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Replay,
    Continuation,
}

impl Replay {
    fn new(record: &Record) -> Self {
        Self {
            before: [0, 1].map(|channel| (record.head(channel), record.len(channel))),
            at: [0, 0],
            held: Vec::new(),
            verdict: None,
        }
    }

    /// What of this chunk, and of those held, is new.
    fn pass(&mut self, chunk: Chunk) -> Vec<Chunk> {
        if self.verdict == Some(Verdict::Continuation) {
            return vec![chunk];
        }
        let c = channel(chunk.stream);
        let (text, len) = &self.before[c];
        let (at, len) = (self.at[c], *len);
        if at >= text.len() && at < len {
            // Too much was published to remember all of it; a match this long is a replay.
            self.verdict = Some(Verdict::Replay);
            return self.skip(chunk, c, len - at);
        }
        let rest = &text[at.min(text.len())..];
        if rest.is_empty() {
            let all_came = (0..2).all(|c| self.at[c] >= self.before[c].1);
            return match self.verdict {
                Some(_) => vec![chunk],
                None if all_came || len > 0 => self.is_replay(chunk),
                None => self.is_continuation(chunk),
            };
        }
        if rest.starts_with(&chunk.text) {
            self.at[c] += chunk.text.len();
            if self.verdict.is_none() {
                self.held.push(chunk);
            }
            return Vec::new();
        }
        if chunk.text.starts_with(rest) {
            let seen = rest.len();
            if text.len() < len {
                self.verdict = Some(Verdict::Replay);
                return self.skip(chunk, c, len - at);
            }
            self.at[c] = len;
            let surplus = Chunk {
                text: chunk.text[seen..].to_owned(),
                ..chunk
            };
            return self.is_replay(surplus);
        }
        if self.verdict.is_some() {
            self.at[c] = len;
            return vec![chunk];
        }
        self.is_continuation(chunk)
    }

    fn is_replay(&mut self, chunk: Chunk) -> Vec<Chunk> {
        self.verdict = Some(Verdict::Replay);
        self.held.clear();
        vec![chunk]
    }

    fn is_continuation(&mut self, chunk: Chunk) -> Vec<Chunk> {
        self.verdict = Some(Verdict::Continuation);
        let mut chunks = std::mem::take(&mut self.held);
        chunks.push(chunk);
        chunks
    }

    /// Drops up to `count` bytes that have been published.
    fn skip(&mut self, chunk: Chunk, channel: usize, count: usize) -> Vec<Chunk> {
        self.held.clear();
        self.at[channel] += chunk.text.len().min(count);
        match chunk.text.get(count..) {
            Some(text) if !text.is_empty() => vec![Chunk {
                text: text.to_owned(),
                ..chunk
            }],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{EventReceiver, events};

    fn message(text: &str) -> Progress {
        Progress {
            message: Some(text.to_owned()),
            ..Progress::default()
        }
    }

    fn tagged(stream: &str, text: &str) -> Progress {
        let mut progress = message(text);
        progress.meta.insert("stream".into(), stream.into());
        progress
    }

    fn result(stdout: &str, stderr: &str) -> ExecuteCodeResult {
        ExecuteCodeResult {
            stdout: stdout.into(),
            stderr: stderr.into(),
            ..ExecuteCodeResult::default()
        }
    }

    fn publisher() -> (Publisher, EventReceiver) {
        let (sender, receiver) = events();
        (Publisher::new(Some(sender), Shape::Unknown), receiver)
    }

    fn shown(receiver: &mut EventReceiver) -> (String, String) {
        let mut shown = (String::new(), String::new());
        while let Some(event) = receiver.try_recv() {
            match event {
                Event::Stream {
                    name: StreamName::Stdout,
                    text,
                } => shown.0.push_str(&text),
                Event::Stream { text, .. } => shown.1.push_str(&text),
                other => panic!("unexpected {other:?}"),
            }
        }
        shown
    }

    #[tokio::test]
    async fn text_is_published_as_it_comes_and_once() {
        let (mut publisher, mut receiver) = publisher();
        publisher.progress(message("a\n")).await;
        assert_eq!(shown(&mut receiver).0, "a\n");
        publisher.progress(message("b")).await;
        publisher.settle(&result("a\nbc\n", "w\n")).await;
        assert_eq!(shown(&mut receiver), ("bc\n".into(), "w\n".into()));
    }

    #[tokio::test]
    async fn a_replay_is_held_until_it_is_longer() {
        let (mut publisher, mut receiver) = publisher();
        publisher.progress(message("one\ntwo\n")).await;
        shown(&mut receiver);
        publisher.reattach();
        publisher.progress(message("one\n")).await;
        publisher.progress(message("tw")).await;
        assert_eq!(shown(&mut receiver).0, "");
        publisher.progress(message("o\nthree\n")).await;
        assert_eq!(shown(&mut receiver).0, "three\n");
        publisher
            .settle(&result("one\ntwo\nthree\nfour\n", ""))
            .await;
        assert_eq!(shown(&mut receiver).0, "four\n");
    }

    #[tokio::test]
    async fn a_continuation_is_published_from_its_first_difference() {
        let (mut publisher, mut receiver) = publisher();
        publisher.progress(message("tick 1\ntick 2\n")).await;
        shown(&mut receiver);
        publisher.reattach();
        publisher.progress(message("tick ")).await;
        assert_eq!(shown(&mut receiver).0, "");
        publisher.progress(message("3\n")).await;
        assert_eq!(shown(&mut receiver).0, "tick 3\n");
        publisher
            .settle(&result("tick 1\ntick 2\ntick 3\n", ""))
            .await;
        assert_eq!(shown(&mut receiver), Default::default());
    }

    #[tokio::test]
    async fn a_continuation_that_repeats_the_beginning_is_settled_by_the_result() {
        let (mut publisher, mut receiver) = publisher();
        publisher.progress(message("tick\ntick\n")).await;
        publisher.reattach();
        publisher.progress(message("tick\n")).await;
        publisher.settle(&result("tick\ntick\ntick\n", "")).await;
        assert_eq!(shown(&mut receiver).0, "tick\ntick\ntick\n");
    }

    #[tokio::test]
    async fn a_replay_stream_by_stream_is_recognised() {
        let (mut publisher, mut receiver) = publisher();
        publisher.progress(tagged("stdout", "a\n")).await;
        publisher.progress(tagged("stderr", "w\n")).await;
        publisher.progress(tagged("stdout", "b\n")).await;
        shown(&mut receiver);
        publisher.reattach();
        publisher.progress(tagged("stdout", "a\nb\n")).await;
        publisher.progress(tagged("stderr", "w\nw2\n")).await;
        publisher.progress(tagged("stdout", "c\n")).await;
        assert_eq!(shown(&mut receiver), ("c\n".into(), "w2\n".into()));
        publisher.settle(&result("a\nb\nc\n", "w\nw2\n")).await;
        assert_eq!(shown(&mut receiver), Default::default());
    }

    #[tokio::test]
    async fn nothing_published_before_leaves_nothing_to_hold() {
        let (mut publisher, mut receiver) = publisher();
        publisher.reattach();
        publisher.progress(message("a\n")).await;
        assert_eq!(shown(&mut receiver).0, "a\n");
    }

    #[tokio::test]
    async fn lost_text_is_told_once() {
        let (mut publisher, mut receiver) = publisher();
        let cut = ExecuteCodeResult {
            output_truncated: true,
            ..result("begin", "")
        };
        publisher.settle(&cut).await;
        let (stdout, stderr) = shown(&mut receiver);
        assert_eq!(stdout, "begin");
        assert_eq!(stderr.matches("too long").count(), 1);
    }

    /// Whatever the chunks, the cut and the service's way to go on: each character is shown once.
    #[tokio::test]
    async fn random_reattaches_show_every_character_once() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut below = move |limit: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            usize::try_from(seed % limit as u64).unwrap()
        };
        for round in 0..500 {
            let chunks: Vec<String> = (0..=below(12))
                .map(|n| format!("{}{n}\r\n", ["tick", "é𝄞", "a\0"][below(3)]))
                .collect();
            let whole = chunks.concat();
            let cut = below(chunks.len() + 1);
            let from = if below(2) == 0 { 0 } else { cut };
            let until = from + below(chunks.len() - from + 1);
            let (mut publisher, mut receiver) = publisher();
            for chunk in &chunks[..cut] {
                publisher.progress(message(chunk)).await;
            }
            publisher.reattach();
            for chunk in &chunks[from..until] {
                publisher.progress(message(chunk)).await;
            }
            publisher.settle(&result(&whole, "")).await;
            assert_eq!(shown(&mut receiver).0, whole, "round {round}");
        }
    }
}
