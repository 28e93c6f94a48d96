//! What serves the queue, and the life of a cell.
//!
//! One task owns the queue and serves one request at a time. For a cell: `busy`, `execute_input`, the cell's output,
//! `execute_reply`, `idle`. Comm messages (`comm.rs`) and questions (`questions.rs`) are served between cells. Invariants:
//!
//! * `idle` is published on every path, last, also when a handler panics.
//! * A cell that ends in an error aborts what is queued behind it at that moment, if it asked for that; the loss of the
//!   session aborts it in any case, because the code behind relies on variables that are gone.
//! * Aborted cells are answered with `status: error`: the `aborted` of older kernels is deprecated by the messaging spec
//!   and refused by strict clients.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use chrono::{SecondsFormat, Utc};
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::comm::Comms;
use super::frontends::{self, EarlyCode};
use super::history::keeper::Keeper;
use super::messages::{ErrorContent, ExecuteReply, ExecuteRequest};
use super::output::Output;
use super::publish::publish_all;
use super::questions;
use super::queue::{Queue, Queued, Verdict, Work};
use super::running::{Running, while_busy};
use super::stdin::{Asker, Stdin};
use crate::backend::{self, Backend, BackendError, Cell, ErrorName, JsonMap, Origin, Outcome};
use crate::jupyter::iopub::IoPub;
use crate::jupyter::message::{OutMessage, Request};

/// Serves the queue, one request at a time.
pub struct Executor<B> {
    /// Where cells run.
    pub backend: Arc<B>,
    /// Where their output goes.
    pub iopub: IoPub,
    /// Who asks the user for input.
    pub stdin: Stdin,
    /// What widgets say.
    pub comms: Arc<Comms>,
    /// What has run.
    pub history: Keeper,
    /// What an interrupt stops.
    pub running: Arc<Running>,
}

impl<B: Backend> Executor<B> {
    /// Runs until the kernel is closing, and then answers what has not run.
    pub async fn run(self, mut queue: Queue) {
        loop {
            let next = tokio::select! {
                biased;
                () = self.running.closed() => break,
                next = queue.next() => next,
            };
            let Some(queued) = next else {
                return;
            };
            self.serve(&queued, &mut queue).await;
        }
        for queued in queue.take_all() {
            self.dismiss(&queued).await;
        }
    }

    async fn serve(&self, queued: &Queued, queue: &mut Queue) {
        // Before `busy`: whoever has seen that may interrupt.
        let interrupt = self.running.begin();
        let request = &queued.request;
        match queued.work {
            Work::Cell => return self.serve_cell(queued, &interrupt, queue).await,
            Work::Comm => {
                let work = async {
                    self.comm(request, &interrupt).await;
                    self.running.end();
                };
                while_busy(&self.iopub, &request.parent(), work).await;
            }
            Work::Question(question) => {
                let work = async {
                    let content = self.answer(question, request, &interrupt).await;
                    self.running.end();
                    let reply = request.msg_type().replace("_request", "_reply");
                    queued.outbox.reply(request, &reply, &content).await;
                };
                while_busy(&self.iopub, &request.parent(), work).await;
            }
        }
        // Also after a panic.
        self.running.end();
    }

    async fn serve_cell(&self, queued: &Queued, interrupt: &CancellationToken, queue: &mut Queue) {
        let started = Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true);
        let request = &queued.request;
        let mut aborted = VecDeque::new();
        let work = async {
            let run = AssertUnwindSafe(self.execute(request, interrupt)).catch_unwind();
            let (reply, verdict) = run.await.unwrap_or_else(|_| {
                let text = "The kernel failed while it served this cell";
                (failed("InternalError", text, 0), Verdict::AbortAll)
            });
            self.running.end();
            // Before the reply: what a client sends after it has read that is not queued behind this cell.
            aborted = queue.take(verdict);
            reply_to(queued, &reply, Some(started)).await;
        };
        while_busy(&self.iopub, &request.parent(), work).await;
        for queued in aborted {
            let why = "Not run, because an earlier cell failed or was interrupted";
            self.abort(&queued, why).await;
        }
    }

    async fn abort(&self, queued: &Queued, why: &str) {
        let reply = failed("ExecutionAborted", why, 0);
        let work = reply_to(queued, &reply, None);
        while_busy(&self.iopub, &queued.request.parent(), work).await;
    }

    /// Answers what will not be served any more.
    async fn dismiss(&self, queued: &Queued) {
        let request = &queued.request;
        match queued.work {
            Work::Cell => {
                let why = "Not run, because the kernel is shutting down";
                self.abort(queued, why).await;
            }
            // Its comm ends with the process.
            Work::Comm => {
                while_busy(&self.iopub, &request.parent(), async {}).await;
            }
            Work::Question(question) => {
                let content = questions::nothing(question, request);
                let reply = request.msg_type().replace("_request", "_reply");
                let work = queued.outbox.reply(request, &reply, &content);
                while_busy(&self.iopub, &request.parent(), work).await;
            }
        }
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
        if !content.counted() && frontends::is_of_vs_code(&content.code) {
            self.comms.is_vs_code();
        }
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
        let output = self.output_of(request, &content, expected);
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

    fn output_of(&self, request: &Request, content: &ExecuteRequest, expected: u32) -> Output {
        let comms = Arc::clone(&self.comms);
        let output = Output::new(self.iopub.clone(), comms, request.parent(), expected);
        let stdin = self.stdin.clone();
        let output = output.asking(Asker::new(stdin, request.clone(), content.allow_stdin));
        if content.silent {
            output.without_notices()
        } else {
            output
        }
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
        mut output: Output,
    ) -> (Result<Outcome, BackendError>, Output) {
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
        mut output: Output,
    ) -> ExecuteReply {
        output.finish().await;
        let reply = match result {
            Ok(outcome) => succeeded(expected, outcome),
            Err(error) => {
                let reply = failed(&error.name.to_string(), &error.message, expected);
                if let Some(content) = &reply.error {
                    output.error(content).await;
                }
                if is_loss(&error.name.to_string()) {
                    self.close_comms(&mut output).await;
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
}

async fn reply_to(queued: &Queued, reply: &ExecuteReply, started: Option<String>) {
    let request = &queued.request;
    let mut message = OutMessage::new("execute_reply", &request.parent(), reply);
    if let Some(started) = started {
        // JupyterLab shows a cell's execution time by this.
        message.metadata.insert("started".into(), started.into());
    }
    let identities = request.identities.clone();
    queued.outbox.send(identities, message).await;
}

fn verdict(content: &ExecuteRequest, reply: &ExecuteReply, interrupted: bool) -> Verdict {
    let Some(error) = &reply.error else {
        return Verdict::Continue;
    };
    if content.stop_on_error || is_loss(&error.ename) {
        Verdict::AbortAll
    } else if interrupted {
        Verdict::AbortWilling
    } else {
        Verdict::Continue
    }
}

/// Whether the session is gone, and with it everything that the code behind relies on.
fn is_loss(ename: &str) -> bool {
    let lost = [ErrorName::ColabSessionLost, ErrorName::ColabRuntimeLost];
    lost.iter().any(|name| name.to_string() == ename)
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
