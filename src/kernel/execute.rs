//! The queue of cells and the life of one.
//!
//! One task owns the queue and runs one cell at a time: `busy`, `execute_input`, the cell's output, `execute_reply`, `idle`.
//! Invariants:
//!
//! * `idle` is published on every path, last, also when a handler panics.
//! * A cell that ends in an error aborts what is queued behind it at that moment, if it asked for that; the loss of the
//!   session aborts it in any case, because the code behind relies on variables that are gone.
//! * Aborted cells are answered with `status: error`: the `aborted` of older kernels is deprecated by the messaging spec
//!   and refused by strict clients.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{SecondsFormat, Utc};
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::frontends::{self, EarlyCode};
use super::history::keeper::Keeper;
use super::messages::{ErrorContent, ExecuteReply, ExecuteRequest};
use super::output::CellOutput;
use crate::backend::{
    self, Backend, BackendError, Cell, ErrorName, EventReceiver, JsonMap, Origin, Outcome,
};
use crate::jupyter::iopub::IoPub;
use crate::jupyter::message::{OutMessage, Parent, Request};
use crate::jupyter::sockets::Outbox;

/// Publishes `busy`, awaits the work, publishes `idle`: on every path, a panic included.
pub async fn while_busy<T>(
    iopub: &IoPub,
    parent: &Parent,
    work: impl Future<Output = T>,
) -> Option<T> {
    let status = |state: &str| json!({"execution_state": state});
    iopub.publish(parent, "status", &status("busy")).await;
    let result = AssertUnwindSafe(work).catch_unwind().await;
    iopub.publish(parent, "status", &status("idle")).await;
    result.ok()
}

/// The cell that runs now, as far as an interrupt needs to know it.
#[derive(Debug, Default)]
pub struct Running {
    current: Mutex<Option<CancellationToken>>,
    closing: CancellationToken,
}

impl Running {
    /// Interrupts the cell that runs; harmless when none does.
    pub fn interrupt(&self) {
        if let Some(token) = &*self.current() {
            token.cancel();
        }
    }

    /// Interrupts the cell that runs and lets no further one begin.
    pub fn close(&self) {
        self.closing.cancel();
        self.interrupt();
    }

    /// A token for the next cell. After [`Self::close`] it is cancelled from the start.
    fn begin(&self) -> CancellationToken {
        let token = self.closing.child_token();
        *self.current() = Some(token.clone());
        token
    }

    fn end(&self) {
        *self.current() = None;
    }

    fn current(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the cells, one at a time, in the order of their arrival.
pub struct Executor<B> {
    /// Where they run.
    pub backend: Arc<B>,
    /// Where their output goes.
    pub iopub: IoPub,
    /// Where their replies go.
    pub shell: Outbox,
    /// What has run.
    pub history: Keeper,
    /// What an interrupt stops.
    pub running: Arc<Running>,
}

/// What a finished cell means for those behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Continue,
    /// Abort those that asked to be aborted by an error: the cell was interrupted.
    AbortWilling,
    AbortAll,
}

/// The requests that wait for their turn.
struct Queue {
    incoming: mpsc::UnboundedReceiver<Request>,
    /// Requests that were looked at when an earlier cell failed, and go on.
    kept: VecDeque<Request>,
}

impl Queue {
    async fn next(&mut self) -> Option<Request> {
        match self.kept.pop_front() {
            Some(request) => Some(request),
            None => self.incoming.recv().await,
        }
    }

