//! Listening: the five ports of the connection file, on tcp or as ipc socket files.
//!
//! * An address is taken over from a kernel that has just died: SO_REUSEADDR on tcp, and a socket file at which nobody listens
//!   is removed. One at which somebody listens is not touched.
//! * Accepting never spins: clients get no more than the file descriptors that the process may have (see [`slots`]), and an error
//!   makes it pause.
//! * A socket file that we made comes with an [`OwnedFile`], which removes it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::{ConnectionInfo, Transport};
use super::files::OwnedFile;

/// How long accepting pauses after an error that is not one connection's own.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const BACKLOG: u32 = 1024;

/// A connection of either transport.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// One of the connection file's addresses.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    transport: Transport,
    ip: String,
    port: u16,
}

impl Endpoint {
    pub(super) fn new(info: &ConnectionInfo, port: u16) -> Self {
        Self {
            transport: info.transport,
            ip: info.ip.clone(),
            port,
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.transport {
            Transport::Tcp => write!(f, "tcp://{}:{}", self.ip, self.port),
            Transport::Ipc => write!(f, "ipc://{}-{}", self.ip, self.port),
        }
    }
}

/// How many connections all ports together take in. Each may need three file descriptors: the client's, and both ends of the
/// gate's inner connection, at which the crate spins when it gets none. The others wait until one ends.
pub(super) fn slots() -> Arc<Semaphore> {
    // For what the rest of the process opens.
    const RESERVED: usize = 48;
    // The usual soft limit where it cannot be asked for, which is macOS.
    const USUAL: usize = 256;
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|values| values.split_whitespace().next())
        .map_or(Some(USUAL), |soft| soft.parse().ok())
        .unwrap_or(usize::MAX);
    Arc::new(Semaphore::new(
        (files.saturating_sub(RESERVED) / 3).clamp(8, 4096),
    ))
}

/// A client's connection, and its slot.
pub(super) struct Accepted {
    pub(super) stream: Box<dyn Stream>,
    pub(super) slot: OwnedSemaphorePermit,
}

/// A bound address.
#[derive(Debug)]
pub(super) struct Listener {
    socket: Bound,
    slots: Arc<Semaphore>,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(tokio::net::UnixListener),
}

impl Listener {
    /// Binds. `send_buffer` bounds what the system keeps for a client that does not read.
    pub(super) async fn bind(
        endpoint: &Endpoint,
        send_buffer: Option<u32>,
        slots: Arc<Semaphore>,
    ) -> io::Result<(Self, Option<OwnedFile>)> {
        let (socket, file) = match endpoint.transport {
            Transport::Tcp => {
                let listener = bind_tcp(&endpoint.ip, endpoint.port, send_buffer).await?;
                (Bound::Tcp(listener), None)
            }
            Transport::Ipc => bind_ipc(&format!("{}-{}", endpoint.ip, endpoint.port)).await?,
        };
        Ok((Self { socket, slots }, file))
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> Accepted {
        loop {
            // It is never closed; waiting for ever would be the answer if it were.
            let Ok(slot) = self.slots.clone().acquire_owned().await else {
                std::future::pending::<()>().await;
                continue;
            };
            let error = match self.socket.accept().await {
                Ok(stream) => return Accepted { stream, slot },
                Err(error) => error,
            };
            // The client was gone before it was accepted: nothing is wrong with us.
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
            ) {
                continue;
            }
            tracing::warn!(%error, "cannot accept a connection for now");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

impl Bound {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Without it the system may hold small messages back for 40 ms. A client that is gone already says so on read.
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            #[cfg(unix)]
            Self::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

async fn bind_tcp(ip: &str, port: u16, send_buffer: Option<u32>) -> io::Result<TcpListener> {
    let host = match ip {
        "*" => "0.0.0.0",
        bracketed => bracketed.trim_start_matches('[').trim_end_matches(']'),
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the address has no meaning here");
    // "localhost" means ::1 as well, where ZeroMQ clients do not look first.
    let mut addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    for address in addresses {
        match listen_tcp(address, send_buffer) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen_tcp(address: SocketAddr, send_buffer: Option<u32>) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // On Windows the option would let two processes share a port.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    if let Some(size) = send_buffer {
        socket.set_send_buffer_size(size)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(unix)]
async fn bind_ipc(path: &str) -> io::Result<(Bound, Option<OwnedFile>)> {
    use tokio::net::{UnixListener, UnixStream};

    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let refused = UnixStream::connect(path)
                .await
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !refused {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    Ok((Bound::Unix(listener), Some(OwnedFile::new(path))))
}

#[cfg(not(unix))]
async fn bind_ipc(_path: &str) -> io::Result<(Bound, Option<OwnedFile>)> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "ipc needs unix sockets; set the kernel manager's transport to tcp",
    ))
}
