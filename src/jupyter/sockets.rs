//! The sockets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::connection::ConnectionInfo;
use super::iopub::IoPub;
use super::message::{OutMessage, Request, Session};

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
}

/// Why the sockets could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {endpoint}: {source}")]
pub struct BindError {
    endpoint: String,
    source: std::io::Error,
}

impl Sockets {
    /// Binds all five sockets.
    pub async fn bind(info: &ConnectionInfo, session: Arc<Session>) -> Result<Self, BindError> {
        let _ = (info, session);
        todo!()
    }
}

/// The receiving half of a ROUTER socket.
#[derive(Debug)]
pub struct Inbox {}

impl Inbox {
    /// The next verified message; cancel-safe. What is invalid is logged and dropped. `None`: the socket is closed.
    pub async fn recv(&mut self) -> Option<Request> {
        todo!()
    }
}

/// The sending half of a ROUTER socket.
#[derive(Debug, Clone)]
pub struct Outbox {}

impl Outbox {
    /// Answers a request.
    pub async fn reply(&self, to: &Request, msg_type: &str, content: &impl Serialize) {
        let _ = (to, msg_type, content);
        todo!()
    }

    /// Sends a message to these identities.
    pub async fn send(&self, identities: Vec<Bytes>, msg: OutMessage) {
        let _ = (identities, msg);
        todo!()
    }

    /// Waits until every message sent so far has been written to its client's socket. `false`: not within `limit`.
    pub async fn flush(&self, limit: Duration) -> bool {
        let _ = limit;
        todo!()
    }
}
