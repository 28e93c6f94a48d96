//! One execution: what it has printed, how it ended, and who follows it.
//!
//! An execution belongs to its session and outlives the calls that follow it; a call that comes later with the same id
//! follows the same execution. Invariants:
//!
//! * The phases are passed in one direction: queued, running, ended. What has ended stays as it ended.
//! * A follower sees the printed text in order and the end after all of it.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::sync::watch;
use uuid::Uuid;

use super::errors::{Failure, locked};
use super::quirks::{Chunk, Reattach};

/// A piece of printed text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Printed {
    /// `stdout` or `stderr`
    pub stream: String,
    /// The text.
    pub text: String,
}

/// One execution.
pub(super) struct Execution {
    /// The caller's `executionId`; empty if there was none.
    pub id: String,
    /// The source.
    pub code: String,
    /// The message id of its `execute_request`.
    pub message_id: String,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    printed: Vec<Printed>,
    /// How many pieces some call has streamed.
    streamed: usize,
    end: Option<Result<Value, Failure>>,
    returned: bool,
}

#[derive(Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Queued,
    Running,
    Ended,
}

impl Execution {
    /// A queued execution.
    pub fn new(id: String, code: String) -> Self {
        Self {
            id,
            code,
            message_id: Uuid::new_v4().to_string(),
            state: Mutex::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// Begins a queued execution; false if it was aborted before that.
    pub fn begin(&self) -> bool {
        let mut state = locked(&self.state);
        let queued = state.phase == Phase::Queued;
        if queued {
            state.phase = Phase::Running;
        }
        queued
    }

    /// Ends it if it has not begun; says whether it did.
    pub fn abort_queued(&self, failure: Failure) -> bool {
        let mut state = locked(&self.state);
        let queued = state.phase == Phase::Queued;
        if queued {
            state.phase = Phase::Ended;
            state.end = Some(Err(failure));
        }
        drop(state);
        self.changes.send_replace(());
        queued
    }

    /// Adds printed text, cut as the quirk says.
    pub fn print(&self, stream: &str, text: &str, chunk: Chunk) {
        let mut state = locked(&self.state);
        for piece in cut(text, chunk) {
            state.printed.push(Printed {
                stream: stream.to_owned(),
                text: piece.to_owned(),
            });
        }
        drop(state);
        self.changes.send_replace(());
    }

    /// Everything printed to one stream.
    pub fn all_of(&self, stream: &str) -> String {
        let state = locked(&self.state);
        let pieces = state.printed.iter().filter(|piece| piece.stream == stream);
        pieces.map(|piece| piece.text.as_str()).collect()
    }

    /// Ends it, unless it has ended.
    pub fn end(&self, end: Result<Value, Failure>) {
        let mut state = locked(&self.state);
        if state.end.is_none() {
            state.phase = Phase::Ended;
            state.end = Some(end);
        }
        drop(state);
        self.changes.send_replace(());
    }

    /// Whether an identical call may still attach: not after the end has been returned once, and not to one that was
    /// aborted before it ran.
    pub fn is_open(&self) -> bool {
        !locked(&self.state).returned
    }

    /// Notes that its end has been handed to a caller.
    pub fn mark_returned(&self) {
        locked(&self.state).returned = true;
    }

    /// Follows it from where the quirk says.
    pub fn follow(self: &Arc<Self>, reattach: Reattach) -> Follower {
        let changes = self.changes.subscribe();
        let position = match reattach {
            Reattach::Continue => locked(&self.state).streamed,
            Reattach::Replay => 0,
        };
        Follower {
            execution: self.clone(),
            position,
            changes,
        }
    }
}

/// A call's view of an execution.
pub(super) struct Follower {
    execution: Arc<Execution>,
    position: usize,
    changes: watch::Receiver<()>,
}

/// What a follower sees next.
#[derive(Debug)]
pub(super) enum Step {
    /// Printed text, at least one piece.
    Printed(Vec<Printed>),
    /// The end.
    End(Result<Value, Failure>),
}

impl Follower {
    /// The execution.
    pub fn execution(&self) -> &Arc<Execution> {
        &self.execution
    }

    /// What comes next. May be cancelled; takes at most `limit` bytes of text at a time.
    pub async fn next(&mut self, limit: usize) -> Step {
        loop {
            self.changes.mark_unchanged();
            if let Some(step) = self.take(limit) {
                return step;
            }
            // The sender lives in the execution, which this holds.
            let _ = self.changes.changed().await;
        }
    }

    fn take(&mut self, limit: usize) -> Option<Step> {
        let mut state = locked(&self.execution.state);
        let mut bytes = 0;
        let mut pieces = Vec::new();
        for piece in &state.printed[self.position..] {
            if !pieces.is_empty() && bytes + piece.text.len() > limit {
                break;
            }
            bytes += piece.text.len();
            pieces.push(piece.clone());
        }
        if pieces.is_empty() {
            return state.end.clone().map(Step::End);
        }
        self.position += pieces.len();
        state.streamed = state.streamed.max(self.position);
        Some(Step::Printed(pieces))
    }
}

/// Cuts text without losing a character.
fn cut(text: &str, chunk: Chunk) -> Vec<&str> {
    match chunk {
        Chunk::AsIs => vec![text],
        Chunk::Line => text.split_inclusive('\n').collect(),
        Chunk::Bytes(size) => {
            let mut pieces = Vec::new();
            let mut rest = text;
            while !rest.is_empty() {
                let mut end = size.min(rest.len());
                while !rest.is_char_boundary(end) {
                    end += 1;
                }
                let (piece, after) = rest.split_at(end);
                pieces.push(piece);
                rest = after;
            }
            pieces
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::errors::Code;
    use super::*;

    #[test]
    fn cutting_keeps_every_character() {
        let text = "añ🦀b\r\n\nlast";
        for chunk in [Chunk::AsIs, Chunk::Line, Chunk::Bytes(1), Chunk::Bytes(3)] {
            assert_eq!(cut(text, chunk).concat(), text);
        }
        assert_eq!(cut("a\nb", Chunk::Line), ["a\n", "b"]);
        assert_eq!(cut("añb", Chunk::Bytes(1)), ["a", "ñ", "b"]);
    }

    #[tokio::test]
    async fn a_second_follower_continues_or_replays() {
        let execution = Arc::new(Execution::new(String::new(), String::new()));
        execution.print("stdout", "one", Chunk::AsIs);
        let mut first = execution.follow(Reattach::Continue);
        assert!(matches!(first.next(100).await, Step::Printed(pieces) if pieces[0].text == "one"));
        execution.print("stdout", "two", Chunk::AsIs);
        let mut second = execution.follow(Reattach::Continue);
        assert!(matches!(second.next(100).await, Step::Printed(pieces) if pieces[0].text == "two"));
        let mut third = execution.follow(Reattach::Replay);
        assert!(matches!(third.next(100).await, Step::Printed(pieces) if pieces.len() == 2));
        execution.end(Ok(Value::Null));
        assert!(matches!(third.next(100).await, Step::End(Ok(_))));
    }

    #[test]
    fn what_has_begun_is_not_aborted_and_what_was_aborted_does_not_begin() {
        let failure = || Failure::new(Code::Aborted, "ABORTED", "");
        let running = Execution::new(String::new(), String::new());
        assert!(running.begin() && !running.abort_queued(failure()));
        let queued = Execution::new(String::new(), String::new());
        assert!(queued.abort_queued(failure()) && !queued.begin());
    }
}
