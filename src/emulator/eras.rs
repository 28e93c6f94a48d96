//! Which MCP exchange a request belongs to, and whether this server takes part in it.
//!
//! Three eras: 2026-07-28 (no handshake, headers that mirror the body), plain (the reference's own curl sample: nothing but the
//! JSON-RPC message) and 2025-11-25 with its predecessors (a handshake, then a session id).

use std::collections::HashMap;
use std::sync::Mutex;

use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use serde_json::{Value, json};
use uuid::Uuid;

use super::errors::locked;
use super::quirks::EraQuirk;

/// The version without a handshake.
pub(super) const MODERN: &str = "2026-07-28";

/// The versions with a handshake, newest first.
pub(super) const LEGACY: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// The era of a request that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Era {
    /// 2026-07-28
    Modern,
    /// The reference's sample.
    Plain,
    /// 2025-11-25 or older, with its session id where one was given.
    Legacy(Option<String>),
}

/// Why a request was not taken: an HTTP status and a body.
pub(super) type Refusal = (StatusCode, Value);

/// The open sessions of the legacy era and whether each has been initialised.
#[derive(Default)]
pub(super) struct McpSessions(Mutex<HashMap<String, bool>>);

impl McpSessions {
    /// Opens a session.
    pub fn open(&self) -> String {
        let id = Uuid::new_v4().to_string();
        locked(&self.0).insert(id.clone(), false);
        id
    }

    /// Ends a session; says whether it was there.
    pub fn close(&self, id: &str) -> bool {
        locked(&self.0).remove(id).is_some()
    }

    /// Notes `notifications/initialized`.
    pub fn initialize(&self, id: &str) {
        if let Some(initialised) = locked(&self.0).get_mut(id) {
            *initialised = true;
        }
    }

    fn get(&self, id: &str) -> Option<bool> {
        locked(&self.0).get(id).copied()
    }
}

/// Tells the era of a message and refuses what its specification, or the quirk, says is to be refused.
pub(super) fn judge(
    quirk: EraQuirk,
    sessions: &McpSessions,
    headers: &HeaderMap,
    message: &Value,
) -> Result<Era, Refusal> {
    let version = header(headers, "mcp-protocol-version");
    let session = header(headers, "mcp-session-id").map(str::to_owned);
    let in_body = message["params"]["_meta"][META_VERSION].as_str();
    let method = message["method"].as_str().unwrap_or_default();
    let is_notification = message.get("id").is_none();
    let id = &message["id"];

    if quirk == EraQuirk::Plain {
        // A server that has never heard of either: the headers are not in its list.
        let foreign = version.is_some() || session.is_some() || in_body.is_some();
        if foreign {
            return Err((
                StatusCode::BAD_REQUEST,
                json!({"error": {"code": 400, "message": "Request contains an invalid argument.", "status": "INVALID_ARGUMENT"}}),
            ));
        }
        if method == "initialize" || method == "server/discover" {
            return Err(method_not_found(id, method));
        }
        return Ok(Era::Plain);
    }

    let is_modern = version == Some(MODERN);
    if quirk == EraQuirk::Legacy {
        return judge_legacy(sessions, version, session, id, method);
    }
    if is_modern {
        if !is_notification {
            check_modern(headers, message, in_body)?;
        }
        return Ok(Era::Modern);
    }
    if let Some(version) = version {
        let known = quirk == EraQuirk::Any && LEGACY.contains(&version);
        if !known {
            return Err(unsupported(quirk, version, id));
        }
    }
    if quirk == EraQuirk::Modern || in_body.is_some() {
        // Headers of notifications are not defined by this revision.
        if is_notification {
            return Ok(Era::Modern);
        }
        return Err(mismatch(id, "The MCP-Protocol-Version header is missing"));
    }
    if let Some(session) = session {
        if sessions.get(&session).is_none() {
            return Err(session_not_found(id));
        }
        return Ok(Era::Legacy(Some(session)));
    }
    if method == "initialize" || version.is_some() {
        return Ok(Era::Legacy(None));
    }
    Ok(Era::Plain)
}