    /// Takes out what waits at this moment and is to be aborted.
    fn take(&mut self, verdict: Verdict) -> VecDeque<Request> {
        if verdict == Verdict::Continue {
            return VecDeque::new();
        }
        while let Ok(queued) = self.incoming.try_recv() {
            self.kept.push_back(queued);
        }
        let all = std::mem::take(&mut self.kept);
        let (aborted, kept) = all
            .into_iter()
            .partition(|queued| verdict == Verdict::AbortAll || stops_on_error(queued));
        self.kept = kept;
        aborted
    }
}

impl<B: Backend> Executor<B> {
    /// Runs until the kernel is closing, and then answers what has not run.
    pub async fn run(self, incoming: mpsc::UnboundedReceiver<Request>) {
        let mut queue = Queue {
            incoming,
            kept: VecDeque::new(),
        };
        loop {
            let next = tokio::select! {
                biased;
                () = self.running.closing.cancelled() => break,
                next = queue.next() => next,
            };
            let Some(request) = next else {
                return;
            };
            self.serve(&request, &mut queue).await;
        }
        for request in queue.take(Verdict::AbortAll) {
            self.abort(&request, "Not run, because the kernel is shutting down")
                .await;
        }
    }

    async fn serve(&self, request: &Request, queue: &mut Queue) {
        // Before `busy`: whoever has seen that may interrupt.
        let interrupt = self.running.begin();
        let started = Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true);
        let mut aborted = VecDeque::new();
        let work = async {
            let run = AssertUnwindSafe(self.execute(request, &interrupt)).catch_unwind();
            let (reply, verdict) = run.await.unwrap_or_else(|_| {
                let text = "The kernel failed while it served this cell";
                (failed("InternalError", text, 0), Verdict::AbortAll)
            });
            self.running.end();
            // Before the reply: what a client sends after it has read that is not queued behind this cell.
            aborted = queue.take(verdict);
            self.reply(request, &reply, Some(started)).await;
        };
        while_busy(&self.iopub, &request.parent(), work).await;
        for queued in aborted {
            self.abort(
                &queued,
                "Not run, because an earlier cell failed or was interrupted",
            )
            .await;
        }
    }

    async fn abort(&self, request: &Request, why: &str) {
        let reply = failed("ExecutionAborted", why, 0);
        let work = self.reply(request, &reply, None);
        while_busy(&self.iopub, &request.parent(), work).await;
    }

    async fn execute(
        &self,
        request: &Request,
        interrupt: &CancellationToken,
    ) -> (ExecuteReply, Verdict) {
        let content = match request.content::<ExecuteRequest>() {
            Ok(content) => content,
            Err(error) => {
                tracing::warn!(%error, "malformed execute_request");
                let text = format!("This execute_request cannot be read: {error}");
                return (failed("InvalidRequest", &text, 0), Verdict::Continue);
            }
        };
        let expected = self.backend.next_execution_count();
        if !content.silent {
            let input = json!({"code": content.code, "execution_count": expected});
            self.iopub
                .publish(&request.parent(), "execute_input", &input)
                .await;
        }
        if self.answered_here(&content) {
            let reply = succeeded(expected.saturating_sub(1), Outcome::default());
            return (reply, Verdict::Continue);
        }
        let output = CellOutput::new(
            self.iopub.clone(),
            request.parent(),
            expected,
            content.silent,
        );
        let cell = Cell {
            origin: Origin::new(request.parent().as_bytes().clone()),
            code: content.code.clone(),
            store_history: content.counted(),
            silent: content.silent,
            allow_stdin: content.allow_stdin,
            user_expressions: content.user_expressions.clone(),
            interrupt: interrupt.clone(),
        };
        let (result, output) = self.run_cell(cell, output).await;
        let reply = self.settle(&content, expected, result, output).await;
        let verdict = verdict(&content, &reply, interrupt.is_cancelled());
        (reply, verdict)
    }

    /// Whether the code needs no session: nothing to run, or set-up code that is kept for the session to come. Opening a
    /// notebook must not start a machine, and front-ends send such code when they open one.
    fn answered_here(&self, content: &ExecuteRequest) -> bool {
        if content.code.trim().is_empty() {
            return true;
        }
        if content.counted() || self.backend.has_session() {
            return false;
        }
        match frontends::early_code(&content.code) {
            EarlyCode::Setup if !content.silent => self.backend.keep_setup(content.code.clone()),
            EarlyCode::TooLarge => tracing::warn!(
                bytes = content.code.len(),
                "set-up code is too large to be kept for the session"
            ),
            EarlyCode::Setup | EarlyCode::Probe | EarlyCode::BackgroundWrapper => {}
        }
        true
    }

