//! Making one [`Status`] of whatever the service said: an HTTP error, a JSON-RPC error, a failed tool result.
//!
//! How Colab reports errors over MCP is not documented, so every documented form of `google.rpc.Status` is recognised on every
//! surface. The order is always the same: a structured status (a canonical name, a `google.rpc` number, typed details) beats
//! words in a text, words beat the HTTP status, and the HTTP status beats a JSON-RPC number that says nothing of the cause.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER, WWW_AUTHENTICATE};
use serde_json::{Map, Value};

use super::errors::{Code, Origin, Status};
use super::words;

/// A server that never stops describing its error is cut here.
const MESSAGE_CHARS: usize = 2000;

/// The status of an answer with HTTP status ≥ 300.
pub(crate) fn from_http(status: u16, headers: &HeaderMap, body: &[u8]) -> Status {
    let text = String::from_utf8_lossy(body);
    let parsed: Option<Value> = serde_json::from_str(text.trim()).ok();
    let title = http_title(status);
    let mut found = parsed.as_ref().map(Found::in_value).unwrap_or_default();
    if parsed.is_none() {
        let plain = words::readable(&text);
        found.code = words::leading_code(&plain);
        found.message = (!plain.is_empty()).then(|| match found.code {
            Some(_) => plain.clone(),
            None => format!("{title}: {}", words::cut(&plain, 300)),
        });
    }
    if status == 401 || status == 403 {
        found.reason = found.reason.or_else(|| challenge_error(headers));
    }
    let code = found.code.unwrap_or_else(|| Code::from_http(status));
    let mut made = found.into_status(code, || title);
    made.retry_after = made.retry_after.max(retry_after(headers));
    made
}

/// The status of a JSON-RPC `error` object.
pub(crate) fn from_rpc(error: &Value) -> Status {
    let mut found = Found::in_value(error);
    let number = error.get("code").and_then(as_integer);
    let code = found
        .code
        .or_else(|| number.map(code_of_rpc))
        .unwrap_or(Code::Unknown);
    if found.message.is_none()
        && let Some(text) = error.as_str()
    {
        found.message = Some(text.to_owned());
    }
    let mut status = found.into_status(code, || match number {
        Some(number) => format!("The server answered with JSON-RPC error {number}"),
        None => "The server answered with an error and no reason".to_owned(),
    });
    if matches!(number, Some(-32022 | -32021 | -32020 | -32700)) {
        status.origin = Origin::Protocol;
    }
    status
}

/// The status of a tool result with `isError: true`.
pub(crate) fn from_tool(result: &Value) -> Status {
    let mut found = Found::default();
    if let Some(structured) = result.get("structuredContent") {
        found = found.or(Found::in_value(structured));
    }
    let parts: Vec<&str> = result
        .get("content")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|part| part.get("text").and_then(Value::as_str))
        .collect();
    for text in &parts {
        found = found.or(Found::in_text(text));
    }
    if found.message.is_none() && !parts.is_empty() {
        found.message = Some(parts.join("\n"));
    }
    let code = found.code.unwrap_or(Code::Unknown);
    found.into_status(code, || "The tool failed and gave no reason".to_owned())
}

/// The status of a bare `google.rpc.Status`, as an Operation carries it.
pub(crate) fn from_google(status: &Value) -> Status {
    let found = Found::in_value(status);
    let code = found.code.unwrap_or(Code::Unknown);
    found.into_status(code, || {
        "The operation failed and gave no reason".to_owned()
    })
}

/// Whether a body is an error in a form that only the service itself gives: then it is about the call, not about the era.
pub(crate) fn is_google_error(body: &Value) -> bool {
    let body = body
        .as_array()
        .and_then(|list| list.first())
        .unwrap_or(body);
    let error = body.get("error").unwrap_or(body);
    error
        .get("status")
        .and_then(Value::as_str)
        .is_some_and(|name| Code::from_name(name).is_some())
        || error
            .get("code")
            .and_then(as_integer)
            .is_some_and(|n| Code::from_number(n).is_some())
        || error
            .get("data")
            .is_some_and(|data| Found::in_value(data).code.is_some())
}

