//! A connection to the channels of one kernel, through the proxy of its runtime.
//!
//! The WebSocket begins as any other request ([`RuntimeHttp`]: TLS, roots, proxies and the rules for tokens are the same), and then
//! a task of its own carries it ([`super::pump`]).
//!
//! * The token goes in the header and in the query, because proxies of both kinds are known; an `Origin` does not go, because the
//!   proxy takes it for a browser's.
//! * Neither the address nor the token appears in an error.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use reqwest::{Method, StatusCode, Upgraded};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::super::api::ConnectionInfo;
use super::super::runtime_http::{RuntimeHttp, in_words};
use super::pump::{Delivery, Ends, MAX_MESSAGE, Pump};
use super::rest;
use super::wire::{self, Message, Protocol};

/// The name of [`Protocol::V1`].
const V1: &str = "v1.kernel.websocket.jupyter.org";
/// The parameter that carries the proxy token.
const TOKEN_PARAMETER: &str = "colab-runtime-proxy-token";

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) open: Duration,
    pub(super) ping_every: Duration,
    pub(super) ping_answer: Duration,
}

impl Timing {
    /// Before it accepts, a Jupyter Server asks a kernel that it does not know yet for its info, and waits 60 s for a busy one.
    const USUAL: Self = Self {
        open: Duration::from_secs(70),
        ping_every: Duration::from_secs(5),
        ping_answer: Duration::from_secs(10),
    };
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// 401, 403 or 404: the token is too old, or is refused.
    #[error("the runtime's server refuses the connection (HTTP {0})")]
    Token(u16),
    /// The server says that the kernel does not exist.
    #[error("the runtime's server does not know the kernel")]
    NoKernel,
    /// Another answer: something on the way does not let WebSockets pass.
    #[error("no WebSocket to the runtime could be opened (HTTP {0})")]
    Blocked(u16),
    /// No answer, or one that makes no sense, in words.
    #[error("{0}")]
    Unreachable(String),
}

/// Why a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The other end closed it; the code of RFC 6455 §7.4 where it gave one.
    #[error("the runtime's server closed the connection{}", code(.0))]
    ByServer(Option<u16>),
    /// It broke, in words.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// A ping was not answered.
    #[error("the connection went silent")]
    Silent,
    /// Its reader is gone.
    #[error("the connection was closed here")]
    Here,
}

fn code(code: &Option<u16>) -> String {
    code.map_or_else(String::new, |code| format!(" (code {code})"))
}

impl From<tungstenite::Error> for Closed {
    fn from(error: tungstenite::Error) -> Self {
        match error {
            tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => {
                Self::ByServer(None)
            }
            error => Self::Broken(error.to_string()),
        }
    }
}

/// Why a message is not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no connection any more.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// It is larger than what may be sent.
    #[error("the message is too large")]
    TooLarge,
}

/// The end to which messages are given. Others are read meanwhile.
#[derive(Debug)]
pub struct Outgoing {
    protocol: Protocol,
    requests: mpsc::Sender<tungstenite::Message>,
    why: Arc<OnceLock<Closed>>,
}

/// The end from which messages come. Without it the connection closes, after what was sent before.
#[derive(Debug)]
pub struct Incoming {
    inbox: mpsc::UnboundedReceiver<Delivery>,
    why: Arc<OnceLock<Closed>>,
    _alive: oneshot::Sender<()>,
}

/// Connects to a kernel's channels. `session` is what the headers of our messages will name.
pub async fn open(
    http: &RuntimeHttp,
    info: &ConnectionInfo,
    kernel_id: &str,
    session: &str,
) -> Result<(Outgoing, Incoming), OpenError> {
    open_with(http, info, kernel_id, session, Timing::USUAL).await
}

