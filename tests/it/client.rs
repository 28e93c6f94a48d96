//! A Jupyter client for tests, on the `zeromq` crate, knowing nothing of the library's own wire code.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::time::timeout;
use zeromq::util::PeerIdentity;
use zeromq::{
    DealerSocket, ReqSocket, Socket, SocketOptions, SocketRecv, SocketSend, SubSocket, ZmqMessage,
};

/// How long any single answer may take.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A received message.
#[derive(Debug, Clone)]
pub struct Message {
    pub header: Value,
    pub parent: Value,
    pub metadata: Value,
    pub content: Value,
    pub buffers: Vec<Bytes>,
    /// The content as it came.
    pub raw: Bytes,
}

impl Message {
    pub fn msg_type(&self) -> &str {
        self.header["msg_type"].as_str().unwrap()
    }

    pub fn parent_id(&self) -> &str {
        self.parent["msg_id"].as_str().unwrap_or("")
    }
}

/// What came back for one request: its reply and the iopub messages up to `idle`.
#[derive(Debug)]
pub struct Answer {
    pub reply: Message,
    pub iopub: Vec<Message>,
}

impl Answer {
    /// The iopub messages between `busy` and `idle`, without `execute_input`.
    pub fn outputs(&self) -> Vec<&Message> {
        let noise = ["status", "execute_input"];
        self.iopub
            .iter()
            .filter(|m| !noise.contains(&m.msg_type()))
            .collect()
    }

    /// The text of one stream, joined.
    pub fn text(&self, name: &str) -> String {
        self.iopub
            .iter()
            .filter(|m| m.msg_type() == "stream" && m.content["name"] == name)
            .map(|m| m.content["text"].as_str().unwrap())
            .collect()
    }

    pub fn types(&self) -> Vec<&str> {
        self.iopub.iter().map(Message::msg_type).collect()
    }
}

/// A front-end connected to one kernel.
pub struct Client {
    pub shell: DealerSocket,
    pub control: DealerSocket,
    pub stdin: DealerSocket,
    pub heartbeat: ReqSocket,
    pub iopub: SubSocket,
    key: String,
    session: String,
    /// iopub messages that were read while waiting for others.
    pending: Vec<Message>,
}

/// A connection file with free ports, written into this directory.
pub fn connection_file(dir: &Path) -> std::path::PathBuf {
    let ports: Vec<_> = (0..5)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let port = |i: usize| ports[i].local_addr().unwrap().port();
    let info = json!({
        "transport": "tcp", "ip": "127.0.0.1", "key": "a-key-of-the-tests", "signature_scheme": "hmac-sha256",
        "shell_port": port(0), "iopub_port": port(1), "stdin_port": port(2), "control_port": port(3),
        "hb_port": port(4), "kernel_name": "colab",
    });
    let path = dir.join("connection.json");
    std::fs::write(&path, info.to_string()).unwrap();
    path
}

impl Client {
    /// Connects to the kernel of this connection file, waiting until it listens and until the subscription is confirmed.
    pub async fn connect(connection_file: &Path) -> Self {
        let info: Value = serde_json::from_slice(&std::fs::read(connection_file).unwrap()).unwrap();
        let endpoint = |name: &str| {
            let (transport, ip) = (
                info["transport"].as_str().unwrap_or("tcp"),
                info["ip"].as_str().unwrap(),
            );
            let separator = if transport == "ipc" { "-" } else { ":" };
            format!("{transport}://{ip}{separator}{}", info[name])
        };
        // As in jupyter_client: one identity on all sockets, by which a prompt finds the client of its cell.
        let identity = uuid::Uuid::new_v4().to_string();
        let dealer = || {
            let mut options = SocketOptions::default();
            options.peer_identity(PeerIdentity::try_from(identity.as_bytes()).unwrap());
            DealerSocket::with_options(options)
        };
        let mut client = Self {
            shell: dealer(),
            control: dealer(),
            stdin: dealer(),
            heartbeat: ReqSocket::new(),
            iopub: SubSocket::new(),
            key: info["key"].as_str().unwrap_or("").to_owned(),
            session: uuid::Uuid::new_v4().to_string(),
            pending: Vec::new(),
        };
        let iopub_port = endpoint("iopub_port");
        wait_until_listening(&info).await;
        client.shell.connect(&endpoint("shell_port")).await.unwrap();
        client
            .control
            .connect(&endpoint("control_port"))
            .await
            .unwrap();
        client.stdin.connect(&endpoint("stdin_port")).await.unwrap();
        client
            .heartbeat
            .connect(&endpoint("hb_port"))
            .await
            .unwrap();
        client.iopub.connect(&iopub_port).await.unwrap();
        client.iopub.subscribe("").await.unwrap();
        let welcome = client.next_iopub().await;
        assert_eq!(welcome.msg_type(), "iopub_welcome");
        client
    }

    /// A request, signed, as its frames.
    pub fn request(&self, msg_type: &str, content: &Value) -> (String, ZmqMessage) {
        self.message(msg_type, content, &json!({}), &[])
    }

