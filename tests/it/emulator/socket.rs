//! A raw client of a kernel's WebSocket, in both of its protocols.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::lab::{Connection, Lab, fresh, uuid};

/// The protocol with binary frames.
pub const V1: &str = "v1.kernel.websocket.jupyter.org";

/// An open WebSocket of a kernel.
pub struct Socket {
    pub stream: WebSocketStream<TcpStream>,
    /// The protocol that the server chose.
    pub protocol: Option<String>,
    pub session: String,
    /// Whether the end was announced by a close frame.
    pub closed_properly: bool,
}

/// A message of the kernel.
#[derive(Debug, Clone)]
pub struct Heard {
    pub channel: String,
    pub kind: String,
    pub parent: String,
    /// The session of the parent's sender.
    pub session: Value,
    pub metadata: Value,
    pub content: Value,
    pub buffers: Vec<Vec<u8>>,
}

/// How to open one.
#[derive(Default)]
pub struct Opening<'a> {
    pub protocol: Option<&'a str>,
    pub origin: Option<&'a str>,
    /// Instead of the token in the header.
    pub query: Option<&'a str>,
}

impl Opening<'_> {
    pub async fn open(self, connection: &Connection, kernel: &str) -> Result<Socket, Error> {
        let session = uuid();
        let base = connection.url.replace("http://", "ws://");
        let query = self.query.map(|query| format!("&{query}"));
        let url = format!(
            "{base}/api/kernels/{kernel}/channels?session_id={session}{}",
            query.unwrap_or_default()
        );
        let mut request = url.into_client_request()?;
        let headers = request.headers_mut();
        let text = |text: &str| HeaderValue::from_str(text).unwrap();
        if self.query.is_none() {
            headers.insert("x-colab-runtime-proxy-token", text(&connection.token));
        }
        if let Some(protocol) = self.protocol {
            headers.insert("sec-websocket-protocol", text(protocol));
        }
        if let Some(origin) = self.origin {
            headers.insert("origin", text(origin));
        }
        let address = connection.url.trim_start_matches("http://");
        let tcp = TcpStream::connect(address).await.unwrap();
        let config = WebSocketConfig::default()
            .max_message_size(None)
            .max_frame_size(None);
        let (stream, response) =
            tokio_tungstenite::client_async_with_config(request, tcp, Some(config)).await?;
        let protocol = response.headers().get("sec-websocket-protocol");
        Ok(Socket {
            stream,
            protocol: protocol.map(|value| value.to_str().unwrap().to_owned()),
            session,
            closed_properly: false,
        })
    }
}

/// The status with which an upgrade was refused.
pub fn refused(opened: Result<Socket, Error>) -> u16 {
    match opened.map(|_| ()) {
        Err(Error::Http(response)) => response.status().as_u16(),
        other => panic!("not refused: {other:?}"),
    }
}

/// The kernel of a session, as it tells itself: a server may not list it.
pub async fn kernel_of(lab: &Lab, session: &str) -> String {
    let code = "import ipykernel; print(ipykernel.get_connection_file())";
    let result = lab.execute(session, code).await.unwrap();
    let file = result["stdout"].as_str().unwrap().trim_end();
    let (_, name) = file.rsplit_once("kernel-").unwrap();
    name.trim_end_matches(".json").to_owned()
}

/// A new session and a WebSocket of its kernel.
pub async fn attach(lab: &Lab, runtime: &str, protocol: Option<&str>) -> (String, Socket) {
    let session = fresh(runtime);
    let kernel = kernel_of(lab, &session).await;
    let opening = Opening {
        protocol,
        ..Opening::default()
    };
    let opened = opening.open(&lab.connection(runtime).await, &kernel).await;
    (session, opened.unwrap())
}

impl Socket {
    /// Sends a request; its id.
    pub async fn request(&mut self, channel: &str, kind: &str, content: Value) -> String {
        self.send(channel, kind, content, &[]).await
    }

    pub async fn execute(&mut self, code: &str) -> String {
        let content = json!({"code": code, "silent": false, "store_history": true, "allow_stdin": true, "stop_on_error": false});
        self.request("shell", "execute_request", content).await
    }

