//! A kernel that repeats what it is told.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use colab_kernel::jupyter::{
    ConnectionInfo, Inbox, IoPub, OutMessage, Outbox, Request, Scheme, SecretKey, Session,
    SocketGuard, Sockets, Transport,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

pub const KEY: &str = "a key for tests";

pub struct Parrot {
    pub info: ConnectionInfo,
    pub session: Arc<Session>,
    pub iopub: IoPub,
    pub shell_out: Outbox,
    pub stdin_out: Outbox,
    pub guard: SocketGuard,
    /// What came in on shell, control and stdin.
    pub heard: mpsc::UnboundedReceiver<Request>,
    _directory: tempfile::TempDir,
}

/// The five ports, by name.
pub const SOCKETS: [&str; 5] = ["shell", "control", "stdin", "iopub", "heartbeat"];

impl Parrot {
    pub async fn start(transport: Transport) -> Self {
        Self::start_with_key(transport, KEY).await
    }

    /// One that signs nothing: for much text, which an unoptimised HMAC would slow down.
    pub async fn start_unsigned() -> Self {
        Self::start_with_key(Transport::Tcp, "").await
    }

    pub async fn start_with_key(transport: Transport, key: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ip = match transport {
            Transport::Tcp => "127.0.0.1".to_owned(),
            Transport::Ipc => directory.path().join("k").display().to_string(),
        };
        let ports = free_ports();
        let info = ConnectionInfo {
            transport,
            ip,
            shell_port: ports[0],
            control_port: ports[1],
            stdin_port: ports[2],
            iopub_port: ports[3],
            hb_port: ports[4],
            key: SecretKey::new(key),
            signature_scheme: Scheme::HmacSha256,
            kernel_name: None,
        };
        let session = Arc::new(Session::new(&info));
        let sockets = Sockets::bind(&info, session.clone()).await.unwrap();
        let (heard_sender, heard) = mpsc::unbounded_channel();
        let iopub = sockets.iopub;
        let repeat = |inbox, outbox| {
            tokio::spawn(repeat(inbox, outbox, iopub.clone(), heard_sender.clone()));
        };
        repeat(sockets.shell, sockets.shell_out.clone());
        repeat(sockets.control, sockets.control_out);
        tokio::spawn(listen(sockets.stdin, heard_sender.clone()));
        Self {
            info,
            session,
            iopub,
            shell_out: sockets.shell_out,
            stdin_out: sockets.stdin_out,
            guard: sockets.guard,
            heard,
            _directory: directory,
        }
    }

    pub fn port(&self, socket: &str) -> u16 {
        match socket {
            "shell" => self.info.shell_port,
            "control" => self.info.control_port,
            "stdin" => self.info.stdin_port,
            "iopub" => self.info.iopub_port,
            _ => self.info.hb_port,
        }
    }

    pub fn endpoint(&self, socket: &str) -> String {
        let port = self.port(socket);
        match self.info.transport {
            Transport::Tcp => format!("tcp://{}:{port}", self.info.ip),
            Transport::Ipc => format!("ipc://{}-{port}", self.info.ip),
        }
    }
}

/// Answers everything. A `size` in the content asks for a reply with as many characters.
async fn repeat(
    mut inbox: Inbox,
    outbox: Outbox,
    iopub: IoPub,
    heard: mpsc::UnboundedSender<Request>,
) {
    while let Some(request) = inbox.recv().await {
        let parent = request.parent();
        iopub
            .publish(&parent, "status", &json!({"execution_state": "busy"}))
            .await;
        let content: Value = request.content().unwrap();
        let size = content.get("size").and_then(Value::as_u64).unwrap_or(0);
        let mut reply = OutMessage::new(
            request.msg_type().replace("_request", "_reply"),
            &parent,
            &json!({"status": "ok", "told": content, "filler": "x".repeat(size as usize)}),
        );
        reply.buffers = request.buffers.clone();
        outbox.send(request.identities.clone(), reply).await;
        iopub
            .publish(&parent, "status", &json!({"execution_state": "idle"}))
            .await;
        let _ = heard.send(request);
    }
}

async fn listen(mut inbox: Inbox, heard: mpsc::UnboundedSender<Request>) {
    while let Some(request) = inbox.recv().await {
        let _ = heard.send(request);
    }
}

fn free_ports() -> Vec<u16> {
    // Held at once so that they differ.
    let listeners: Vec<_> = (0..5)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap().port())
        .collect()
}

/// Waits until the condition holds.
pub async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
