//! A Jupyter client of one kernel, over the ports of its connection file: what the service uses to run code.
//!
//! It reads both sockets as fast as they deliver, without limits, so that the kernel's own queue (1000 messages) does not
//! overflow while a slow MCP client is served. Invariants:
//!
//! * Every message of both sockets arrives, in the order of its socket; the end of either is [`Arrival::Lost`].
//! * A client that is connected is subscribed: the kernel has been heard on iopub before [`KernelClient::connect`] returns.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::zmtp;

const DELIMITER: &[u8] = b"<IDS|MSG>";

/// How often a kernel that is starting is tried.
const RETRY: Duration = Duration::from_millis(40);

/// How long a kernel has to be heard on iopub before it is asked again: the subscription may have come too late.
const HEARD: Duration = Duration::from_millis(300);

/// A connected client.
pub(super) struct KernelClient {
    shell: zmtp::Writer,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    key: String,
    session: String,
    readers: [AbortHandle; 2],
    connected: Arc<AtomicBool>,
    /// An unread SUB writer would close its half of the connection.
    _subscription: zmtp::Writer,
}

/// What came from the kernel.
#[derive(Debug)]
pub(super) enum Arrival {
    /// A reply on shell.
    Shell(Message),
    /// A message on iopub.
    Iopub(Message),
    /// A socket has ended: the kernel is gone.
    Lost,
}

/// A message, as far as it matters here.
#[derive(Debug)]
pub(super) struct Message {
    /// `header.msg_type`
    pub kind: String,
    /// `parent_header.msg_id`
    pub parent: String,
    /// The content, unread.
    pub content: Bytes,
}

