//! A scripted kernel behind a Jupyter server, with the bootstrap in it, for unit tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::ws::{self, WebSocket, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::routing::{any, get};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite;

use super::super::api::ConnectionInfo;
use super::journal::digest;
use super::wire::{self, Channel, Message, Protocol};

const V1: &str = "v1.kernel.websocket.jupyter.org";
/// The kernel's id at its server.
pub const KERNEL: &str = "k-1";

/// The kernel. Its fields are what a test changes and looks at.
#[derive(Default)]
pub struct Kernel {
    /// The id of the journal; empty: there is no bootstrap yet.
    pub journal: String,
    /// Whether live messages are dropped on their way.
    pub muted: bool,
    /// Whether no connection is accepted.
    pub closed: bool,
    /// Whether requests on the shell channel are neither run nor answered.
    pub deaf: bool,
    /// The types of all requests.
    pub asked: Vec<String>,
    /// The open prompts.
    pub inputs: Vec<Value>,
    /// The names of the sessions that have this kernel.
    pub sessions: Vec<String>,
    messages: BTreeMap<u64, Message>,
    first: u64,
    last: u64,
    table: Vec<Value>,
    count: u32,
    socket: Option<mpsc::UnboundedSender<Message>>,
}

#[derive(Clone, Default)]
pub struct FakeKernel(Arc<Mutex<Kernel>>);

/// A request that the kernel runs.
pub struct Request(Bytes);

impl Request {
    pub fn header(&self) -> &[u8] {
        &self.0
    }
}

impl FakeKernel {
    /// Starts to serve. Returns the kernel and the address of its server.
    pub async fn serve() -> (Self, ConnectionInfo) {
        let kernel = Self::default();
        kernel.with(|kernel| kernel.first = 1);
        let (own, listed) = (kernel.clone(), kernel.clone());
        let accept = move |upgrade: WebSocketUpgrade| async move {
            if own.with(|kernel| kernel.closed) {
                return StatusCode::SERVICE_UNAVAILABLE.into_response();
            }
            upgrade
                .protocols([V1])
                .on_upgrade(move |socket| connection(own, socket))
        };
        let sessions = move || async move {
            let names = listed.with(|kernel| kernel.sessions.clone());
            let sessions = names.iter().map(|name| {
                json!({"id": "s", "name": name, "path": name, "type": "notebook", "kernel": {"id": KERNEL}})
            });
            axum::Json(sessions.collect::<Vec<_>>())
        };
        let router = Router::new()
            .route("/base/api/kernels/{kernel}/channels", any(accept))
            .route("/base/api/sessions", get(sessions));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/base", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let info = ConnectionInfo {
            token: "s3cret".into(),
            expire_time: String::new(),
            url,
        };
        (kernel, info)
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut Kernel) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    /// Cuts the connection, and lets no other come.
    pub fn cut(&self) {
        self.with(|kernel| {
            kernel.closed = true;
            kernel.socket = None;
        });
    }

    pub fn mute(&self, muted: bool) {
        self.with(|kernel| kernel.muted = muted);
    }

    /// Begins to run code for a client of this session.
    pub fn begin(&self, code: &str, session: &str) -> Request {
        let request = Message::new(Channel::Shell, session, "execute_request", &json!({}));
        let id = request.id().unwrap();
        self.with(|kernel| {
            kernel.publish(
                "status",
                &request.header,
                json!({"execution_state": "busy"}),
            );
            kernel.count += 1;
            let content = json!({"code": code, "execution_count": kernel.count});
            let first = kernel.publish("execute_input", &request.header, content);
            kernel.table.push(json!({
                "cell": id, "session": session, "code": digest(code), "count": kernel.count,
                "first": first, "last": null, "status": null, "ename": null,
            }));
        });
        Request(request.header)
    }

    pub fn print(&self, request: &Request, text: &str) {
        self.publish(request, "stream", json!({"name": "stdout", "text": text}));
    }

    pub fn publish(&self, request: &Request, kind: &str, content: Value) {
        self.with(|kernel| kernel.publish(kind, &request.0, content));
    }

    /// Ends what runs, with this reply.
    pub fn end(&self, request: &Request, reply: Value) {
        let header: Value = serde_json::from_slice(&request.0).unwrap();
        let id = header["msg_id"].clone();
        self.with(|kernel| {
            let status = reply["status"].clone();
            let content = json!({"cell": id, "reply": reply});
            kernel.publish("ck_execute_reply", b"{}", content);
            let idle = json!({"execution_state": "idle"});
            let last = kernel.publish("status", &request.0, idle);
            for entry in kernel.table.iter_mut().filter(|entry| entry["cell"] == id) {
                entry["last"] = last.into();
                entry["status"] = status.clone();
            }
        });
    }

    /// Forgets what the journal has so far.
    pub fn evict(&self) {
        self.with(|kernel| {
            kernel.messages.clear();
            kernel.first = kernel.last + 1;
        });
    }
}

