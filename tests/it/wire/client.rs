//! A client written from the specifications: raw ZMTP over a socket, and Jupyter messages signed on their own.

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::parrot::{KEY, Parrot};

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub async fn connect(endpoint: &str) -> Box<dyn Stream> {
    match endpoint.split_once("://").unwrap() {
        ("tcp", address) => {
            let stream = TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            Box::new(stream)
        }
        (_, path) => Box::new(UnixStream::connect(path).await.unwrap()),
    }
}

/// A ZMTP peer.
pub struct Peer {
    pub stream: Box<dyn Stream>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub flags: u8,
    pub body: Vec<u8>,
}

impl Peer {
    pub async fn connect(endpoint: &str, socket_type: &str, identity: &str) -> Self {
        let mut stream = connect(endpoint).await;
        stream.write_all(&greeting()).await.unwrap();
        let mut theirs = [0; 64];
        stream.read_exact(&mut theirs).await.unwrap();
        assert_eq!((theirs[0], theirs[9], theirs[10]), (0xff, 0x7f, 3));
        let mut peer = Self { stream };
        // Waits for the kernel's READY before it sends its own: neither side may insist on being second.
        let ready = peer.frame().await.unwrap();
        assert!(ready.flags & 4 != 0 && ready.body.starts_with(b"\x05READY"));
        peer.command(&ready_body(socket_type, identity)).await;
        peer
    }

    pub async fn subscriber(parrot: &Parrot) -> Self {
        let mut peer = Self::connect(&parrot.endpoint("iopub"), "SUB", "").await;
        peer.send(&["\x01"]).await;
        assert_eq!(peer.message().await.unwrap().msg_type(), "iopub_welcome");
        peer
    }

    pub async fn command(&mut self, body: &[u8]) {
        self.stream.write_all(&frame(4, body)).await.unwrap();
    }

    pub async fn send(&mut self, frames: &[impl AsRef<[u8]>]) {
        self.stream.write_all(&encoded(frames)).await.unwrap();
    }

    /// The next frame; `None` when the connection is closed.
    pub async fn frame(&mut self) -> Option<Frame> {
        let flags = self.stream.read_u8().await.ok()?;
        let len = if flags & 2 == 0 {
            u64::from(self.stream.read_u8().await.ok()?)
        } else {
            self.stream.read_u64().await.ok()?
        };
        let mut body = vec![0; len as usize];
        self.stream.read_exact(&mut body).await.ok()?;
        Some(Frame { flags, body })
    }

    /// The frames of the next message.
    pub async fn recv(&mut self) -> Option<Vec<Bytes>> {
        let mut frames = Vec::new();
        loop {
            let frame = self.frame().await?;
            assert_eq!(frame.flags & 4, 0, "a command where a message was expected");
            frames.push(frame.body.into());
            if frame.flags & 1 == 0 {
                return Some(frames);
            }
        }
    }

    /// The next Jupyter message, verified.
    pub async fn message(&mut self) -> Option<Message> {
        Some(Message::read(self.recv().await?))
    }
}

pub fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    greeting[..12].copy_from_slice(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01");
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

pub fn ready_body(socket_type: &str, identity: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    body.push(socket_type.len() as u8);
    body.extend(socket_type.as_bytes());
    body.extend(b"\x08Identity\0\0\0");
    body.push(identity.len() as u8);
    body.extend(identity.as_bytes());
    body
}

pub fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    if body.len() < 256 {
        frame.extend([flags, body.len() as u8]);
    } else {
        frame.push(flags | 2);
        frame.extend((body.len() as u64).to_be_bytes());
    }
    frame.extend(body);
    frame
}

pub fn encoded(frames: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let last = frames.len() - 1;
    frames
        .iter()
        .enumerate()
        .flat_map(|(index, body)| frame(u8::from(index < last), body.as_ref()))
        .collect()
}

/// A Jupyter message from the kernel.
pub struct Message {
    pub topic: Bytes,
    pub header: Value,
    pub parent: Bytes,
    pub content: Value,
    pub buffers: Vec<Bytes>,
}

impl Message {
    /// Reads the frames of an iopub message, or of a reply whose first frames are identities.
    pub fn read(mut frames: Vec<Bytes>) -> Self {
        let at = frames
            .iter()
            .position(|frame| frame == "<IDS|MSG>")
            .unwrap();
        let rest = frames.split_off(at + 1);
        let signed: Vec<_> = rest[1..5].iter().map(Bytes::as_ref).collect();
        // A parrot without a key signs nothing.
        if !rest[0].is_empty() {
            assert_eq!(rest[0], sign(KEY, &signed), "the kernel's signature");
        }
        Self {
            topic: frames.first().cloned().unwrap_or_default(),
            header: serde_json::from_slice(&rest[1]).unwrap(),
            parent: rest[2].clone(),
            content: serde_json::from_slice(&rest[4]).unwrap(),
            buffers: rest[5..].to_vec(),
        }
    }

    pub fn msg_type(&self) -> &str {
        self.header["msg_type"].as_str().unwrap()
    }
}

pub fn sign(key: &str, parts: &[&[u8]]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
    for part in parts {
        mac.update(part);
    }
    mac.finalize()
        .into_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The frames of a request as a DEALER sends them, signed with the parrot's key.
pub fn request(msg_type: &str, content: &str) -> Vec<Bytes> {
    request_signed(KEY, msg_type, content)
}

pub fn request_signed(key: &str, msg_type: &str, content: &str) -> Vec<Bytes> {
    let header = header(msg_type);
    let parts: [&[u8]; 4] = [header.as_bytes(), b"{}", b"{}", content.as_bytes()];
    let mut frames = vec!["<IDS|MSG>".into(), sign(key, &parts).into()];
    frames.extend(parts.map(Bytes::copy_from_slice));
    frames
}

fn header(msg_type: &str) -> String {
    let id = uuid::Uuid::new_v4();
    format!(
        "{{\"msg_id\": \"{id}\", \"session\": \"s\", \"username\": \"u\", \"msg_type\": \"{msg_type}\", \
         \"date\": \"2026-01-01T00:00:00+02:00\", \"version\": \"5.4\", \"subshell_id\": null, \"extra\": 1.50}}"
    )
}
