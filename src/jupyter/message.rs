//! The envelope.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::connection::ConnectionInfo;
use crate::backend::JsonMap;

/// Who we are on the wire: the session id of this process, and the key.
#[derive(Debug)]
pub struct Session {}

impl Session {
    /// A new session, signing as the connection file says.
    pub fn new(info: &ConnectionInfo) -> Self {
        let _ = info;
        todo!()
    }

    /// The session's id, new in each process.
    pub fn id(&self) -> &str {
        todo!()
    }
}

/// The header of a request, byte for byte, as the parent of what answers it.
#[derive(Debug, Clone)]
pub struct Parent(Bytes);

impl Parent {
    /// No parent: `{}`.
    pub fn none() -> Self {
        Self(Bytes::from_static(b"{}"))
    }

    /// The header's JSON.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

/// The fields of a header that the kernel reads.
#[derive(Debug, Clone, Deserialize)]
pub struct Header {
    /// Unique id of the message.
    pub msg_id: String,
    /// What it is.
    pub msg_type: String,
    /// The client's session.
    #[serde(default)]
    pub session: String,
    /// The user.
    #[serde(default)]
    pub username: String,
    /// The subshell (JEP 91), where one is named.
    #[serde(default)]
    pub subshell_id: Option<String>,
}

/// A verified message from a client.
#[derive(Debug, Clone)]
pub struct Request {
    /// The routing identities.
    pub identities: Vec<Bytes>,
    /// The header.
    pub header: Header,
    /// `parent_header`, as it came.
    pub parent_header: Box<RawValue>,
    /// `metadata`, as it came.
    pub metadata: Box<RawValue>,
    /// `content`, as it came.
    pub content: Box<RawValue>,
    /// Binary buffers.
    pub buffers: Vec<Bytes>,
}

impl Request {
    /// What it is.
    pub fn msg_type(&self) -> &str {
        &self.header.msg_type
    }

    /// The parent of everything that answers this request.
    pub fn parent(&self) -> Parent {
        todo!()
    }

    /// The content, read as `T`.
    pub fn content<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.content.get())
    }
}

/// A message to send.
#[derive(Debug, Clone)]
pub struct OutMessage {
    /// What it is.
    pub msg_type: String,
    /// What it belongs to.
    pub parent: Parent,
    /// The content.
    pub content: Box<RawValue>,
    /// The metadata.
    pub metadata: JsonMap,
    /// Binary buffers.
    pub buffers: Vec<Bytes>,
}

impl OutMessage {
    /// A message without metadata and buffers.
    pub fn new(msg_type: impl Into<String>, parent: &Parent, content: &impl Serialize) -> Self {
        let _ = (msg_type.into(), parent, content);
        todo!()
    }
}
