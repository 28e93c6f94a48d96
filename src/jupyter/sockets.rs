//! The five sockets of a kernel: shell, control and stdin as ROUTER, the heartbeat as REP, iopub as our own publisher.
//!
//! * What comes out of an [`Inbox`] is signed, well-formed and new. Everything else is logged, without its content, and dropped;
//!   no message ends a loop.
//! * An [`Outbox`] never waits for a client that does not read: such a client is disconnected when too much waits for it.
//! * The heartbeat has a task of its own and echoes what it gets, whatever the kernel does.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use zeromq::{
    RepSocket, RouterRecvHalf, RouterSendHalf, RouterSocket, Socket, SocketEvent, SocketRecv,
    SocketSend, ZmqError,
};

use super::connection::ConnectionInfo;
use super::files::SocketGuard;
use super::gate::{self, Gate, Inner};
use super::iopub::{self, IoPub};
use super::links::Links;
use super::listen::{Endpoint, Listener};
use super::message::{OutMessage, Request, Session};
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

/// The heartbeat answers one client after the other, so none may keep the others waiting.
const HEARTBEAT_WRITE_LIMIT: Duration = Duration::from_secs(1);

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

impl Sockets {
    /// Binds all five sockets. When it returns, each of them accepts connections and the heartbeat answers.
    pub async fn bind(info: &ConnectionInfo, session: Arc<Session>) -> Result<Self, BindError> {
        let binder = Binder::new(info, session)?;
        // iopub first: a client must be able to subscribe before anything it asks for is published.
        let iopub = binder.iopub(info.iopub_port).await?;
        let (shell, shell_out) = binder.router("shell", info.shell_port).await?;
        let (control, control_out) = binder.router("control", info.control_port).await?;
        let (stdin, stdin_out) = binder.router("stdin", info.stdin_port).await?;
        binder.heartbeat(info.hb_port).await?;
        binder.sweep();
        Ok(Self {
            shell,
            control,
            stdin,
            shell_out,
            control_out,
            stdin_out,
            iopub,
            guard: binder.guard,
        })
    }
}

/// The receiving half of a ROUTER socket.
pub struct Inbox {
    socket: &'static str,
    receiver: RouterRecvHalf,
    links: Arc<Links>,
    session: Arc<Session>,
    _guard: SocketGuard,
}