/// `Retry-After` in either form (RFC 9110 §10.2.3); a date is read against the server's own clock where it is given.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds.max(0.0)).ok();
    }
    let when = chrono::DateTime::parse_from_rfc2822(text).ok()?;
    let now = headers
        .get(DATE)
        .and_then(|date| date.to_str().ok())
        .and_then(|date| chrono::DateTime::parse_from_rfc2822(date).ok())
        .map_or_else(chrono::Utc::now, |date| date.to_utc());
    Some((when.to_utc() - now).to_std().unwrap_or(Duration::ZERO))
}

/// What has been found out about an error so far.
#[derive(Debug, Default)]
struct Found {
    code: Option<Code>,
    message: Option<String>,
    reason: Option<String>,
    metadata: BTreeMap<String, String>,
    retry_after: Option<Duration>,
}

impl Found {
    /// Keeps what is known and takes the rest from another finding.
    fn or(self, other: Self) -> Self {
        Self {
            code: self.code.or(other.code),
            message: self.message.or(other.message),
            reason: self.reason.or(other.reason),
            metadata: if self.metadata.is_empty() {
                other.metadata
            } else {
                self.metadata
            },
            retry_after: self.retry_after.or(other.retry_after),
        }
    }

    /// Reads a JSON value that may be, hold or wrap a `google.rpc.Status`.
    fn in_value(value: &Value) -> Self {
        Self::at_depth(value, 0)
    }

    fn at_depth(value: &Value, depth: u8) -> Self {
        if depth > 4 {
            return Self::default();
        }
        match value {
            Value::Array(list) => list.iter().fold(Self::default(), |found, item| {
                found.or(Self::at_depth(item, depth + 1))
            }),
            Value::String(text) => Self::in_text(text),
            Value::Object(object) => Self::in_object(object, depth),
            _ => Self::default(),
        }
    }

    fn in_object(object: &Map<String, Value>, depth: u8) -> Self {
        let mut found = Self::default();
        // The details first: what they say is the most exact.
        for key in ["error", "data", "details", "errorDetails", "error_details"] {
            if let Some(inner) = object.get(key) {
                let deeper = Self::at_depth(inner, depth + 1);
                found = if key == "error" || key == "data" {
                    // A nested status has a message of its own; this object's is kept below if it has none.
                    found.or(deeper)
                } else {
                    found.or(Self {
                        code: None,
                        message: None,
                        ..deeper
                    })
                };
            }
        }
        let text = |key: &str| object.get(key).and_then(Value::as_str);
        let named = ["status", "code", "grpcStatus"]
            .into_iter()
            .filter_map(text)
            .find_map(Code::from_name);
        let numbered = ["code", "status", "statusCode"]
            .into_iter()
            .filter_map(|key| object.get(key).and_then(as_integer))
            .find_map(|number| match number {
                1..=16 => Code::from_number(number),
                400..=599 => u16::try_from(number).ok().map(Code::from_http),
                _ => None,
            });
        let message = ["message", "error_description", "detail"]
            .into_iter()
            .find_map(text);
        let own = Self {
            code: named
                .or(numbered)
                .or_else(|| message.and_then(words::leading_code)),
            message: message
                .filter(|message| !message.trim().is_empty())
                .map(str::to_owned),
            reason: text("reason").map(str::to_owned),
            metadata: object
                .get("metadata")
                .and_then(Value::as_object)
                .map(string_map)
                .unwrap_or_default(),
            retry_after: ["retryDelay", "retry_delay"]
                .into_iter()
                .filter_map(|key| object.get(key))
                .find_map(proto_duration),
        };
        // The outer message is the one meant for people, unless only the inner object says what it is about: then the outer is
        // the words of a layer that did not know ("Internal error").
        let (own_code, own_message) = (own.code, own.message.clone());
        let message = if own_code.is_none() && found.code.is_some() {
            found.message.take().or(own_message)
        } else {
            own_message.or(found.message.take())
        };
        let mut all = Self {
            message,
            ..found.or(own)
        };
        if named.is_some() {
            all.code = own_code;
        }
        all
    }

