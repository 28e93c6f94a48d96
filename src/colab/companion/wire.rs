//! Messages of a kernel's channels, and how a Jupyter Server carries them on a WebSocket.
//!
//! Two encodings are in use (Jupyter Server documentation, "WebSocket wire protocols"): the default one, where a message is a JSON
//! text, or a binary frame if it has buffers; and `v1.kernel.websocket.jupyter.org`, where the kernel's own frames stand one after
//! the other behind a table of offsets.
//!
//! * A message's four JSON parts are kept as the bytes that came; they are read when somebody asks.
//! * What is decoded shares the memory of the frame. Nothing that a frame announces is believed: no table is made and no part
//!   taken that is not in the frame.

use std::borrow::Cow;
use std::fmt;

use bytes::{BufMut as _, Bytes, BytesMut};
use chrono::{SecondsFormat, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use tokio_tungstenite::tungstenite;
use uuid::Uuid;

use super::super::mcp::without_lone_surrogates;

/// The version of the messaging spec that our headers name.
const SPEC_VERSION: &str = "5.3";
const EMPTY: Bytes = Bytes::from_static(b"{}");

/// Which of a kernel's sockets a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Requests in their turn.
    Shell,
    /// What the kernel publishes.
    IoPub,
    /// Requests at once.
    Control,
    /// Prompts.
    Stdin,
}

impl Channel {
    fn name(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::IoPub => "iopub",
            Self::Control => "control",
            Self::Stdin => "stdin",
        }
    }

    fn named(name: &[u8]) -> Option<Self> {
        [Self::Shell, Self::IoPub, Self::Control, Self::Stdin]
            .into_iter()
            .find(|channel| channel.name().as_bytes() == name)
    }
}

/// One message, its JSON unread.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The socket.
    pub channel: Channel,
    /// Who sent it, and what it is.
    pub header: Bytes,
    /// The header of the request that it belongs to, or `{}`.
    pub parent_header: Bytes,
    /// Metadata.
    pub metadata: Bytes,
    /// The content.
    pub content: Bytes,
    /// Binary buffers.
    pub buffers: Vec<Bytes>,
}

/// The fields of a header that are read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Head {
    /// Unique id of the message.
    pub msg_id: String,
    /// What it is.
    #[serde(default, deserialize_with = "or_empty")]
    pub msg_type: String,
    /// The session of its sender.
    #[serde(default, deserialize_with = "or_empty")]
    pub session: String,
}

#[derive(Serialize)]
struct OutHeader<'a> {
    msg_id: &'a str,
    msg_type: &'a str,
    username: &'a str,
    session: &'a str,
    date: String,
    version: &'a str,
}

impl Message {
    /// A request of ours with a fresh id.
    pub fn new(channel: Channel, session: &str, msg_type: &str, content: &impl Serialize) -> Self {
        let id = Uuid::new_v4().to_string();
        Self::with_msg_id(channel, session, msg_type, &id, content)
    }

    /// A request of ours with this id. Content that has no JSON form (a map whose keys are no strings) becomes `{}` and an error
    /// in the log.
    pub fn with_msg_id(
        channel: Channel,
        session: &str,
        msg_type: &str,
        msg_id: &str,
        content: &impl Serialize,
    ) -> Self {
        let header = OutHeader {
            msg_id,
            msg_type,
            username: "username",
            session,
            date: Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true),
            version: SPEC_VERSION,
        };
        let json = |part: Result<Vec<u8>, serde_json::Error>| {
            part.map(Bytes::from).unwrap_or_else(|error| {
                tracing::error!(msg_type, %error, "a message has no JSON form");
                EMPTY
            })
        };
        Self {
            channel,
            header: json(serde_json::to_vec(&header)),
            parent_header: EMPTY,
            metadata: EMPTY,
            content: json(serde_json::to_vec(content)),
            buffers: Vec::new(),
        }
    }

    /// The message in a kernel's own frames: header, parent header, metadata, content, and then buffers.
    pub fn from_frames(channel: Channel, frames: &[Bytes]) -> Option<Self> {
        let [header, parent_header, metadata, content, buffers @ ..] = frames else {
            return None;
        };
        Some(Self {
            channel,
            header: header.clone(),
            parent_header: parent_header.clone(),
            metadata: metadata.clone(),
            content: content.clone(),
            buffers: buffers.to_vec(),
        })
    }

    /// Its id.
    pub fn id(&self) -> Option<String> {
        self.head().map(|head| head.msg_id)
    }

    /// What its header says, if it is one.
    pub fn head(&self) -> Option<Head> {
        read(&self.header).ok()
    }

    /// What its parent header says, if it has one.
    pub fn parent(&self) -> Option<Head> {
        read(&self.parent_header).ok()
    }

    /// The metadata, read as `T`.
    pub fn metadata<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        read(&self.metadata)
    }

    /// The content, read as `T`.
    pub fn content<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        read(&self.content)
    }

    /// How many bytes it holds.
    pub fn size(&self) -> usize {
        self.parts().map(Bytes::len).sum()
    }

    fn parts(&self) -> impl Iterator<Item = &Bytes> {
        self.json_parts().into_iter().chain(&self.buffers)
    }

    fn json_parts(&self) -> [&Bytes; 4] {
        [
            &self.header,
            &self.parent_header,
            &self.metadata,
            &self.content,
        ]
    }
}

