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
use std::sync::{Arc, Mutex, PoisonError};

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
use crate::backend::{self, Backend, BackendError, Cell, ErrorName, EventReceiver, Outcome};
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
    state: Mutex<RunningState>,
}

#[derive(Debug, Default)]
struct RunningState {
    current: Option<CancellationToken>,
    closing: bool,
}

impl Running {
    /// Interrupts the cell that runs; harmless when none does.
    pub fn interrupt(&self) {
        if let Some(token) = &self.lock().current {
            token.cancel();
        }
    }

    /// Interrupts the cell that runs and lets no further one begin.
    pub fn close(&self) {
        self.lock().closing = true;
        self.interrupt();
    }

    /// A token for the next cell, or `None` when no cell may begin any more.
    fn begin(&self) -> Option<CancellationToken> {
        let mut state = self.lock();
        if state.closing {
            return None;
        }
        let token = CancellationToken::new();
        state.current = Some(token.clone());
        Some(token)
    }

    fn end(&self) {
        self.lock().current = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RunningState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
enum Queue {
    Continues,
    /// Abort those that asked to be aborted by an error: the cell was interrupted.
    AbortsWilling,
    AbortsAll,
}

impl<B: Backend> Executor<B> {
    /// Runs until the queue is closed.
    pub async fn run(self, mut queue: mpsc::UnboundedReceiver<Request>) {
        // Requests that were looked at while the queue was aborted, and go on.
        let mut kept = VecDeque::new();
        loop {
            let next = match kept.pop_front() {
                Some(request) => Some(request),
                None => queue.recv().await,
            };
            let Some(request) = next else {
                return;
            };
            let (verdict, behind) = self.serve(&request, &queue).await;
            if verdict == Queue::Continues {
                continue;
            }
            // What came after the reply was sent in knowledge of it, and runs.
            for _ in 0..behind {
                kept.extend(queue.try_recv());
            }
            for queued in std::mem::take(&mut kept) {
                if verdict == Queue::AbortsAll || stops_on_error(&queued) {
                    self.abort(&queued).await;
                } else {
                    kept.push_back(queued);
                }
            }
        }
    }

    /// Serves a request. Returns what becomes of the queue, and how many requests stood in it when the reply went out.
    async fn serve(
        &self,
        request: &Request,
        queue: &mpsc::UnboundedReceiver<Request>,
    ) -> (Queue, usize) {
        let parent = request.parent();
        let work = async {
            match request.content::<ExecuteRequest>() {
                Ok(content) => self.execute(request, &content, queue).await,
                Err(error) => {
                    tracing::warn!(%error, "malformed execute_request");
                    let text = format!("This execute_request cannot be read: {error}");
                    self.reply(request, &failed("InvalidRequest", &text, 0), None)
                        .await;
                    (Queue::Continues, 0)
                }
            }
        };
        while_busy(&self.iopub, &parent, work)
            .await
            .unwrap_or_else(|| (Queue::AbortsAll, queue.len()))
    }

    async fn abort(&self, request: &Request) {
        let text = "Not run, because an earlier cell failed or was interrupted";
        let reply = failed("ExecutionAborted", text, 0);
        let work = self.reply(request, &reply, None);
        while_busy(&self.iopub, &request.parent(), work).await;
    }

    async fn execute(
        &self,
        request: &Request,
        content: &ExecuteRequest,
        queue: &mpsc::UnboundedReceiver<Request>,
    ) -> (Queue, usize) {
        let started = Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true);
        let expected = self.backend.next_execution_count();
        let Some(interrupt) = self.running.begin() else {
            let text = "Not run, because the kernel is shutting down";
            self.reply(request, &failed("ExecutionAborted", text, 0), None)
                .await;
            return (Queue::AbortsAll, queue.len());
        };
        if !content.silent {
            let input = json!({"code": content.code, "execution_count": expected});
            self.iopub
                .publish(&request.parent(), "execute_input", &input)
                .await;
        }
        if self.answered_here(content) {
            let reply = succeeded(expected.saturating_sub(1), Outcome::default());
            self.running.end();
            self.reply(request, &reply, Some(started)).await;
            return (Queue::Continues, 0);
        }
        let output = CellOutput::new(
            self.iopub.clone(),
            request.parent(),
            expected,
            content.silent,
        );
        let cell = Cell {
            code: content.code.clone(),
            store_history: content.counted(),
            silent: content.silent,
            allow_stdin: content.allow_stdin,
            user_expressions: content.user_expressions.clone().unwrap_or_default(),
            interrupt: interrupt.clone(),
        };
        let (result, output) = self.run_cell(cell, output).await;
        self.running.end();
        let reply = self.settle(content, expected, result, output).await;
        let verdict = verdict(content, &reply, interrupt.is_cancelled());
        let behind = queue.len();
        self.reply(request, &reply, Some(started)).await;
        (verdict, behind)
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

fn verdict(content: &ExecuteRequest, reply: &ExecuteReply, interrupted: bool) -> Queue {
    let Some(error) = &reply.error else {
        return Queue::Continues;
    };
    let lost = [ErrorName::ColabSessionLost, ErrorName::ColabRuntimeLost];
    if content.stop_on_error || lost.iter().any(|name| name.to_string() == error.ename) {
        Queue::AbortsAll
    } else if interrupted {
        Queue::AbortsWilling
    } else {
        Queue::Continues
    }
}

fn succeeded(expected: u32, outcome: Outcome) -> ExecuteReply {
    ExecuteReply {
        status: if outcome.exception.is_some() {
            "error"
        } else {
            "ok"
        },
        execution_count: outcome.execution_count.unwrap_or(expected),
        user_expressions: outcome.user_expressions,
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
        user_expressions: crate::backend::JsonMap::new(),
        payload: Vec::<Value>::new(),
        error: Some(error),
    }
}