    async fn run_cell(
        &self,
        cell: Cell,
        mut output: CellOutput,
    ) -> (Result<Outcome, BackendError>, CellOutput) {
        let (sender, mut events) = backend::events();
        let backend = Arc::clone(&self.backend);
        // A task of its own, so that the backend goes on (and can be interrupted) while a slow subscriber holds back output.
        let cell = tokio::spawn(async move { backend.execute(cell, sender).await });
        publish_all(&mut output, &mut events).await;
        let result = cell.await.unwrap_or_else(|error| {
            tracing::error!(%error, "the backend failed");
            let text = "The kernel failed while it ran this cell; run it with COLAB_KERNEL_LOG=debug to learn more";
            Err(BackendError::new(ErrorName::ColabProtocolError, text))
        });
        (result, output)
    }

    /// Publishes what is left of the output and makes the reply.
    async fn settle(
        &self,
        content: &ExecuteRequest,
        expected: u32,
        result: Result<Outcome, BackendError>,
        mut output: CellOutput,
    ) -> ExecuteReply {
        output.finish().await;
        let reply = match result {
            Ok(outcome) => succeeded(expected, outcome),
            Err(error) => {
                let reply = failed(&error.name.to_string(), &error.message, expected);
                if let Some(error) = &reply.error {
                    output.error(error).await;
                }
                reply
            }
        };
        if content.counted() {
            self.history
                .push(reply.execution_count, &content.code, output.result());
        }
        reply
    }

    async fn reply(&self, request: &Request, reply: &ExecuteReply, started: Option<String>) {
        let mut message = OutMessage::new("execute_reply", &request.parent(), reply);
        if let Some(started) = started {
            // JupyterLab shows a cell's execution time by this.
            message.metadata.insert("started".into(), started.into());
        }
        self.shell.send(request.identities.clone(), message).await;
    }
}

/// Publishes a cell's events until the backend has sent its last one.
async fn publish_all(output: &mut CellOutput, events: &mut EventReceiver) {
    loop {
        let due = output.due();
        let timer = sleep_until(due.unwrap_or_else(Instant::now));
        tokio::select! {
            biased;
            () = timer, if due.is_some() => output.publish_due().await,
            event = events.recv() => match event {
                Some(event) => output.event(event).await,
                None => return,
            },
        }
    }
}

fn stops_on_error(request: &Request) -> bool {
    request
        .content::<ExecuteRequest>()
        .is_ok_and(|content| content.stop_on_error)
}

fn verdict(content: &ExecuteRequest, reply: &ExecuteReply, interrupted: bool) -> Verdict {
    let Some(error) = &reply.error else {
        return Verdict::Continue;
    };
    let lost = [ErrorName::ColabSessionLost, ErrorName::ColabRuntimeLost];
    if content.stop_on_error || lost.iter().any(|name| name.to_string() == error.ename) {
        Verdict::AbortAll
    } else if interrupted {
        Verdict::AbortWilling
    } else {
        Verdict::Continue
    }
}

fn succeeded(expected: u32, outcome: Outcome) -> ExecuteReply {
    let failed = outcome.exception.is_some();
    ExecuteReply {
        status: if failed { "error" } else { "ok" },
        execution_count: outcome.execution_count.unwrap_or(expected),
        // As in ipykernel, they are those of a cell that succeeded.
        user_expressions: if failed {
            JsonMap::new()
        } else {
            outcome.user_expressions
        },
        payload: outcome.payload,
        error: outcome.exception.map(Into::into),
    }
}

fn failed(ename: &str, evalue: &str, execution_count: u32) -> ExecuteReply {
    let error = ErrorContent {
        ename: ename.to_owned(),
        evalue: evalue.to_owned(),
        traceback: vec![format!("\u{1b}[0;31m{ename}\u{1b}[0m: {evalue}")],
    };
    ExecuteReply {
        status: "error",
        execution_count,
        user_expressions: JsonMap::new(),
        payload: Vec::<Value>::new(),
        error: Some(error),
    }
}
