//! The five sockets of a kernel: shell, control and stdin as ROUTER, the heartbeat as REP, iopub as our own publisher.
//!
//! * What comes out of an [`Inbox`] is signed, well-formed and new. Everything else is logged, without its content, and dropped;
//!   no message ends a loop.
//! * An [`Outbox`] never waits for a client that does not read: such a client is disconnected when too much waits for it.
//! * The heartbeat echoes what it gets, whatever the kernel does. Clients see a REP; behind the gate it is a ROUTER, because the
//!   crate's REP answers one client after the other and holds a lock meanwhile.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use zeromq::{RouterRecvHalf, RouterSendHalf, RouterSocket, Socket};

use super::connection::ConnectionInfo;
use super::files::SocketGuard;
use super::gate::{Gate, Inner};
use super::iopub::{self, IoPub};
use super::links::{Link, Links};
use super::listen::{self, Endpoint, Listener};
use super::message::{OutMessage, Request, Session};
use super::router;
use super::zmtp::{self, Role};

const ROUTER: Role = Role {
    socket_type: "ROUTER",
    accepts: &["DEALER", "REQ", "ROUTER"],
    minor: 0,
};
const REP: Role = Role {
    socket_type: "REP",
    accepts: &["REQ", "DEALER"],
    minor: 0,
};

/// All sockets of a kernel. The heartbeat is served inside.
#[derive(Debug)]
pub struct Sockets {
    /// Requests on shell.
    pub shell: Inbox,
    /// Requests on control.
    pub control: Inbox,
    /// Replies on stdin.
    pub stdin: Inbox,
    /// Where shell requests are answered.
    pub shell_out: Outbox,
    /// Where control requests are answered.
    pub control_out: Outbox,
    /// Where input is asked for.
    pub stdin_out: Outbox,
    /// The publisher.
    pub iopub: IoPub,
    /// Closes everything. All other parts keep it as well, so it need not be kept.
    pub guard: SocketGuard,
}

/// Why the sockets could not be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {endpoint} ({socket}): {source}\n\
     Another program may be using the address; let the front-end start the kernel again"
)]
pub struct BindError {
    socket: &'static str,
    endpoint: String,
    source: io::Error,
}

impl BindError {
    fn local(source: io::Error) -> Self {
        Self {
            socket: "private directory and thread",
            endpoint: std::env::temp_dir().display().to_string(),
            source,
        }
    }
}

impl Sockets {
    /// Binds all five sockets. When it returns, each of them accepts connections and the heartbeat answers.
    pub async fn bind(info: &ConnectionInfo, session: Arc<Session>) -> Result<Self, BindError> {
        let (binder, wire) = Binder::new(info, session)?;
        // iopub first: a client must be able to subscribe before anything it asks for is published.
        let iopub = binder.iopub().await?;
        let guard = binder.guard.clone();
        let rest = wire.spawn(async move { binder.rest(iopub).await }).await;
        rest.unwrap_or_else(|ended| {
            guard.close();
            Err(BindError::local(io::Error::other(ended)))
        })
    }
}

/// The receiving half of a ROUTER socket.
pub struct Inbox {
    socket: &'static str,
    messages: mpsc::Receiver<Vec<Bytes>>,
    links: Arc<Links>,
    session: Arc<Session>,
    _guard: SocketGuard,
}

impl Inbox {
    /// The next valid message. Cancel-safe. `None`: the socket is closed.
    pub async fn recv(&mut self) -> Option<Request> {
        loop {
            let mut frames = self.messages.recv().await?;
            let Some(identity) = frames.first().and_then(|name| self.links.identity(name)) else {
                continue;
            };
            frames[0] = identity;
            match self.session.decode(frames) {
                Ok(request) => return Some(request),
                Err(reason) => {
                    tracing::warn!(socket = self.socket, %reason, "dropped a message");
                }
            }
        }
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inbox({})", self.socket)
    }
}

/// The sending half of a ROUTER socket.
#[derive(Clone)]
pub struct Outbox {
    socket: &'static str,
    messages: mpsc::UnboundedSender<(Arc<Link>, Vec<Bytes>)>,
    links: Arc<Links>,
    session: Arc<Session>,
    _guard: SocketGuard,
}

impl Outbox {
    /// Answers a request.
    pub async fn reply(&self, to: &Request, msg_type: &str, content: &impl Serialize) {
        let message = OutMessage::new(msg_type, &to.parent(), content);
        self.send(to.identities.clone(), message).await;
    }

    /// Sends a message to these identities, the first of which names the client. One that is not connected gets nothing.
    pub async fn send(&self, identities: Vec<Bytes>, message: OutMessage) {
        let link = identities
            .first()
            .and_then(|identity| self.links.find(identity));
        let Some(link) = link else {
            tracing::debug!(
                socket = self.socket,
                msg_type = message.msg_type,
                "the client is gone"
            );
            return;
        };
        let mut frames: Vec<Bytes> = identities.into_iter().skip(1).collect();
        frames.extend(self.session.encode(message));
        // Known to the gate is not yet known to `zeromq`; between the two lies one handshake on this machine.
        let ready = tokio::time::timeout(zmtp::HANDSHAKE_LIMIT, link.ready()).await;
        if ready != Ok(true) {
            return;
        }
        if !router::enqueue(&self.messages, link, frames) {
            tracing::warn!(
                socket = self.socket,
                "disconnected a client that does not read its replies"
            );
        }
    }

