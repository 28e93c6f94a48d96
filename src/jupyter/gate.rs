//! The gate: what stands between clients and the `zeromq` crate on shell, control, stdin and heartbeat.
//!
//! ```text
//! client ──tcp or ipc──► gate: handshake, frame headers ──unix socket in a 0700 directory──► zeromq's ROUTER
//! ```
//!
//! The crate has no limits of its own: a frame header that announces 2^35 bytes aborts the process, a silent connection is kept
//! for ever, and nothing tells when a reply has been written. So the gate
//!
//! * shakes hands with the client itself, within [`HANDSHAKE_LIMIT`](super::zmtp::HANDSHAKE_LIMIT), and opens the inner
//!   connection only then: what is not ZMTP never reaches the crate;
//! * follows the frame headers of the client and closes its connection at one that announces more than [`FRAME_LIMIT`];
//! * answers ZMTP heartbeats and keeps commands from the crate, which would close the connection at any that it does not know;
//! * counts the whole messages that it has written to the client, so that a flush awaits the last reply.
//!
//! Where there are no unix sockets the inner connection is a loopback port of its own; other users of the machine can reach that
//! one past the gate.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zeromq::Socket;

use super::links::{Link, Links};
use super::listen::{Accepted, Listener, Stream};
use super::zmtp::{self, FrameScanner, Limits, Peer, Role};

/// What a client may announce in one frame.
pub(super) const FRAME_LIMIT: u64 = 256 * 1024 * 1024;
const CLIENT_LIMITS: Limits = Limits {
    frame: FRAME_LIMIT,
    message: 4 * FRAME_LIMIT,
};
const CHUNK: usize = 32 * 1024;
/// How long the handshake with the crate may take, which lies on this machine.
const INNER_LIMIT: Duration = Duration::from_secs(1);
/// A PING with its header and the longest context that RFC 37 allows. Longer commands are none that we answer.
const PING_LIMIT: usize = 2 + 5 + 2 + 16;
/// Heartbeats that may wait for their answer; a client sends the next one when the last is answered.
const PONGS: usize = 8;

#[cfg(unix)]
type InnerStream = tokio::net::UnixStream;
#[cfg(not(unix))]
type InnerStream = tokio::net::TcpStream;

/// Where `zeromq` listens, behind the gate.
#[derive(Debug, Clone)]
pub(super) struct Inner {
    #[cfg(unix)]
    path: std::path::PathBuf,
    #[cfg(not(unix))]
    address: std::net::SocketAddr,
}

impl Inner {
    /// Lets a socket listen behind the gate.
    #[cfg(unix)]
    pub(super) async fn bind(
        socket: &mut impl Socket,
        directory: &Path,
        name: &str,
    ) -> io::Result<Self> {
        let path = directory.join(name);
        let listener = std::os::unix::net::UnixListener::bind(&path)?;
        socket
            .bind_listener(listener)
            .await
            .map_err(io::Error::other)?;
        Ok(Self { path })
    }

    /// Lets a socket listen behind the gate.
    #[cfg(not(unix))]
    pub(super) async fn bind(
        socket: &mut impl Socket,
        _directory: &Path,
        _name: &str,
    ) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        socket
            .bind_listener(listener)
            .await
            .map_err(io::Error::other)?;
        Ok(Self { address })
    }

    async fn connect(&self) -> io::Result<InnerStream> {
        #[cfg(unix)]
        return InnerStream::connect(&self.path).await;
        #[cfg(not(unix))]
        return InnerStream::connect(self.address).await;
    }
}

/// The gate of one socket.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) name: &'static str,
    pub(super) role: Role,
    pub(super) inner: Inner,
    pub(super) links: Arc<Links>,
}