    /// Reads a text: JSON, JSON after a prefix, or words that name a canonical code.
    fn in_text(text: &str) -> Self {
        let trimmed = text.trim();
        let json = embedded_json(trimmed);
        let mut found = match &json {
            Some(value) => Self::in_value(value),
            None => Self::default(),
        };
        found.code = found.code.or_else(|| words::code_in(trimmed));
        found.reason = found.reason.or_else(|| words::reason_in(trimmed));
        if found.code.is_none() && found.reason.as_deref().is_some_and(words::is_precondition) {
            found.code = Some(Code::FailedPrecondition);
        }
        if found.message.is_none() && !trimmed.is_empty() {
            found.message = Some(words::readable(trimmed));
        }
        found
    }

    fn into_status(self, code: Code, otherwise: impl FnOnce() -> String) -> Status {
        let message = self.message.map_or_else(otherwise, |message| {
            words::without_code(&message, code).to_owned()
        });
        Status {
            code,
            origin: Origin::Service,
            message: words::cut(&words::mask_secrets(message.trim()), MESSAGE_CHARS),
            reason: self.reason.filter(|reason| !reason.is_empty()),
            metadata: self.metadata,
            retry_after: self.retry_after,
        }
    }
}

/// A JSON object or array that is the text, or that follows a prefix such as `Error executing tool x: `.
fn embedded_json(text: &str) -> Option<Value> {
    let start = text.find(['{', '['])?;
    let end = text.rfind(['}', ']'])?;
    serde_json::from_str(text.get(start..=end)?).ok()
}

/// JSON-RPC 2.0 §5.1 and the MCP schema's error codes.
fn code_of_rpc(number: i64) -> Code {
    match number {
        -32700 | -32600 | -32602 | -32020 => Code::InvalidArgument,
        -32601 | -32021 | -32022 => Code::Unimplemented,
        -32603 => Code::Internal,
        -32800 => Code::Cancelled,
        _ => Code::Unknown,
    }
}

/// `error` of a `WWW-Authenticate` challenge (RFC 6750 §3), such as `insufficient_scope`.
fn challenge_error(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(WWW_AUTHENTICATE)?.to_str().ok()?;
    let (_, rest) = text.split_once("error=\"")?;
    let (error, _) = rest.split_once('"')?;
    Some(error.to_owned())
}

fn http_title(status: u16) -> String {
    let name = reqwest::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or_default();
    format!("HTTP {status} {name}").trim_end().to_owned()
}

fn string_map(object: &Map<String, Value>) -> BTreeMap<String, String> {
    object
        .iter()
        .map(|(key, value)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            (key.clone(), words::mask_secrets(&text))
        })
        .collect()
}

/// An integer, also as a float without a fraction or as a string.
pub(crate) fn as_integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64()?;
            #[allow(clippy::cast_possible_truncation)]
            (float.fract() == 0.0 && float.abs() < 9.0e15).then_some(float as i64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// `google.protobuf.Duration` in proto-JSON (`"1.5s"`) or as its fields.
fn proto_duration(value: &Value) -> Option<Duration> {
    let seconds = match value {
        Value::String(text) => text.trim().trim_end_matches('s').parse::<f64>().ok()?,
        Value::Number(number) => number.as_f64()?,
        Value::Object(fields) => {
            let part = |key| fields.get(key).and_then(as_integer).unwrap_or(0);
            #[allow(clippy::cast_precision_loss)]
            let seconds = part("seconds") as f64 + part("nanos") as f64 / 1e9;
            seconds
        }
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds.max(0.0)).ok()
}

#[cfg(test)]
mod tests;
