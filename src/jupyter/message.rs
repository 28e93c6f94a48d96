//! The envelope: what the frames of a message mean, and nothing about how they travel.
//!
//! * What a client wrote passes through as it came: header, parent header, metadata and content are kept as their bytes and
//!   checked to be JSON; only the few fields that the kernel acts on are read. (Bytes of metadata and content that are no
//!   UTF-8 are replaced.)
//! * The header of a request is the parent of whatever answers it, byte for byte, with all fields that we do not know.
//! * Signatures cover the four JSON frames and not the buffers (messaging spec, "The wire protocol").

use std::fmt;

use bytes::Bytes;
use chrono::{SecondsFormat, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::connection::ConnectionInfo;
use super::signing::{Refused, Signer};
use crate::backend::JsonMap;

/// The version of the messaging spec that our headers name.
pub const PROTOCOL_VERSION: &str = "5.5";

/// The frame between the routing identities and the message.
pub(super) const DELIMITER: &[u8] = b"<IDS|MSG>";

/// Who we are on the wire: the session id of this process, and the key.
#[derive(Debug)]
pub struct Session {
    id: String,
    username: String,
    signer: Signer,
}

impl Session {
    /// A new session, signing as the connection file says.
    pub fn new(info: &ConnectionInfo) -> Self {
        let username = ["USER", "USERNAME"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()))
            .unwrap_or_else(|| "username".to_owned());
        Self {
            id: Uuid::new_v4().to_string(),
            username,
            signer: Signer::new(info.signature_scheme, &info.key),
        }
    }

    /// The session's id, new in each process: clients take a changed id for a restarted kernel.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The frames of a message, from the delimiter on.
    pub(crate) fn encode(&self, message: OutMessage) -> Vec<Bytes> {
        let header = to_json(&OutHeader {
            msg_id: message.msg_id.to_string(),
            msg_type: &message.msg_type,
            username: &self.username,
            session: &self.id,
            date: Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true),
            version: PROTOCOL_VERSION,
        });
        let metadata = to_json(&message.metadata);
        let content: Box<str> = message.content.into();
        let content = Bytes::from(String::from(content));
        let signature = self
            .signer
            .sign([&header, &message.parent.0, &metadata, &content]);
        let mut frames = Vec::with_capacity(6 + message.buffers.len());
        frames.push(Bytes::from_static(DELIMITER));
        frames.push(signature.into());
        frames.extend([header, message.parent.0, metadata, content]);
        frames.extend(message.buffers);
        frames
    }

    /// Reads and verifies a message as it came from a socket, routing identities first.
    pub(crate) fn decode(&self, mut frames: Vec<Bytes>) -> Result<Request, Invalid> {
        let delimiter = frames
            .iter()
            .position(|frame| frame.as_ref() == DELIMITER)
            .ok_or(Invalid::NoDelimiter)?;
        let mut rest = frames.split_off(delimiter + 1);
        if rest.len() < 5 {
            return Err(Invalid::TooFewFrames);
        }
        let buffers = rest.split_off(5);
        let Ok([signature, header, parent, metadata, content]) = <[Bytes; 5]>::try_from(rest)
        else {
            return Err(Invalid::TooFewFrames);
        };
        self.signer
            .verify(&signature, [&header, &parent, &metadata, &content])?;
        frames.truncate(delimiter);
        let raw = raw_json(&header).ok_or(Invalid::Header)?;
        Ok(Request {
            identities: frames,
            header: serde_json::from_str(raw.get()).map_err(|_| Invalid::Header)?,
            parent_header: raw_json(&parent).ok_or(Invalid::Json("parent_header"))?,
            metadata: lenient_json(&metadata).ok_or(Invalid::Json("metadata"))?,
            content: lenient_json(&content).ok_or(Invalid::Json("content"))?,
            buffers,
            raw_header: header,
        })
    }
}

/// Why a message is dropped. Says nothing of what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("it has no <IDS|MSG> delimiter")]
    NoDelimiter,
    #[error("it has too few frames")]
    TooFewFrames,
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("its header is not one")]
    Header,
    #[error("its {0} is not JSON")]
    Json(&'static str),
}

#[derive(Serialize)]
struct OutHeader<'a> {
    msg_id: String,
    msg_type: &'a str,
    username: &'a str,
    session: &'a str,
    date: String,
    version: &'a str,
}

