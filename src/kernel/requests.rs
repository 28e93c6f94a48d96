//! Every request but `execute_request`, on shell and control alike.
//!
//! All of them are answered at once, also while a cell runs: none of them needs the remote side. Each is surrounded by
//! `busy` and `idle`, on control too, because clients wait for both. A request of an unknown type is logged and dropped; one on
//! which the kernel fails is answered with an error, and the next one is served.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::execute::{Running, while_busy};
use super::history::keeper::Keeper;
use super::info::kernel_info;
use super::is_complete::{Completeness, is_complete};
use super::messages::{CommOpen, CursorRequest, IsCompleteRequest, ShutdownRequest, error_reply};
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

/// What goes out between `busy` and `idle`.
enum Answer {
    Reply(Value),
    /// `comm_close`: there is nothing that this comm could talk to.
    CloseComm(String),
    Nothing,
}

/// What the answers are made of.
pub struct Responder {
    /// Where `busy` and `idle` go.
    pub iopub: IoPub,
    /// What has run.
    pub history: Keeper,
    /// What an interrupt stops.
    pub running: Arc<Running>,
    /// For `connect_request`.
    pub connection: ConnectionInfo,
    /// Where cells wait.
    pub cells: mpsc::UnboundedSender<Request>,
    /// Told when the kernel has to stop.
    pub stop: mpsc::Sender<()>,
}

impl Responder {
    /// Serves one socket until it is closed.
    pub async fn serve(self: Arc<Self>, channel: Channel, mut inbox: Inbox, outbox: Outbox) {
        while let Some(request) = inbox.recv().await {
            if request.msg_type() == "execute_request" && channel == Channel::Shell {
                // The executor ends only with the process.
                let _ = self.cells.send(request);
                continue;
            }
            self.respond(channel, &outbox, &request).await;
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
            Some(Answer::Reply(error_reply("InternalError", &text)))
        });
        let Some(answer) = answer else {
            tracing::warn!(msg_type, ?channel, "unknown request dropped");
            return;
        };
        let parent = request.parent();
        while_busy(&self.iopub, &parent, async {
            match answer {
                Answer::Reply(content) => {
                    let reply = msg_type.replace("_request", "_reply");
                    outbox.reply(request, &reply, &content).await;
                }
                Answer::CloseComm(comm_id) => {
                    let content = json!({"comm_id": comm_id, "data": {}});
                    self.iopub.publish(&parent, "comm_close", &content).await;
                }
                Answer::Nothing => {}
            }
        })
        .await;
    }

    /// What a request is answered with. `None`: it is of no type that is known.
    async fn answer(&self, request: &Request) -> Option<Answer> {
        let content = match request.msg_type() {
            "kernel_info_request" => kernel_info(),
            "connect_request" => self.ports(),
            "comm_info_request" => json!({"status": "ok", "comms": {}}),
            "history_request" => self.history(request).await,
            "is_complete_request" => completeness(request),
            "complete_request" => no_completions(request),
            "inspect_request" => {
                json!({"status": "ok", "found": false, "data": {}, "metadata": {}})
            }
            "interrupt_request" => {
                self.running.interrupt();
                json!({"status": "ok"})
            }
            "comm_open" => return Some(refused_comm(request)),
            // The front-end has been told that no comm is open; what it sends all the same has nowhere to go.
            "comm_msg" | "comm_close" => return Some(Answer::Nothing),
            _ => return None,
        };
        Some(Answer::Reply(content))
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

fn refused_comm(request: &Request) -> Answer {
    match request.content::<CommOpen>() {
        Ok(CommOpen { comm_id }) => Answer::CloseComm(comm_id),
        Err(error) => {
            tracing::warn!(%error, "malformed comm_open");
            Answer::Nothing
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

fn no_completions(request: &Request) -> Value {
    match request.content::<CursorRequest>() {
        Ok(content) => {
            let cursor = content
                .cursor_pos
                .unwrap_or_else(|| content.code.chars().count());
            json!({"status": "ok", "matches": [], "cursor_start": cursor, "cursor_end": cursor, "metadata": {}})
        }
        Err(error) => invalid(request, &error),
    }
}

fn invalid(request: &Request, error: &serde_json::Error) -> Value {
    let msg_type = request.msg_type();
    tracing::warn!(%error, msg_type, "malformed request");
    error_reply(
        "InvalidRequest",
        &format!("This {msg_type} cannot be read: {error}"),
    )
}