async fn open_with(
    http: &RuntimeHttp,
    info: &ConnectionInfo,
    kernel_id: &str,
    session: &str,
    timing: Timing,
) -> Result<(Outgoing, Incoming), OpenError> {
    let upgraded = timeout(timing.open, upgrade(http, info, kernel_id, session)).await;
    let (stream, protocol) = upgraded.unwrap_or_else(|_| {
        let why = "the runtime's server did not answer in time";
        Err(OpenError::Unreachable(why.to_owned()))
    })?;
    let (pump, ends) = Pump::new(stream, protocol, timing).await;
    let Ends {
        requests,
        inbox,
        alive,
    } = ends;
    let why = Arc::new(OnceLock::new());
    let reason = Arc::clone(&why);
    tokio::spawn(pump.run(move |closed| {
        let _ = reason.set(closed.clone());
    }));
    let outgoing = Outgoing {
        protocol,
        requests,
        why: Arc::clone(&why),
    };
    let incoming = Incoming {
        inbox,
        why,
        _alive: alive,
    };
    Ok((outgoing, incoming))
}

impl Outgoing {
    /// Sends a message, waiting while too many others wait. Dropped before its end, it has sent all or nothing.
    pub async fn send(&mut self, message: &Message) -> Result<(), SendError> {
        let frame = wire::encode(self.protocol, message).map_err(|_| SendError::TooLarge)?;
        if frame.len() > MAX_MESSAGE {
            return Err(SendError::TooLarge);
        }
        self.requests
            .send(frame)
            .await
            .map_err(|_| SendError::Closed(reason(&self.why)))
    }

    /// The encoding that was agreed.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }
}

impl Incoming {
    /// The next message. All that came before the end of the connection are given first. Dropped before its end, it loses none.
    pub async fn recv(&mut self) -> Result<Message, Closed> {
        match self.inbox.recv().await {
            Some((message, _room)) => Ok(message),
            None => Err(reason(&self.why)),
        }
    }
}

/// The pump tells why before it lets the queues go; only a runtime that shuts down ends it in between.
fn reason(why: &OnceLock<Closed>) -> Closed {
    why.get().cloned().unwrap_or(Closed::Here)
}

/// The opening handshake of RFC 6455 §4.1.
async fn upgrade(
    http: &RuntimeHttp,
    info: &ConnectionInfo,
    kernel_id: &str,
    session: &str,
) -> Result<(Upgraded, Protocol), OpenError> {
    let key = generate_key();
    let path = ["api", "kernels", kernel_id, "channels"];
    let query = [("session_id", session), (TOKEN_PARAMETER, &info.token)];
    let response = http
        .request(Method::GET, info, path, &query)
        .map_err(OpenError::Unreachable)?
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, &key)
        .header(SEC_WEBSOCKET_PROTOCOL, V1)
        .send()
        .await
        .map_err(unreachable)?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(response.status(), http, info, kernel_id).await);
    }
    let header = |name| {
        let value = response.headers().get(name)?;
        value.to_str().ok().map(str::trim)
    };
    if header(SEC_WEBSOCKET_ACCEPT) != Some(&derive_accept_key(key.as_bytes())) {
        let why = "what answers for the runtime's server is no WebSocket";
        return Err(OpenError::Unreachable(why.to_owned()));
    }
    let protocol = match header(SEC_WEBSOCKET_PROTOCOL) {
        Some(V1) => Protocol::V1,
        _ => Protocol::Default,
    };
    let stream = response.upgrade().await.map_err(unreachable)?;
    Ok((stream, protocol))
}

/// What a refusal means. A Jupyter Server answers 404 for a kernel that does not exist, as the proxy does for a token, and only its
/// REST interface says which; so it is asked.
async fn refused(
    status: StatusCode,
    http: &RuntimeHttp,
    info: &ConnectionInfo,
    kernel_id: &str,
) -> OpenError {
    match status {
        StatusCode::NOT_FOUND if rest::has_kernel(http, info, kernel_id).await == Ok(false) => {
            OpenError::NoKernel
        }
        StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            OpenError::Token(status.as_u16())
        }
        _ => OpenError::Blocked(status.as_u16()),
    }
}

fn unreachable(error: reqwest::Error) -> OpenError {
    OpenError::Unreachable(in_words(error))
}

#[cfg(test)]
mod tests;
