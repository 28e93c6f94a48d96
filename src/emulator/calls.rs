//! An `execute_code` call in flight: it follows an execution until its end, its deadline or its cancellation.
//!
//! Invariants:
//!
//! * A call is found by its JSON-RPC id as long as it is in flight, and not after.
//! * What cancels it interrupts the kernel once: a stream that is closed after a cancellation is not a second one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::errors::{Code, Failure, locked};
use super::executions::{Execution, Follower, Printed, Step};
use super::quirks::{CancelBy, CancelledEnd, Quirks};
use super::sessions::{Session, cancelled_failure};

/// How much text one step takes.
const STEP_BYTES: usize = 256 * 1024;

/// Who called and with which JSON-RPC id: account, MCP session (empty where there is none), id as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CallKey {
    pub account: String,
    pub mcp_session: String,
    pub id: String,
}

/// The calls in flight.
#[derive(Default)]
pub(super) struct Calls(Mutex<HashMap<CallKey, Entry>>);

#[derive(Clone)]
struct Entry {
    session: Arc<Session>,
    execution: Arc<Execution>,
    cancelled: CancellationToken,
}

impl Calls {
    /// Cancels the call of this key, if it is in flight. The kernel is interrupted.
    pub fn cancel(&self, key: &CallKey) {
        let entry = locked(&self.0).get(key).cloned();
        let Some(entry) = entry else { return };
        if !entry.cancelled.is_cancelled() {
            entry.cancelled.cancel();
            entry.session.interrupt(&entry.execution);
        }
    }
}

/// A call in flight. Dropping it before its end is its caller's disconnection.
pub(super) struct Call {
    calls: Arc<Calls>,
    key: CallKey,
    quirks: Arc<Quirks>,
    session: Arc<Session>,
    follower: Follower,
    cancelled: CancellationToken,
    deadline: Instant,
    /// Whether nothing can cancel it any more.
    over: bool,
}

/// What a call does next.
pub(super) enum CallStep {
    /// Its execution printed.
    Printed(Vec<Printed>),
    /// It ended.
    End(Result<Value, Failure>),
}

impl Call {
    /// Puts a call in flight.
    pub fn new(
        calls: &Arc<Calls>,
        key: CallKey,
        quirks: &Arc<Quirks>,
        session: Arc<Session>,
        follower: Follower,
    ) -> Self {
        let cancelled = CancellationToken::new();
        let entry = Entry {
            session: session.clone(),
            execution: follower.execution().clone(),
            cancelled: cancelled.clone(),
        };
        locked(&calls.0).insert(key.clone(), entry);
        Self {
            calls: calls.clone(),
            key,
            quirks: quirks.clone(),
            session,
            follower,
            cancelled,
            deadline: Instant::now() + quirks.deadline,
            over: false,
        }
    }

    /// What it does next. May be cancelled.
    pub async fn step(&mut self) -> CallStep {
        loop {
            tokio::select! {
                biased;
                () = self.cancelled.cancelled(), if !self.over => {
                    self.over = true;
                    if self.quirks.cancelled == CancelledEnd::Error {
                        return CallStep::End(Err(cancelled_failure()));
                    }
                }
                () = never(), if self.over && self.quirks.cancelled == CancelledEnd::None => {}
                step = self.follower.next(STEP_BYTES), if !self.is_silenced() => match step {
                    Step::Printed(pieces) => return CallStep::Printed(pieces),
                    Step::End(end) => {
                        self.over = true;
                        self.follower.execution().mark_returned();
                        return CallStep::End(end);
                    }
                },
                () = sleep_until(self.deadline), if !self.is_silenced() => {
                    self.over = true;
                    return CallStep::End(Err(self.miss_deadline()));
                }
            }
        }
    }

    fn is_silenced(&self) -> bool {
        self.over && self.quirks.cancelled == CancelledEnd::None
    }

    /// The code runs on; code that has not begun is taken from the queue, and an identical call queues it again.
    fn miss_deadline(&self) -> Failure {
        let failure = Failure::new(
            Code::DeadlineExceeded,
            "DEADLINE_EXCEEDED",
            "The call outlived its streaming deadline; the code may still be running",
        );
        let execution = self.follower.execution();
        if execution.abort_queued(failure.clone()) {
            execution.mark_returned();
        }
        failure
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut calls = locked(&self.calls.0);
        // Another call may have come with the same id since.
        let own = |entry: &Entry| Arc::ptr_eq(&entry.execution, self.follower.execution());
        if calls.get(&self.key).is_some_and(own) {
            calls.remove(&self.key);
        }
        drop(calls);
        let counts = self.quirks.cancel != CancelBy::Notification;
        if !self.over && counts && !self.cancelled.is_cancelled() {
            self.session.interrupt(self.follower.execution());
        }
    }
}

async fn never() {
    std::future::pending().await
}