/// The header of a request, byte for byte, as the parent of what answers it.
#[derive(Clone, PartialEq, Eq)]
pub struct Parent(Bytes);

impl Parent {
    /// No parent: `{}`.
    pub fn none() -> Self {
        Self(Bytes::from_static(b"{}"))
    }

    /// The request with this header, which came from a request.
    pub fn of_header(header: Bytes) -> Self {
        Self(header)
    }

    /// The header's JSON.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parent({})", String::from_utf8_lossy(&self.0))
    }
}

/// The fields of a header that the kernel reads. All others stay in the raw header and so in [`Parent`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Header {
    /// Unique id of the message.
    pub msg_id: String,
    /// What it is.
    pub msg_type: String,
    /// The client's session.
    #[serde(default, deserialize_with = "or_empty")]
    pub session: String,
    /// The user.
    #[serde(default, deserialize_with = "or_empty")]
    pub username: String,
    /// The subshell (JEP 91), where one is named.
    #[serde(default)]
    pub subshell_id: Option<String>,
}

/// A verified message from a client.
#[derive(Clone)]
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
    raw_header: Bytes,
}

impl Request {
    /// What it is.
    pub fn msg_type(&self) -> &str {
        &self.header.msg_type
    }

    /// The parent of everything that answers this request.
    pub fn parent(&self) -> Parent {
        Parent(self.raw_header.clone())
    }

    /// The content, read as `T`.
    pub fn content<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.content.get())
    }
}

/// Shows which message it is, and nothing of the user's code or data.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("msg_type", &self.header.msg_type)
            .field("msg_id", &self.header.msg_id)
            .finish_non_exhaustive()
    }
}

/// A message to send.
#[derive(Debug, Clone)]
pub struct OutMessage {
    /// Its unique id, which answers to it name.
    pub msg_id: Uuid,
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
    /// A message without metadata and buffers. Content that has no JSON form (a map whose keys are no strings) becomes `{}`
    /// and an error in the log: a client that waits for a message gets one.
    pub fn new(msg_type: impl Into<String>, parent: &Parent, content: &impl Serialize) -> Self {
        let msg_type = msg_type.into();
        let content = serde_json::value::to_raw_value(content).unwrap_or_else(|error| {
            tracing::error!(msg_type, %error, "content has no JSON form");
            serde_json::value::to_raw_value(&JsonMap::new())
                .unwrap_or_else(|_| RawValue::NULL.to_owned())
        });
        Self {
            msg_id: Uuid::new_v4(),
            msg_type,
            parent: parent.clone(),
            content,
            metadata: JsonMap::new(),
            buffers: Vec::new(),
        }
    }
}

/// JSON of what cannot fail to have one: structs of strings, and maps keyed by strings.
fn to_json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).map_or_else(|_| Bytes::from_static(b"{}"), Bytes::from)
}

/// Fields that some clients leave null.
fn or_empty<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

fn raw_json(frame: &[u8]) -> Option<Box<RawValue>> {
    serde_json::from_slice(frame).ok()
}

