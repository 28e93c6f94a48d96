//! What is answered at once, on shell and control alike, also while a cell runs; the rest goes into the queue.
//!
//! Cells and comm messages are the queue's, and questions to the remote kernel as long as there is one: they are served in the
//! order in which they were sent. Each request is surrounded by `busy` and `idle`, on control too, because clients wait for both.
//! A request of an unknown type is logged and dropped; one on which the kernel fails is answered with an error, and the next one
//! is served.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::history::keeper::Keeper;
use super::info::kernel_info;
use super::is_complete::{Completeness, is_complete};
use super::messages::{IsCompleteRequest, ShutdownRequest, error_reply, invalid};
use super::questions;
use super::queue::{Queued, Work};
use super::running::{Running, while_busy};
use crate::backend::Backend;
use crate::jupyter::connection::ConnectionInfo;
use crate::jupyter::iopub::IoPub;
use crate::jupyter::message::Request;
use crate::jupyter::sockets::{Inbox, Outbox};

/// Which socket a request came in on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// `shell`
    Shell,
    /// `control`
    Control,
}

/// What the answers are made of.
pub struct Responder<B> {
    /// What runs the cells.
    pub backend: Arc<B>,
    /// Where `busy` and `idle` go.
    pub iopub: IoPub,
    /// What has run.
    pub history: Keeper,
    /// What an interrupt stops.
    pub running: Arc<Running>,
    /// For `connect_request`.
    pub connection: ConnectionInfo,
    /// Where requests wait for their turn.
    pub queue: mpsc::UnboundedSender<Queued>,
    /// Told when the kernel has to stop.
    pub stop: mpsc::Sender<()>,
}

impl<B: Backend> Responder<B> {
    /// Serves one socket until it is closed.
    pub async fn serve(self: Arc<Self>, channel: Channel, mut inbox: Inbox, outbox: Outbox) {
        while let Some(request) = inbox.recv().await {
            match Work::of(request.msg_type()) {
                Some(work) if self.waits(work, channel) => {
                    let outbox = outbox.clone();
                    // The executor ends only with the process.
                    let _ = self.queue.send(Queued {
                        work,
                        request,
                        outbox,
                    });
                }
                None if request.msg_type() == "usage_request" => {
                    tokio::spawn(self.clone().usage(request, outbox.clone()));
                }
                _ => self.respond(channel, &outbox, &request).await,
            }
        }
    }

    /// Whether this is served in its turn. Where there is no session a question is answered at once: nobody will have another
    /// answer, and a cell that waits for a machine must not hold it back.
    fn waits(&self, work: Work, channel: Channel) -> bool {
        match work {
            Work::Cell => channel == Channel::Shell,
            Work::Comm => true,
            Work::Question(_) => self.backend.has_session(),
        }
    }

    async fn respond(&self, channel: Channel, outbox: &Outbox, request: &Request) {
        let msg_type = request.msg_type();
        if msg_type == "shutdown_request" {
            return self.shut_down(outbox, request).await;
        }
        let answer = AssertUnwindSafe(self.answer(request)).catch_unwind().await;
        let answer = answer.unwrap_or_else(|_| {
            let text = format!("The kernel failed while it served this {msg_type}");
            Some(error_reply("InternalError", &text))
        });
        let Some(content) = answer else {
            tracing::warn!(msg_type, ?channel, "unknown request dropped");
            return;
        };
        let reply = msg_type.replace("_request", "_reply");
        let work = outbox.reply(request, &reply, &content);
        while_busy(&self.iopub, &request.parent(), work).await;
    }

    /// What a request is answered with. `None`: it is of no type that is known.
    async fn answer(&self, request: &Request) -> Option<Value> {
        if let Some(Work::Question(question)) = Work::of(request.msg_type()) {
            return Some(questions::nothing(question, request));
        }
        Some(match request.msg_type() {
            "kernel_info_request" => kernel_info(),
            "connect_request" => self.ports(),
            "history_request" => self.history(request).await,
            "is_complete_request" => completeness(request),
            "interrupt_request" => {
                self.running.interrupt();
                json!({"status": "ok"})
            }
            _ => return None,
        })
    }

    /// Asks the remote kernel beside everything else: the answer may take its time.
    async fn usage(self: Arc<Self>, request: Request, outbox: Outbox) {
        while_busy(&self.iopub, &request.parent(), async {
            let content = questions::usage(&*self.backend, &request).await;
            outbox.reply(&request, "usage_reply", &content).await;
        })
        .await;
    }

    /// Replies, tells everybody on iopub as ipykernel does, and lets the kernel stop.
    async fn shut_down(&self, outbox: &Outbox, request: &Request) {
        let restart = request
            .content::<ShutdownRequest>()
            .is_ok_and(|content| content.restart);
        let parent = request.parent();
        while_busy(&self.iopub, &parent, async {
            let content = json!({"status": "ok", "restart": restart});
            outbox.reply(request, "shutdown_reply", &content).await;
            self.iopub
                .publish(&parent, "shutdown_reply", &content)
                .await;
        })
        .await;
        // A second request while the kernel is stopping changes nothing.
        let _ = self.stop.try_send(());
    }

    fn ports(&self) -> Value {
        json!({
            "status": "ok",
            "shell_port": self.connection.shell_port,
            "iopub_port": self.connection.iopub_port,
            "stdin_port": self.connection.stdin_port,
            "control_port": self.connection.control_port,
            "hb_port": self.connection.hb_port,
        })
    }

    async fn history(&self, request: &Request) -> Value {
        match request.content::<Value>() {
            Ok(content) => self.history.reply(&content).await,
            Err(error) => invalid(request, &error),
        }
    }
}

fn completeness(request: &Request) -> Value {
    let code = match request.content::<IsCompleteRequest>() {
        Ok(content) => content.code,
        Err(error) => return invalid(request, &error),
    };
    let verdict = is_complete(&code);
    match &verdict {
        Completeness::Incomplete { indent } => {
            json!({"status": verdict.status(), "indent": indent})
        }
        _ => json!({"status": verdict.status()}),
    }
}