    /// Waits until every message sent so far has been written to its client's socket; clients that are gone do not count.
    /// `false`: not within `limit`.
    pub async fn flush(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.links.flushed())
            .await
            .is_ok()
    }
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Outbox({})", self.socket)
    }
}

/// Binds one socket after the other.
struct Binder {
    info: ConnectionInfo,
    session: Arc<Session>,
    guard: SocketGuard,
    directory: PathBuf,
    slots: Arc<Semaphore>,
}

impl Binder {
    /// With the runtime of the thread on which everything but iopub runs.
    fn new(info: &ConnectionInfo, session: Arc<Session>) -> Result<(Self, Handle), BindError> {
        let (wire, stop) = router::thread().map_err(BindError::local)?;
        #[cfg(unix)]
        let (directory, guard) = {
            let private = super::files::PrivateDirectory::create().map_err(BindError::local)?;
            let path = private.path().to_owned();
            (path, SocketGuard::new(Some(stop), Some(private)))
        };
        #[cfg(not(unix))]
        let (directory, guard) = (PathBuf::new(), SocketGuard::new(Some(stop), None));
        let binder = Self {
            info: info.clone(),
            session,
            guard,
            directory,
            slots: listen::slots(),
        };
        Ok((binder, wire))
    }

    async fn iopub(&self) -> Result<IoPub, BindError> {
        let port = self.info.iopub_port;
        let listener = self.listen("iopub", port, Some(iopub::SEND_BUFFER)).await?;
        let session = self.session.clone();
        Ok(IoPub::new(session, listener, self.guard.clone()))
    }

    async fn rest(self, iopub: IoPub) -> Result<Sockets, BindError> {
        let (shell, shell_out) = self.router("shell", self.info.shell_port).await?;
        let (control, control_out) = self.router("control", self.info.control_port).await?;
        let (stdin, stdin_out) = self.router("stdin", self.info.stdin_port).await?;
        self.heartbeat(self.info.hb_port).await?;
        self.sweep();
        Ok(Sockets {
            shell,
            control,
            stdin,
            shell_out,
            control_out,
            stdin_out,
            iopub,
            guard: self.guard,
        })
    }

    async fn router(&self, name: &'static str, port: u16) -> Result<(Inbox, Outbox), BindError> {
        let (sender, receiver, links) = self.gated(name, port, ROUTER).await?;
        let (to_inbox, from_clients) = mpsc::channel(router::WAITING);
        let (to_clients, from_outbox) = mpsc::unbounded_channel();
        self.guard.spawn(router::receive(receiver, to_inbox));
        self.guard.spawn(router::send(sender, from_outbox));
        let inbox = Inbox {
            socket: name,
            messages: from_clients,
            links: links.clone(),
            session: self.session.clone(),
            _guard: self.guard.clone(),
        };
        let outbox = Outbox {
            socket: name,
            messages: to_clients,
            links,
            session: self.session.clone(),
            _guard: self.guard.clone(),
        };
        Ok((inbox, outbox))
    }

    async fn heartbeat(&self, port: u16) -> Result<(), BindError> {
        let (sender, receiver, links) = self.gated("heartbeat", port, REP).await?;
        self.guard.spawn(router::echo(receiver, sender, links));
        Ok(())
    }

    /// A ROUTER that plays this role behind a gate.
    async fn gated(
        &self,
        name: &'static str,
        port: u16,
        role: Role,
    ) -> Result<(RouterSendHalf, RouterRecvHalf, Arc<Links>), BindError> {
        let links = Arc::new(Links::default());
        let mut socket = RouterSocket::new();
        let events = socket.monitor();
        let inner = Inner::bind(&mut socket, &self.directory, name)
            .await
            .map_err(|source| self.failed(name, port, source))?;
        let listener = self.listen(name, port, None).await?;
        let gate = Gate {
            name,
            role,
            inner,
            links: links.clone(),
        };
        self.guard.spawn(router::follow(events, links.clone()));
        self.guard.spawn(gate.run(listener));
        let (sender, receiver) = socket.split();
        Ok((sender, receiver, links))
    }

    async fn listen(
        &self,
        name: &'static str,
        port: u16,
        send_buffer: Option<u32>,
    ) -> Result<Listener, BindError> {
        let endpoint = Endpoint::new(&self.info, port);
        let (listener, file) = Listener::bind(&endpoint, send_buffer, self.slots.clone())
            .await
            .map_err(|source| self.failed(name, port, source))?;
        self.guard.keep(file);
        Ok(listener)
    }

    /// Clears up after kernels that were killed, beside the main work.
    fn sweep(&self) {
        #[cfg(unix)]
        {
            let own = self.directory.clone();
            tokio::task::spawn_blocking(move || super::files::sweep(&own));
        }
    }

    fn failed(&self, socket: &'static str, port: u16, source: io::Error) -> BindError {
        BindError {
            socket,
            endpoint: Endpoint::new(&self.info, port).to_string(),
            source,
        }
    }
}