impl Gate {
    /// Lets clients in, for ever.
    pub(super) async fn run(self, listener: Listener) {
        let gate = Arc::new(self);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                client = listener.accept() => {
                    let gate = gate.clone();
                    connections.spawn(async move { gate.serve(client).await });
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn serve(&self, client: Accepted) {
        let Accepted {
            mut stream,
            slot: _slot,
        } = client;
        let peer = match zmtp::handshake(&mut stream, self.role).await {
            Ok(peer) => peer,
            Err(error) => {
                tracing::debug!(socket = self.name, %error, "a connection was no client's");
                return;
            }
        };
        let link = self.links.enter(&peer.identity);
        let end = tokio::select! {
            end = self.pass(stream, &peer, &link) => end,
            () = link.closed() => Ok(()),
        };
        if let Err(error) = end {
            tracing::debug!(socket = self.name, %error, "a client's connection was closed");
        }
    }

    async fn pass(&self, stream: Box<dyn Stream>, peer: &Peer, link: &Link) -> io::Result<()> {
        // The crate cannot accept when the process is out of file descriptors, and spins until it can: give ours back soon.
        let inner = tokio::time::timeout(INNER_LIMIT, self.open(peer, link));
        let inner = inner.await.map_err(|_| io::ErrorKind::TimedOut)??;
        let (from_client, to_client) = tokio::io::split(stream);
        let (from_inner, to_inner) = inner.into_split();
        let (pong_sender, pongs) = mpsc::channel(PONGS);
        tokio::select! {
            end = inward(from_client, to_inner, pong_sender) => end,
            end = outward(from_inner, to_client, pongs, link) => end,
        }
    }

    /// Opens the inner connection in the client's name.
    async fn open(&self, peer: &Peer, link: &Link) -> io::Result<InnerStream> {
        let mut inner = self.inner.connect().await?;
        inner.write_all(&zmtp::greeting(self.role.minor)).await?;
        inner
            .write_all(&zmtp::ready(&peer.socket_type, &link.name()))
            .await?;
        // The client has had both of these from us.
        zmtp::read_greeting(&mut inner).await?;
        zmtp::read_frame(&mut inner, CHUNK as u64).await?;
        Ok(inner)
    }
}

/// Passes the client's message frames to `zeromq`, and nothing else.
async fn inward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    pongs: mpsc::Sender<Bytes>,
) -> io::Result<()> {
    let mut scanner = FrameScanner::new(CLIENT_LIMITS);
    let mut buffer = vec![0; CHUNK];
    let mut command = Vec::new();
    loop {
        let len = from.read(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        let mut start = 0;
        let mut at = 0;
        while at < len {
            let span = scanner.span(&buffer[at..len])?;
            let end = at + span.len;
            if span.command {
                to.write_all(&buffer[start..at]).await?;
                start = end;
                let room = (PING_LIMIT + 1).saturating_sub(command.len());
                command.extend_from_slice(&buffer[at..at + span.len.min(room)]);
                if span.ends_frame {
                    answer(&command, &pongs);
                    command.clear();
                }
            }
            at = end;
        }
        to.write_all(&buffer[start..len]).await?;
    }
}

/// Answers a heartbeat; other commands mean nothing to us. `frame` begins with a header of two bytes.
fn answer(frame: &[u8], pongs: &mpsc::Sender<Bytes>) {
    if frame.len() <= PING_LIMIT
        && let Some(pong) = frame.get(2..).and_then(zmtp::pong)
    {
        // One that waits for eight answers gets the next one later.
        let _ = pongs.try_send(pong);
    }
}

/// Passes what `zeromq` answers to the client, and counts it once it is written.
async fn outward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut pongs: mpsc::Receiver<Bytes>,
    link: &Link,
) -> io::Result<()> {
    let mut scanner = FrameScanner::new(Limits::NONE);
    let mut buffer = vec![0; CHUNK];
    loop {
        let len = tokio::select! {
            len = from.read(&mut buffer) => len?,
            Some(pong) = pongs.recv(), if scanner.between_messages() => {
                to.write_all(&pong).await?;
                continue;
            }
        };
        if len == 0 {
            return Ok(());
        }
        let chunk = &buffer[..len];
        to.write_all(chunk).await?;
        let mut messages = 0;
        let mut rest = chunk;
        while !rest.is_empty() {
            let span = scanner.span(rest)?;
            messages += u64::from(span.ends_message);
            rest = &rest[span.len..];
        }
        link.wrote(messages, len);
    }
}