impl Message {
    /// The content, or its default where it is not of this shape.
    pub fn read<T: for<'a> Deserialize<'a> + Default>(&self) -> T {
        serde_json::from_slice(&self.content).unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct ConnectionFile {
    ip: String,
    shell_port: u16,
    iopub_port: u16,
    key: String,
}

impl KernelClient {
    /// Connects to the kernel of this connection file, waiting for one that is starting. `session` goes into the headers of
    /// what is sent; the flag is set as long as the kernel is there.
    pub async fn connect(
        file: PathBuf,
        session: &str,
        patience: Duration,
        connected: &Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let deadline = Instant::now() + patience;
        loop {
            let attempt =
                tokio::time::timeout_at(deadline, Self::try_connect(&file, session, connected));
            match attempt.await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(error)) if Instant::now() + RETRY >= deadline => return Err(error),
                Ok(Err(_)) => sleep(RETRY).await,
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    async fn try_connect(
        file: &Path,
        session: &str,
        connected: &Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let text = tokio::fs::read(file).await?;
        let file: ConnectionFile = serde_json::from_slice(&text)?;
        let iopub = format!("{}:{}", file.ip, file.iopub_port);
        let shell = format!("{}:{}", file.ip, file.shell_port);
        let (iopub, mut subscription) = zmtp::connect(&iopub, "SUB").await?;
        subscription.send(&[Bytes::from_static(b"\x01")]).await?;
        let (replies, shell) = zmtp::connect(&shell, "DEALER").await?;

        let (sender, arrivals) = mpsc::unbounded_channel();
        let readers = [
            forward(iopub, sender.clone(), Arrival::Iopub, connected.clone()),
            forward(replies, sender, Arrival::Shell, connected.clone()),
        ];
        connected.store(true, Ordering::Relaxed);
        let mut client = Self {
            shell,
            arrivals,
            key: file.key,
            session: session.to_owned(),
            readers,
            connected: connected.clone(),
            _subscription: subscription,
        };
        client.wait_until_heard().await?;
        Ok(client)
    }

    /// Asks for kernel_info until both its reply and its status messages come.
    async fn wait_until_heard(&mut self) -> io::Result<()> {
        loop {
            let id = Uuid::new_v4().to_string();
            self.send("kernel_info_request", &id, &json!({})).await?;
            let (mut replied, mut heard) = (false, false);
            while !(replied && heard) {
                let arrival = if replied {
                    match timeout(HEARD, self.next()).await {
                        Ok(arrival) => arrival,
                        Err(_) => break,
                    }
                } else {
                    self.next().await
                };
                match arrival {
                    Arrival::Shell(message) => replied |= message.parent == id,
                    // The idle, not the busy: what follows is not of this request.
                    Arrival::Iopub(message) => {
                        heard |= message.parent == id
                            && message.read::<Status>().execution_state == "idle";
                    }
                    Arrival::Lost => return Err(io::ErrorKind::ConnectionReset.into()),
                }
            }
            if replied && heard {
                return Ok(());
            }
        }
    }

    /// Sends an `execute_request`.
    pub async fn execute(&mut self, id: &str, code: &str, allow_stdin: bool) -> io::Result<()> {
        let content = json!({
            "code": code,
            "silent": false,
            "store_history": true,
            "user_expressions": {},
            "allow_stdin": allow_stdin,
            "stop_on_error": true,
        });
        self.send("execute_request", id, &content).await
    }

    /// Gives what is sent from now on another `header.session`.
    pub fn change_session(&mut self) {
        self.session = Uuid::new_v4().to_string();
    }

    /// What comes next. May be cancelled.
    pub async fn next(&mut self) -> Arrival {
        self.arrivals.recv().await.unwrap_or(Arrival::Lost)
    }

    /// Whether the kernel went away while nothing ran. What else arrived in the meantime is passed over.
    pub fn is_lost(&mut self) -> bool {
        loop {
            match self.arrivals.try_recv() {
                Ok(Arrival::Lost) | Err(mpsc::error::TryRecvError::Disconnected) => return true,
                Ok(_) => {}
                Err(mpsc::error::TryRecvError::Empty) => return false,
            }
        }
    }

    async fn send(&mut self, kind: &str, id: &str, content: &Value) -> io::Result<()> {
        let header = json!({
            "msg_id": id,
            "msg_type": kind,
            "session": self.session,
            "username": "colab",
            "date": chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Micros, true),
            "version": "5.3",
        });
        let parts = [
            header.to_string(),
            "{}".to_owned(),
            "{}".to_owned(),
            content.to_string(),
        ];
        let mut frames = vec![Bytes::from_static(DELIMITER), self.sign(&parts)];
        frames.extend(parts.map(Bytes::from));
        self.shell.send(&frames).await
    }

    /// The HMAC of the four parts in hexadecimal; empty where the key is.
    fn sign(&self, parts: &[String; 4]) -> Bytes {
        if self.key.is_empty() {
            return Bytes::new();
        }
        // HMAC takes keys of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.key.as_bytes()) else {
            return Bytes::new();
        };
        for part in parts {
            mac.update(part.as_bytes());
        }
        let digest = mac.finalize().into_bytes();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        hex.into()
    }
}

impl Drop for KernelClient {
    fn drop(&mut self) {
        for reader in &self.readers {
            reader.abort();
        }
        self.connected.store(false, Ordering::Relaxed);
    }
}

/// `status`
#[derive(Default, Deserialize)]
pub(super) struct Status {
    /// `busy`, `idle`, `starting`
    pub execution_state: String,
}

/// Reads a socket to its end.
fn forward(
    mut reader: zmtp::Reader,
    arrivals: mpsc::UnboundedSender<Arrival>,
    wrap: fn(Message) -> Arrival,
    connected: Arc<AtomicBool>,
) -> AbortHandle {
    let task = tokio::spawn(async move {
        while let Ok(frames) = reader.recv().await {
            // What is no Jupyter message is no business of ours.
            let Some(message) = parse(&frames) else {
                continue;
            };
            if arrivals.send(wrap(message)).is_err() {
                return;
            }
        }
        connected.store(false, Ordering::Relaxed);
        let _ = arrivals.send(Arrival::Lost);
    });
    task.abort_handle()
}

/// Splits a message. Its signature is not checked: the ports are loopback ones of a kernel that was started here.
fn parse(frames: &[Bytes]) -> Option<Message> {
    #[derive(Deserialize)]
    struct Header {
        msg_type: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Parent {
        msg_id: String,
    }
    let at = frames.iter().position(|frame| &frame[..] == DELIMITER)?;
    let [_signature, header, parent, _metadata, content, ..] = &frames[at + 1..] else {
        return None;
    };
    let header: Header = serde_json::from_slice(header).ok()?;
    let parent: Parent = serde_json::from_slice(parent).unwrap_or_default();
    Some(Message {
        kind: header.msg_type,
        parent: parent.msg_id,
        content: content.clone(),
    })
}