/// JSON in which jupyter_client has written half characters as raw bytes: they are replaced, as ipykernel does it.
fn lenient_json(frame: &[u8]) -> Option<Box<RawValue>> {
    raw_json(frame).or_else(|| serde_json::from_str(&String::from_utf8_lossy(frame)).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jupyter::connection::{SecretKey, Transport};
    use crate::jupyter::signing::Scheme;

    fn session(key: &str) -> Session {
        Session::new(&ConnectionInfo {
            transport: Transport::Tcp,
            ip: "127.0.0.1".into(),
            shell_port: 1,
            control_port: 1,
            stdin_port: 1,
            iopub_port: 1,
            hb_port: 1,
            key: SecretKey::new(key),
            signature_scheme: Scheme::HmacSha256,
            kernel_name: None,
        })
    }

    fn signed(session: &Session, parts: [&'static str; 4]) -> Vec<Bytes> {
        let parts = parts.map(|part| Bytes::from_static(part.as_bytes()));
        let signature = session
            .signer
            .sign([&parts[0], &parts[1], &parts[2], &parts[3]]);
        let mut frames: Vec<Bytes> = vec!["client".into(), DELIMITER.into(), signature.into()];
        frames.extend(parts);
        frames
    }

    const HEADER: &str = "{ \"msg_id\":\"1\", \"msg_type\": \"x_request\",\"date\":\"2026-01-01T00:00:00+02:00\",\
                          \"subshell_id\":\"s\", \"later\":[1.0,1e2] }";

    #[test]
    fn header_metadata_and_content_pass_through_byte_for_byte() {
        let session = session("key");
        let mut frames = signed(
            &session,
            [HEADER, "{ }", "{\"cellId\" : 1}", "{\"n\":1.00}"],
        );
        frames.push(Bytes::from_static(b"\x00\xff"));
        let request = session.decode(frames).unwrap();
        assert_eq!(request.identities, ["client"]);
        assert_eq!(request.parent().as_bytes(), HEADER);
        assert_eq!(request.metadata.get(), "{\"cellId\" : 1}");
        assert_eq!(request.content.get(), "{\"n\":1.00}");
        assert_eq!(request.header.subshell_id.as_deref(), Some("s"));
        assert_eq!(request.buffers, [b"\x00\xff".as_slice()]);
    }

    #[test]
    fn what_is_sent_can_be_read_and_carries_the_parent() {
        let session = session("key");
        let request = session
            .decode(signed(&session, [HEADER, "{}", "{}", "{}"]))
            .unwrap();
        let mut message =
            OutMessage::new("x_reply", &request.parent(), &serde_json::json!({"a": "é"}));
        message.buffers.push(Bytes::from_static(b"raw"));
        let reply = session.decode(session.encode(message)).unwrap();
        assert_eq!(reply.msg_type(), "x_reply");
        assert_eq!(reply.header.session, session.id());
        assert_eq!(reply.parent_header.get(), HEADER.trim());
        assert_eq!(reply.content.get(), "{\"a\":\"é\"}");
        assert_eq!(reply.buffers, ["raw"]);
    }

    #[test]
    fn a_header_has_the_specs_fields() {
        let session = session("");
        let frames = session.encode(OutMessage::new("status", &Parent::none(), &()));
        assert!(frames[1].is_empty(), "unsigned");
        assert_eq!(frames[3], "{}");
        let header: JsonMap = serde_json::from_slice(&frames[2]).unwrap();
        for name in [
            "msg_id", "msg_type", "username", "session", "date", "version",
        ] {
            assert!(header[name].is_string(), "{name}");
        }
        let date = header["date"].as_str().unwrap();
        assert!(
            date.ends_with('Z') && date.len() == "2026-01-01T00:00:00.000000Z".len(),
            "{date}"
        );
    }

    #[test]
    fn malformed_messages_are_named() {
        let session = session("key");
        let good = [HEADER, "{}", "{}", "{}"];
        let mut frames = signed(&session, good);
        frames.remove(1);
        assert_eq!(session.decode(frames).unwrap_err(), Invalid::NoDelimiter);
        let mut frames = signed(&session, good);
        frames.pop();
        assert_eq!(session.decode(frames).unwrap_err(), Invalid::TooFewFrames);
        for (at, expected) in [
            (0, Invalid::Header),
            (1, Invalid::Json("parent_header")),
            (2, Invalid::Json("metadata")),
            (3, Invalid::Json("content")),
        ] {
            let mut parts = good;
            parts[at] = "{\"broken\":";
            assert_eq!(
                session.decode(signed(&session, parts)).unwrap_err(),
                expected
            );
        }
        assert_eq!(
            session.decode(Vec::new()).unwrap_err(),
            Invalid::NoDelimiter
        );
    }

    #[test]
    fn bytes_of_half_characters_do_not_make_a_message_unreadable() {
        let session = session("");
        let mut frames = signed(&session, [HEADER, "{}", "{}", "{}"]);
        frames[6] = Bytes::from_static(b"{\"code\":\"a\xff\"}");
        let request = session.decode(frames).unwrap();
        assert_eq!(request.content.get(), "{\"code\":\"a\u{fffd}\"}");
    }

    #[test]
    fn debug_output_shows_no_content() {
        let session = session("key");
        let frames = signed(&session, [HEADER, "{}", "{}", "{\"code\":\"secret()\"}"]);
        let request = session.decode(frames).unwrap();
        assert!(!format!("{request:?}").contains("secret"));
    }
}
