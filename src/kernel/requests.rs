//! Every request but `execute_request`, on shell and control alike.
//!
//! All of them are answered at once, also while a cell runs: none of them needs the remote side. Each is surrounded by
//! `busy` and `idle`, on control too, because clients wait for both. A request of an unknown type is logged and dropped.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::execute::{Running, while_busy};
use super::history::keeper::Keeper;
use super::info::{PythonVersion, kernel_info};
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

/// What the answers are made of.
pub struct Responder {
    /// Where `busy` and `idle` go.
    pub iopub: IoPub,
    /// What has run.
    pub history: Keeper,
    /// What an interrupt stops.
    pub running: Arc<Running>,
    /// The remote Python's version.
    pub python: PythonVersion,
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
        let parent = request.parent();
        let answer = match request.msg_type() {
            "kernel_info_request" => {
                Some(("kernel_info_reply", kernel_info(&self.python.last_seen())))
            }
            "connect_request" => Some(("connect_reply", self.ports())),
            "comm_info_request" => Some(("comm_info_reply", json!({"status": "ok", "comms": {}}))),
            "history_request" => Some(("history_reply", self.history(request).await)),
            "is_complete_request" => Some(("is_complete_reply", completeness(request))),
            "complete_request" => Some(("complete_reply", no_completions(request))),
            "inspect_request" => Some((
                "inspect_reply",
                json!({"status": "ok", "found": false, "data": {}, "metadata": {}}),
            )),
            "interrupt_request" => {
                self.running.interrupt();
                Some(("interrupt_reply", json!({"status": "ok"})))
            }
            "shutdown_request" => return self.shut_down(outbox, request).await,
            "comm_open" => return self.refuse_comm(request).await,
            // The front-end has been told that no comm is open; what it sends all the same has nowhere to go.
            "comm_msg" | "comm_close" => None,
            unknown => {
                tracing::warn!(msg_type = unknown, ?channel, "unknown request dropped");
                return;
            }
        };
        while_busy(&self.iopub, &parent, async {
            if let Some((msg_type, content)) = answer {
                outbox.reply(request, msg_type, &content).await;
            }
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

    async fn refuse_comm(&self, request: &Request) {
        let parent = request.parent();
        while_busy(&self.iopub, &parent, async {
            match request.content::<CommOpen>() {
                Ok(CommOpen { comm_id }) => {
                    let content = json!({"comm_id": comm_id, "data": {}});
                    self.iopub.publish(&parent, "comm_close", &content).await;
                }
                Err(error) => tracing::warn!(%error, "malformed comm_open"),
            }
        })
        .await;
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
