//! Listening: the five ports of the connection file, on tcp or as ipc socket files.
//!
//! * An address is taken over from a kernel that has just died: SO_REUSEADDR on tcp, and a socket file at which nobody listens
//!   is removed. One at which somebody listens is not touched.
//! * Accepting never spins: when the process is out of file descriptors it pauses.
//! * A socket file that we made comes with an [`OwnedFile`], which removes it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};

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

/// A bound address.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(tokio::net::UnixListener),
}

impl Listener {
    /// Binds. `send_buffer` bounds what the system keeps for a client that does not read.
    pub(super) async fn bind(
        endpoint: &Endpoint,
        send_buffer: Option<u32>,
    ) -> io::Result<(Self, Option<OwnedFile>)> {
        match endpoint.transport {
            Transport::Tcp => {
                let listener = bind_tcp(&endpoint.ip, endpoint.port, send_buffer).await?;
                Ok((Self::Tcp(listener), None))
            }
            Transport::Ipc => bind_ipc(&format!("{}-{}", endpoint.ip, endpoint.port)).await,
        }
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> Box<dyn Stream> {
        loop {
            let error = match self.try_accept().await {
                Ok(stream) => return stream,
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

    async fn try_accept(&self) -> io::Result<Box<dyn Stream>> {
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
async fn bind_ipc(path: &str) -> io::Result<(Listener, Option<OwnedFile>)> {
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
    Ok((Listener::Unix(listener), Some(OwnedFile::new(path))))
}

#[cfg(not(unix))]
async fn bind_ipc(_path: &str) -> io::Result<(Listener, Option<OwnedFile>)> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "ipc needs unix sockets; set the kernel manager's transport to tcp",
    ))
}