    pub async fn send(
        &mut self,
        channel: &str,
        kind: &str,
        content: Value,
        buffers: &[&[u8]],
    ) -> String {
        let id = uuid();
        let header = json!({"msg_id": id, "msg_type": kind, "session": self.session, "username": "t", "date": "2026-01-01T00:00:00Z", "version": "5.3"});
        let message = if self.protocol.is_some() {
            let text = [
                channel.to_owned(),
                header.to_string(),
                "{}".to_owned(),
                "{}".to_owned(),
                content.to_string(),
            ];
            let mut parts: Vec<&[u8]> = text.iter().map(|part| part.as_bytes()).collect();
            parts.extend(buffers);
            let mut offsets = vec![8 * (parts.len() as u64 + 2)];
            for part in &parts {
                offsets.push(offsets.last().unwrap() + part.len() as u64);
            }
            let mut bytes = (offsets.len() as u64).to_le_bytes().to_vec();
            bytes.extend(offsets.iter().flat_map(|offset| offset.to_le_bytes()));
            bytes.extend(parts.concat());
            Message::binary(bytes)
        } else {
            assert!(buffers.is_empty());
            let message = json!({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": channel});
            Message::text(message.to_string())
        };
        self.stream.send(message).await.unwrap();
        id
    }

    /// The next message; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<Heard> {
        loop {
            match self.stream.next().await? {
                Ok(Message::Text(text)) => {
                    let message: Value = serde_json::from_str(&text).unwrap();
                    return Some(Heard::of(&message, Vec::new()));
                }
                Ok(Message::Binary(bytes)) => return Some(self.unpack(&bytes)),
                Ok(Message::Close(_)) => {
                    self.closed_properly = true;
                    return None;
                }
                Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    fn unpack(&self, bytes: &[u8]) -> Heard {
        if self.protocol.is_some() {
            let word = |at: usize| {
                u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap()) as usize
            };
            let part = |n: usize| &bytes[word(n + 1)..word(n + 2)];
            let json = |n: usize| serde_json::from_slice::<Value>(part(n)).unwrap();
            let channel = std::str::from_utf8(part(0)).unwrap();
            let message = json!({"channel": channel, "header": json(1), "parent_header": json(2), "metadata": json(3), "content": json(4)});
            let buffers = (5..word(0) - 1).map(|n| part(n).to_vec());
            return Heard::of(&message, buffers.collect());
        }
        let word =
            |at: usize| u32::from_be_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap()) as usize;
        let count = word(0);
        let end = |n: usize| {
            if n + 1 < count {
                word(n + 2)
            } else {
                bytes.len()
            }
        };
        let part = |n: usize| &bytes[word(n + 1)..end(n)];
        let message = serde_json::from_slice(part(0)).unwrap();
        Heard::of(&message, (1..count).map(|n| part(n).to_vec()).collect())
    }

    /// Everything up to the idle of a request, and its reply, in the order of arrival.
    pub async fn until_done(&mut self, id: &str) -> Vec<Heard> {
        let mut heard = Vec::new();
        let (mut idle, mut replied) = (false, false);
        while !(idle && replied) {
            let message = self.next().await.expect("the connection ended");
            if message.parent == id {
                idle |= message.content["execution_state"] == "idle";
                replied |= message.channel == "shell" || message.channel == "control";
            }
            heard.push(message);
        }
        heard
    }

    /// Runs code; what came under it.
    pub async fn run(&mut self, code: &str) -> Vec<Heard> {
        let id = self.execute(code).await;
        let mut heard = self.until_done(&id).await;
        heard.retain(|message| message.parent == id);
        heard
    }

    /// Waits for a message of this type.
    pub async fn until(&mut self, kind: &str) -> Heard {
        loop {
            let message = self.next().await.expect("the connection ended");
            if message.kind == kind {
                return message;
            }
        }
    }

    /// Waits for a status of the kernel.
    pub async fn until_state(&mut self, state: &str) {
        while self.until("status").await.content["execution_state"] != state {}
    }

    /// Whether nothing comes within a moment.
    pub async fn is_silent(&mut self, moment: Duration) -> bool {
        tokio::time::timeout(moment, self.stream.next())
            .await
            .is_err()
    }
}

impl Heard {
    fn of(message: &Value, buffers: Vec<Vec<u8>>) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            channel: text(&message["channel"]),
            kind: text(&message["header"]["msg_type"]),
            parent: text(&message["parent_header"]["msg_id"]),
            session: message["parent_header"]["session"].clone(),
            metadata: message["metadata"].clone(),
            content: message["content"].clone(),
            buffers,
        }
    }
}

/// The text of all stream messages.
pub fn printed(heard: &[Heard]) -> String {
    let streams = heard.iter().filter(|message| message.kind == "stream");
    streams
        .map(|message| message.content["text"].as_str().unwrap())
        .collect()
}