/// Shows which message it is, and nothing of the user's code or data.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("channel", &self.channel)
            .field("head", &self.head())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

/// JSON as kernels write it: jupyter_client writes half characters as raw bytes, and others as escapes. Both are replaced, as
/// ipykernel does it.
fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(json).or_else(|error| {
        let text = String::from_utf8_lossy(json);
        match (without_lone_surrogates(&text), &text) {
            (Some(repaired), _) => serde_json::from_str(&repaired),
            (None, Cow::Owned(text)) => serde_json::from_str(text),
            (None, Cow::Borrowed(_)) => Err(error),
        }
    })
}

/// Fields that some senders leave null.
fn or_empty<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

/// An encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// JSON texts, and binary frames for messages with buffers.
    Default,
    /// `v1.kernel.websocket.jupyter.org`
    V1,
}

/// Why a frame is no message, or a message has no frame. Says nothing of what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The frame ends before its table does, or a part lies outside of it.
    #[error("its offsets are wrong")]
    Offsets,
    /// Parts are missing.
    #[error("it has too few parts")]
    TooFewParts,
    /// It is for a channel that does not exist.
    #[error("it names no channel")]
    Channel,
    /// The JSON around the message is broken.
    #[error("it is not JSON")]
    Json,
    /// A frame for the WebSocket itself.
    #[error("it is no data")]
    NoData,
    /// It cannot be carried.
    #[error("it is too large")]
    TooLarge,
}

/// The WebSocket message for this message.
pub fn encode(protocol: Protocol, message: &Message) -> Result<tungstenite::Message, WireError> {
    match protocol {
        Protocol::V1 => Ok(tungstenite::Message::Binary(encode_v1(message))),
        Protocol::Default if message.buffers.is_empty() => Ok(tungstenite::Message::Text(
            json_envelope(message, true).into(),
        )),
        Protocol::Default => encode_buffers(message).map(tungstenite::Message::Binary),
    }
}

/// The message in this WebSocket message.
pub fn decode(protocol: Protocol, frame: tungstenite::Message) -> Result<Message, WireError> {
    match (protocol, frame) {
        (_, tungstenite::Message::Text(text)) => from_envelope(&text.into(), Vec::new()),
        (Protocol::V1, tungstenite::Message::Binary(frame)) => decode_v1(&frame),
        (Protocol::Default, tungstenite::Message::Binary(frame)) => decode_buffers(&frame),
        _ => Err(WireError::NoData),
    }
}

/// Number of offsets, offsets, channel, parts; an offset is where a part begins, the last one the end. 64 bits, little-endian.
fn encode_v1(message: &Message) -> Bytes {
    let channel = message.channel.name().as_bytes();
    let number = message.buffers.len() + 6;
    let mut at = 8 * (number + 1);
    let mut frame = BytesMut::with_capacity(at + channel.len() + message.size());
    frame.put_u64_le(number as u64);
    frame.put_u64_le(at as u64);
    at += channel.len();
    frame.put_u64_le(at as u64);
    for part in message.parts() {
        at += part.len();
        frame.put_u64_le(at as u64);
    }
    frame.put_slice(channel);
    for part in message.parts() {
        frame.put_slice(part);
    }
    frame.freeze()
}

fn decode_v1(frame: &Bytes) -> Result<Message, WireError> {
    let word = |at: usize| -> Result<usize, WireError> {
        let bytes = frame.get(8 * at..8 * (at + 1)).ok_or(WireError::Offsets)?;
        let bytes = bytes.try_into().map_err(|_| WireError::Offsets)?;
        usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| WireError::Offsets)
    };
    let number = word(0)?;
    if number >= frame.len() / 8 {
        return Err(WireError::Offsets);
    }
    let offsets = (1..=number).map(word).collect::<Result<Vec<_>, _>>()?;
    let mut parts = parts(frame, &offsets)?;
    if parts.len() < 5 {
        return Err(WireError::TooFewParts);
    }
    let channel = Channel::named(&parts.remove(0)).ok_or(WireError::Channel)?;
    Message::from_frames(channel, &parts).ok_or(WireError::TooFewParts)
}