fn judge_legacy(
    sessions: &McpSessions,
    version: Option<&str>,
    session: Option<String>,
    id: &Value,
    method: &str,
) -> Result<Era, Refusal> {
    if let Some(version) = version.filter(|version| !LEGACY.contains(version)) {
        let message = format!(
            "Bad Request: Unsupported protocol version: {version} (supported versions: {})",
            LEGACY.join(", ")
        );
        return Err(refusal(StatusCode::BAD_REQUEST, id, -32000, &message));
    }
    if method == "initialize" {
        return Ok(Era::Legacy(None));
    }
    let Some(session) = session else {
        let message = "Bad Request: Mcp-Session-Id header is required";
        return Err(refusal(StatusCode::BAD_REQUEST, id, -32000, message));
    };
    match sessions.get(&session) {
        None => Err(session_not_found(id)),
        Some(false) if method.starts_with("tools/") => {
            let message = "Received a request before initialization was complete";
            Err(refusal(StatusCode::BAD_REQUEST, id, -32602, message))
        }
        Some(_) => Ok(Era::Legacy(Some(session))),
    }
}

/// The rules of 2026-07-28, "Server Validation": what is mirrored in headers must be there and equal.
fn check_modern(
    headers: &HeaderMap,
    message: &Value,
    in_body: Option<&str>,
) -> Result<(), Refusal> {
    let id = &message["id"];
    let params = &message["params"];
    let method = message["method"].as_str().unwrap_or_default();
    if in_body != Some(MODERN) {
        return Err(mismatch(id, "MCP-Protocol-Version differs from _meta"));
    }
    if !params["_meta"][META_CAPABILITIES].is_object() {
        let message = format!("_meta[\"{META_CAPABILITIES}\"] is required");
        return Err(refusal(StatusCode::BAD_REQUEST, id, -32602, &message));
    }
    if header(headers, "mcp-method") != Some(method) {
        return Err(mismatch(
            id,
            "Mcp-Method is missing or differs from the method",
        ));
    }
    if method == "tools/call" {
        let name = header(headers, "mcp-name").map(decode_header);
        if name.as_deref() != params["name"].as_str() {
            return Err(mismatch(id, "Mcp-Name is missing or differs from the name"));
        }
    }
    Ok(())
}

/// Values that are no plain ASCII come as `=?base64?…?=`.
fn decode_header(value: &str) -> String {
    let encoded = value
        .strip_prefix("=?base64?")
        .and_then(|rest| rest.strip_suffix("?="));
    let decoded = encoded.and_then(|text| base64::prelude::BASE64_STANDARD.decode(text).ok());
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    text.unwrap_or_else(|| value.to_owned())
}

/// `-32601` with the status that its era gives it.
pub(super) fn method_not_found(id: &Value, method: &str) -> Refusal {
    let message = format!("Method not found: {method}");
    refusal(StatusCode::NOT_FOUND, id, -32601, &message)
}

/// A JSON-RPC error with an HTTP status.
pub(super) fn refusal(status: StatusCode, id: &Value, code: i32, message: &str) -> Refusal {
    (
        status,
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}),
    )
}

fn mismatch(id: &Value, message: &str) -> Refusal {
    refusal(StatusCode::BAD_REQUEST, id, -32020, message)
}

fn session_not_found(id: &Value) -> Refusal {
    refusal(StatusCode::NOT_FOUND, id, -32001, "Session not found")
}

fn unsupported(quirk: EraQuirk, requested: &str, id: &Value) -> Refusal {
    let mut supported = vec![MODERN];
    if quirk == EraQuirk::Any {
        supported.extend(LEGACY);
    }
    let (status, mut body) = refusal(
        StatusCode::BAD_REQUEST,
        id,
        -32022,
        "Unsupported protocol version",
    );
    body["error"]["data"] = json!({"supported": supported, "requested": requested});
    (status, body)
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