impl Kernel {
    pub fn times_asked(&self, kind: &str) -> usize {
        self.asked.iter().filter(|asked| *asked == kind).count()
    }

    /// Sends a message of the server's own.
    pub fn notice(&self, kind: &str, content: Value) {
        self.send(Message::new(Channel::IoPub, "server", kind, &content));
    }

    fn publish(&mut self, kind: &str, parent: &[u8], content: Value) -> u64 {
        let mut message = Message::new(Channel::IoPub, "kernel", kind, &content);
        message.parent_header = Bytes::copy_from_slice(parent);
        if !self.journal.is_empty() {
            self.last += 1;
            let metadata = json!({"ck": {"n": self.last, "journal": self.journal}});
            message.metadata = metadata.to_string().into();
            self.messages.insert(self.last, message.clone());
        }
        if !self.muted {
            self.send(message);
        }
        self.last
    }

    fn send(&self, message: Message) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(message);
        }
    }

    fn take(&mut self, request: &Message) {
        let kind = request.head().unwrap().msg_type;
        self.asked.push(kind.clone());
        if self.deaf && request.channel == Channel::Shell {
            return;
        }
        let status = |state: &str| json!({"execution_state": state});
        self.publish("status", &request.header, status("busy"));
        if let Some((content, buffers)) = self.answer(&kind, &request.content().unwrap()) {
            let kind = kind.replace("_request", "_reply");
            let mut reply = Message::new(request.channel, "kernel", &kind, &content);
            reply.parent_header = request.header.clone();
            reply.buffers = buffers;
            self.send(reply);
        }
        self.publish("status", &request.header, status("idle"));
    }

    fn answer(&mut self, kind: &str, content: &Value) -> Option<(Value, Vec<Bytes>)> {
        match kind {
            "execute_request" => {
                if self.journal.is_empty() {
                    self.journal = "journal-1".into();
                }
                return Some((json!({"status": "ok", "execution_count": 0}), Vec::new()));
            }
            "kernel_info_request" | "interrupt_request" => {
                return Some((json!({"status": "ok"}), Vec::new()));
            }
            _ if self.journal.is_empty() => return None,
            _ => {}
        }
        if content.get("journal").is_some_and(|id| *id != self.journal) {
            let refusal = json!({"status": "error", "journal": self.journal, "evalue": "another"});
            return Some((refusal, Vec::new()));
        }
        let number = |name: &str| content[name].as_u64();
        let acknowledged = number("ack").unwrap_or(0);
        self.messages.retain(|n, _| *n > acknowledged);
        self.first = self.first.max(acknowledged + 1);
        let mut reply = json!({
            "status": "ok", "journal": self.journal, "first": self.first, "last": self.last, "numbering": "thread",
        });
        let mut buffers = Vec::new();
        match kind {
            "ck_status_request" => {
                let since = number("since").unwrap_or(0);
                let is_told = |entry: &&Value| entry["last"].as_u64().is_none_or(|n| n >= since);
                reply["requests"] = self.table.iter().filter(is_told).cloned().collect();
                reply["inputs"] = self.inputs.clone().into();
            }
            "ck_replay_request" => {
                let (from, to) = (number("from")?, number("to")?);
                let mut index = Vec::new();
                for (n, message) in self.messages.range(from..=to) {
                    let frames = [
                        &message.header,
                        &message.parent_header,
                        &message.metadata,
                        &message.content,
                    ];
                    index.push(json!([n, 4]));
                    buffers.extend(frames.into_iter().cloned());
                }
                reply["messages"] = index.into();
            }
            _ => {}
        }
        Some((reply, buffers))
    }
}

async fn connection(kernel: FakeKernel, mut socket: WebSocket) {
    let (sender, mut outgoing) = mpsc::unbounded_channel();
    kernel.with(|kernel| kernel.socket = Some(sender));
    loop {
        tokio::select! {
            message = outgoing.recv() => {
                // `None`: it was cut.
                let Some(message) = message else { return };
                let frame = wire::encode(Protocol::V1, &message).unwrap().into_data();
                if socket.send(ws::Message::Binary(frame)).await.is_err() {
                    return;
                }
            }
            frame = socket.recv() => match frame {
                Some(Ok(ws::Message::Binary(frame))) => {
                    let frame = tungstenite::Message::Binary(frame);
                    let request = wire::decode(Protocol::V1, frame).unwrap();
                    kernel.with(|kernel| kernel.take(&request));
                }
                Some(Ok(_)) => {}
                _ => return,
            },
        }
    }
}