/// Number of parts, where each begins (32 bits, big-endian), the JSON, the buffers.
fn encode_buffers(message: &Message) -> Result<Bytes, WireError> {
    let json = json_envelope(message, false);
    let number = message.buffers.len() + 1;
    let mut at = 4 * (number + 1);
    let buffers: usize = message.buffers.iter().map(Bytes::len).sum();
    let mut frame = BytesMut::with_capacity(at + json.len() + buffers);
    let word = |number: usize| u32::try_from(number).map_err(|_| WireError::TooLarge);
    frame.put_u32(word(number)?);
    frame.put_u32(word(at)?);
    at += json.len();
    for buffer in &message.buffers {
        frame.put_u32(word(at)?);
        at += buffer.len();
    }
    frame.put_slice(json.as_bytes());
    for buffer in &message.buffers {
        frame.put_slice(buffer);
    }
    Ok(frame.freeze())
}

fn decode_buffers(frame: &Bytes) -> Result<Message, WireError> {
    let word = |at: usize| -> Result<usize, WireError> {
        let bytes = frame.get(4 * at..4 * (at + 1)).ok_or(WireError::Offsets)?;
        let bytes = bytes.try_into().map_err(|_| WireError::Offsets)?;
        usize::try_from(u32::from_be_bytes(bytes)).map_err(|_| WireError::Offsets)
    };
    let number = word(0)?;
    if number >= frame.len() / 4 {
        return Err(WireError::Offsets);
    }
    let mut offsets = (1..=number).map(word).collect::<Result<Vec<_>, _>>()?;
    offsets.push(frame.len());
    let mut parts = parts(frame, &offsets)?;
    if parts.is_empty() {
        return Err(WireError::TooFewParts);
    }
    let json = parts.remove(0);
    from_envelope(&json, parts)
}

/// What lies between each two offsets.
fn parts(frame: &Bytes, offsets: &[usize]) -> Result<Vec<Bytes>, WireError> {
    offsets
        .windows(2)
        .map(|pair| match *pair {
            [start, end] if start <= end && end <= frame.len() => Ok(frame.slice(start..end)),
            _ => Err(WireError::Offsets),
        })
        .collect()
}

/// The default encoding's JSON. Without buffers a text must still name them; in a binary frame they stand behind the JSON.
fn json_envelope(message: &Message, with_buffers: bool) -> String {
    let mut json = String::with_capacity(message.size() + 128);
    json.push_str(r#"{"channel":""#);
    json.push_str(message.channel.name());
    json.push('"');
    let names = ["header", "parent_header", "metadata", "content"];
    for (name, part) in names.into_iter().zip(message.json_parts()) {
        json.push_str(",\"");
        json.push_str(name);
        json.push_str("\":");
        if part.is_empty() {
            json.push_str("{}");
        } else {
            json.push_str(&String::from_utf8_lossy(part));
        }
    }
    if with_buffers {
        json.push_str(r#","buffers":[]"#);
    }
    json.push('}');
    json
}

#[derive(Deserialize)]
struct Envelope<'a> {
    channel: Cow<'a, str>,
    #[serde(borrow)]
    header: &'a RawValue,
    #[serde(borrow, default)]
    parent_header: Option<&'a RawValue>,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    content: &'a RawValue,
}

fn from_envelope(json: &Bytes, buffers: Vec<Bytes>) -> Result<Message, WireError> {
    // A part shares the frame's memory, so bytes that are no UTF-8 are replaced in a new one.
    let repaired;
    let json = if std::str::from_utf8(json).is_ok() {
        json
    } else {
        repaired = Bytes::from(String::from_utf8_lossy(json).into_owned());
        &repaired
    };
    let envelope: Envelope<'_> = serde_json::from_slice(json).map_err(|_| WireError::Json)?;
    let channel = Channel::named(envelope.channel.as_bytes()).ok_or(WireError::Channel)?;
    let part = |part: &RawValue| json.slice_ref(part.get().as_bytes());
    Ok(Message {
        channel,
        header: part(envelope.header),
        parent_header: envelope.parent_header.map_or(EMPTY, part),
        metadata: envelope.metadata.map_or(EMPTY, part),
        content: part(envelope.content),
        buffers,
    })
}

#[cfg(test)]
mod tests;