    /// A message with this parent and these buffers, signed, as its frames.
    pub fn message(
        &self,
        msg_type: &str,
        content: &Value,
        parent: &Value,
        buffers: &[&'static [u8]],
    ) -> (String, ZmqMessage) {
        let msg_id = uuid::Uuid::new_v4().to_string();
        let header = json!({
            "msg_id": msg_id, "msg_type": msg_type, "session": self.session, "username": "tester",
            "date": chrono::Utc::now().to_rfc3339(), "version": "5.5",
        });
        let parts = [
            header.to_string(),
            parent.to_string(),
            "{}".into(),
            content.to_string(),
        ];
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_bytes()).unwrap();
        for part in &parts {
            mac.update(part.as_bytes());
        }
        let signature: String = mac
            .finalize()
            .into_bytes()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let mut frames = vec![Bytes::from_static(b"<IDS|MSG>"), signature.into()];
        frames.extend(parts.map(Bytes::from));
        frames.extend(buffers.iter().map(|buffer| Bytes::from_static(buffer)));
        (msg_id, ZmqMessage::try_from(frames).unwrap())
    }

    /// Sends a request on shell and returns its id.
    pub async fn send(&mut self, msg_type: &str, content: &Value) -> String {
        let (id, frames) = self.request(msg_type, content);
        self.shell.send(frames).await.unwrap();
        id
    }

    /// Sends a request on control and returns its id.
    pub async fn send_control(&mut self, msg_type: &str, content: &Value) -> String {
        let (id, frames) = self.request(msg_type, content);
        self.control.send(frames).await.unwrap();
        id
    }

    /// The next prompt on stdin.
    pub async fn prompt(&mut self) -> Message {
        let frames = timeout(LIMIT, self.stdin.recv()).await;
        let prompt = decode(frames.expect("no prompt in time").unwrap());
        assert_eq!(prompt.msg_type(), "input_request");
        prompt
    }

    /// Answers a prompt, with this parent.
    pub async fn answer_prompt(&mut self, value: &str, parent: &Value) {
        let (_, frames) = self.message("input_reply", &json!({"value": value}), parent, &[]);
        self.stdin.send(frames).await.unwrap();
    }

    /// The next reply on shell.
    pub async fn reply(&mut self) -> Message {
        let frames = timeout(LIMIT, self.shell.recv()).await;
        decode(frames.expect("no shell reply in time").unwrap())
    }

    /// The next reply on control.
    pub async fn control_reply(&mut self) -> Message {
        let frames = timeout(LIMIT, self.control.recv()).await;
        decode(frames.expect("no control reply in time").unwrap())
    }

    /// The next message on iopub.
    pub async fn next_iopub(&mut self) -> Message {
        let frames = timeout(LIMIT, self.iopub.recv()).await;
        decode(frames.expect("no iopub message in time").unwrap())
    }

    /// The iopub messages with this parent, up to `idle`; others are kept for later calls.
    pub async fn until_idle(&mut self, parent: &str) -> Vec<Message> {
        let mut found = Vec::new();
        let mut rest = Vec::new();
        let mut waiting = std::mem::take(&mut self.pending).into_iter();
        loop {
            let message = match waiting.next() {
                Some(message) => message,
                None => self.next_iopub().await,
            };
            if message.parent_id() != parent {
                rest.push(message);
                continue;
            }
            let idle =
                message.msg_type() == "status" && message.content["execution_state"] == "idle";
            found.push(message);
            if idle {
                rest.extend(waiting);
                self.pending = rest;
                return found;
            }
        }
    }

    /// Waits for the first iopub message of this type with this parent; those before it are kept.
    pub async fn until(&mut self, parent: &str, msg_type: &str) -> Message {
        let known = |m: &Message| m.parent_id() == parent && m.msg_type() == msg_type;
        if let Some(message) = self.pending.iter().find(|m| known(m)) {
            return message.clone();
        }
        loop {
            let message = self.next_iopub().await;
            self.pending.push(message.clone());
            if known(&message) {
                return message;
            }
        }
    }

    /// Sends a shell request and waits for its reply and its `idle`.
    pub async fn ask(&mut self, msg_type: &str, content: &Value) -> Answer {
        let id = self.send(msg_type, content).await;
        self.answer(&id).await
    }

    /// The reply and the iopub messages of a shell request; replies come in the order of the requests.
    pub async fn answer(&mut self, id: &str) -> Answer {
        let reply = self.reply().await;
        assert_eq!(reply.parent_id(), id, "replies out of order");
        let iopub = self.until_idle(id).await;
        Answer { reply, iopub }
    }

    /// Runs a cell as JupyterLab does.
    pub async fn run(&mut self, code: &str) -> Answer {
        self.ask("execute_request", &execute(code)).await
    }
}

/// The content of a counted `execute_request`.
pub fn execute(code: &str) -> Value {
    json!({"code": code, "silent": false, "store_history": true, "user_expressions": {}, "allow_stdin": true,
           "stop_on_error": true})
}

async fn wait_until_listening(info: &Value) {
    if info["transport"] == "ipc" {
        return;
    }
    let address = format!("{}:{}", info["ip"].as_str().unwrap(), info["hb_port"]);
    let listening = async {
        while tokio::net::TcpStream::connect(&address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, listening)
        .await
        .expect("the kernel does not listen");
}

fn decode(message: ZmqMessage) -> Message {
    let frames = message.into_vec();
    let at = frames
        .iter()
        .position(|frame| frame.as_ref() == b"<IDS|MSG>")
        .expect("no delimiter");
    let part = |i: usize| serde_json::from_slice::<Value>(&frames[at + 1 + i]).unwrap();
    Message {
        header: part(1),
        parent: part(2),
        metadata: part(3),
        content: part(4),
        buffers: frames[at + 6..].to_vec(),
        raw: frames[at + 5].clone(),
    }
}