impl Inbox {
    /// The next valid message. Cancel-safe. `None`: the socket is closed.
    pub async fn recv(&mut self) -> Option<Request> {
        loop {
            let mut frames = match self.receiver.recv().await {
                Ok(message) => message.into_vec(),
                Err(ZmqError::NoMessage) => return None,
                Err(error) => {
                    tracing::debug!(socket = self.socket, %error, "a connection ended badly");
                    continue;
                }
            };
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
    sender: RouterSendHalf,
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
        if !link.queue(zmtp::wire_len(&frames)) {
            tracing::warn!(
                socket = self.socket,
                "disconnected a client that does not read its replies"
            );
            return;
        }
        let sent = self
            .sender
            .clone()
            .send(gate::addressed(link.name(), frames))
            .await;
        if let Err(error) = sent {
            // The crate has lost the connection: nothing more will be written to it.
            tracing::debug!(socket = self.socket, %error, "could not send");
            link.close();
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
struct Binder<'a> {
    info: &'a ConnectionInfo,
    session: Arc<Session>,
    guard: SocketGuard,
    directory: std::path::PathBuf,
}

impl<'a> Binder<'a> {
    #[cfg(unix)]
    fn new(info: &'a ConnectionInfo, session: Arc<Session>) -> Result<Self, BindError> {
        let directory = super::files::PrivateDirectory::create().map_err(|source| BindError {
            socket: "private directory",
            endpoint: std::env::temp_dir().display().to_string(),
            source,
        })?;
        Ok(Self {
            info,
            session,
            directory: directory.path().to_owned(),
            guard: SocketGuard::new(Some(directory)),
        })
    }

    #[cfg(not(unix))]
    fn new(info: &'a ConnectionInfo, session: Arc<Session>) -> Result<Self, BindError> {
        Ok(Self {
            info,
            session,
            directory: std::path::PathBuf::new(),
            guard: SocketGuard::new(None),
        })
    }

    /// Clears up after kernels that were killed, beside the main work.
    fn sweep(&self) {
        #[cfg(unix)]
        {
            let own = self.directory.clone();
            tokio::task::spawn_blocking(move || super::files::sweep(&own));
        }
    }

    async fn router(&self, name: &'static str, port: u16) -> Result<(Inbox, Outbox), BindError> {
        let links = Arc::new(Links::default());
        let mut router = RouterSocket::new();
        let events = router.monitor();
        self.gate(&mut router, ROUTER, name, port, links.clone())
            .await?;
        self.guard.spawn(follow(events, links.clone()));
        let (sender, receiver) = router.split();
        let inbox = Inbox {
            socket: name,
            receiver,
            links: links.clone(),
            session: self.session.clone(),
            _guard: self.guard.clone(),
        };
        let outbox = Outbox {
            socket: name,
            sender,
            links,
            session: self.session.clone(),
            _guard: self.guard.clone(),
        };
        Ok((inbox, outbox))
    }

    async fn heartbeat(&self, port: u16) -> Result<(), BindError> {
        let mut rep = RepSocket::new();
        self.gate(&mut rep, REP, "heartbeat", port, Arc::default())
            .await?;
        self.guard.spawn(echo(rep));
        Ok(())
    }

    async fn iopub(&self, port: u16) -> Result<IoPub, BindError> {
        let listener = self.listen("iopub", port, Some(iopub::SEND_BUFFER)).await?;
        Ok(IoPub::new(
            self.session.clone(),
            listener,
            self.guard.clone(),
        ))
    }

    async fn gate(
        &self,
        socket: &mut impl Socket,
        role: Role,
        name: &'static str,
        port: u16,
        links: Arc<Links>,
    ) -> Result<(), BindError> {
        let inner = Inner::bind(socket, Path::new(&self.directory), name)
            .await
            .map_err(|source| self.failed(name, port, source))?;
        let listener = self.listen(name, port, None).await?;
        let gate = Gate {
            name,
            role,
            inner,
            links,
            write_limit: (role.socket_type == REP.socket_type).then_some(HEARTBEAT_WRITE_LIMIT),
        };
        self.guard.spawn(gate.run(listener));
        Ok(())
    }

    async fn listen(
        &self,
        name: &'static str,
        port: u16,
        send_buffer: Option<u32>,
    ) -> Result<Listener, BindError> {
        let endpoint = Endpoint::new(self.info, port);
        let (listener, file) = Listener::bind(&endpoint, send_buffer)
            .await
            .map_err(|source| self.failed(name, port, source))?;
        self.guard.keep(file);
        Ok(listener)
    }

    fn failed(&self, socket: &'static str, port: u16, source: io::Error) -> BindError {
        BindError {
            socket,
            endpoint: Endpoint::new(self.info, port).to_string(),
            source,
        }
    }
}

/// Tells the links which connections `zeromq` knows.
async fn follow(
    mut events: impl futures_util::Stream<Item = SocketEvent> + Unpin,
    links: Arc<Links>,
) {
    use futures_util::StreamExt;

    while let Some(event) = events.next().await {
        if let SocketEvent::Accepted(_, name) = event {
            links.mark_ready(&name);
        }
    }
}

/// The heartbeat: every message goes back as it came.
async fn echo(mut rep: RepSocket) {
    loop {
        match rep.recv().await {
            Ok(message) => {
                // A client that left meanwhile needs no answer.
                let _ = rep.send(message).await;
            }
            Err(ZmqError::NoMessage) => return,
            // One bad message or connection; the others go on.
            Err(error) => tracing::debug!(%error, "bad heartbeat"),
        }
    }
}
