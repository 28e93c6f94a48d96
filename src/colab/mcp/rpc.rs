//! JSON-RPC 2.0 messages: what is sent, and what comes back on the answer to one request.
//!
//! Invariant: ids are integers that no other process of ours uses. A cancel is a POST of its own, and in a stateless transport
//! the id alone says which call is meant.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::Progress;
use super::errors::Status;
use super::normalise;
use super::sse;
use crate::backend::JsonMap;

/// The id of a request, and the token of its progress.
///
/// An integer, because that is what the service's samples and all SDKs send; below 2^53, because some servers read numbers as
/// doubles; counted up from a random start, so that two processes do not meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestId(u64);

impl RequestId {
    pub(crate) fn fresh() -> Self {
        static NEXT: OnceLock<AtomicU64> = OnceLock::new();
        let next = NEXT.get_or_init(|| {
            let random = uuid::Uuid::new_v4().as_u64_pair().0;
            // 52 random bits leave as many numbers again to count up through.
            AtomicU64::new((random >> 12).max(1))
        });
        Self(next.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether a server means this id: some echo it as a string, or as a float.
    fn is(self, value: &Value) -> bool {
        normalise::as_integer(value).and_then(|n| u64::try_from(n).ok()) == Some(self.0)
    }

    pub(crate) fn value(self) -> Value {
        Value::from(self.0)
    }
}

/// A request's text.
pub(crate) fn request(id: RequestId, method: &str, params: Option<Map<String, Value>>) -> String {
    let mut message = json!({"jsonrpc": "2.0", "id": id.value(), "method": method});
    if let Some(params) = params {
        message["params"] = Value::Object(params);
    }
    message.to_string()
}

/// A notification's text.
pub(crate) fn notification(method: &str, params: Option<Map<String, Value>>) -> String {
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    if let Some(params) = params {
        message["params"] = Value::Object(params);
    }
    message.to_string()
}

/// What one message means to the request on whose answer it came.
#[derive(Debug)]
pub(crate) enum Incoming {
    Progress(Progress),
    Result(Value),
    /// The JSON-RPC `error` object.
    Error(Value),
    /// The server asks something and waits for the reply.
    Request {
        id: Value,
        method: String,
    },
    /// Nothing to this request.
    Other,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ProgressParams {
    #[serde(rename = "progressToken", alias = "progress_token", default)]
    token: Option<Value>,
    #[serde(default)]
    progress: Option<Value>,
    #[serde(default)]
    total: Option<Value>,
    #[serde(default)]
    message: Option<Value>,
    #[serde(rename = "_meta", default)]
    meta: Option<JsonMap>,
}

/// Reads a message that came on the answer to request `id`.
pub(crate) fn incoming(text: &str, id: RequestId) -> Result<Incoming, Status> {
    match read(text, id) {
        Ok(incoming) => Ok(incoming),
        Err(error) => match without_lone_surrogates(text) {
            Some(repaired) => read(&repaired, id).map_err(|error| sse::truncated(&error)),
            None => Err(sse::truncated(&error)),
        },
    }
}

fn read(text: &str, id: RequestId) -> Result<Incoming, serde_json::Error> {
    let envelope: Envelope<'_> = serde_json::from_str(text)?;
    if let Some(method) = envelope.method {
        if method == "notifications/progress" {
            let Some(params) = envelope.params else {
                return Ok(Incoming::Other);
            };
            let params: ProgressParams = serde_json::from_str(params.get())?;
            if params.token.as_ref().is_some_and(|token| !id.is(token)) {
                return Ok(Incoming::Other);
            }
            return Ok(Incoming::Progress(params.into()));
        }
        return Ok(match envelope.id {
            Some(id) if !id.is_null() => Incoming::Request { id, method },
            _ => Incoming::Other,
        });
    }
    // An answer without an id can only be to the one request of this exchange.
    let is_named = envelope.id.as_ref().is_some_and(|answered| id.is(answered));
    if !is_named && envelope.id.is_some_and(|answered| !answered.is_null()) {
        return Ok(Incoming::Other);
    }
    if let Some(error) = envelope.error.filter(|error| !error.is_null()) {
        return Ok(Incoming::Error(error));
    }
    match envelope.result {
        Some(result) => Ok(Incoming::Result(serde_json::from_str(result.get())?)),
        None if is_named => Ok(Incoming::Result(Value::Null)),
        None => Ok(Incoming::Other),
    }
}

impl From<ProgressParams> for Progress {
    fn from(params: ProgressParams) -> Self {
        let number = |value: Value| match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        Self {
            progress: params.progress.and_then(number).unwrap_or_default(),
            total: params.total.and_then(number),
            message: params.message.and_then(|message| match message {
                Value::Null => None,
                Value::String(text) => Some(text),
                other => Some(other.to_string()),
            }),
            meta: params.meta.unwrap_or_default(),
        }
    }
}

/// The text with escapes of half a surrogate pair made U+FFFD, or `None` if there are none.
///
/// A server that counts in UTF-16 may cut its text inside a character; JSON allows the escape, Rust's strings do not.
pub(crate) fn without_lone_surrogates(text: &str) -> Option<String> {
    let unit_at = |at: usize| -> Option<u16> {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut out = String::with_capacity(text.len());
    let mut changed = false;
    let mut at = 0;
    while let Some(found) = text[at..].find('\\') {
        out.push_str(&text[at..at + found]);
        at += found;
        match unit_at(at) {
            Some(0xD800..=0xDBFF) if matches!(unit_at(at + 6), Some(0xDC00..=0xDFFF)) => {
                out.push_str(&text[at..at + 12]);
                at += 12;
            }
            Some(0xD800..=0xDFFF) => {
                out.push_str("\\ufffd");
                changed = true;
                at += 6;
            }
            _ => {
                // The escaped character is skipped with its backslash, so that `\\u` is not taken for an escape.
                let escaped = text[at + 1..].chars().next().map_or(0, char::len_utf8);
                out.push_str(&text[at..=at + escaped]);
                at += 1 + escaped;
            }
        }
    }
    out.push_str(&text[at..]);
    changed.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(id: RequestId, message: &Value) -> Incoming {
        incoming(&message.to_string(), id).unwrap()
    }

    #[test]
    fn ids_are_large_and_differ() {
        let (a, b) = (RequestId::fresh(), RequestId::fresh());
        assert_ne!(a, b);
        assert!(a.0 < 1 << 53);
    }

    #[test]
    fn an_answer_is_ours_whatever_the_form_of_its_id() {
        // A float that is read back inexactly by parsers that cut corners.
        let id = RequestId(4_412_345_678_901_233);
        #[allow(clippy::cast_precision_loss)]
        let float = id.0 as f64;
        for echoed in [
            id.value(),
            Value::from(id.0.to_string()),
            Value::from(float),
            Value::Null,
        ] {
            let message = json!({"jsonrpc": "2.0", "id": echoed, "result": {"x": 1}});
            assert!(matches!(of(id, &message), Incoming::Result(_)), "{echoed}");
        }
        let other = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
        assert!(matches!(of(id, &other), Incoming::Other));
    }

    #[test]
    fn progress_of_another_token_is_not_ours() {
        let id = RequestId::fresh();
        let progress = |token: Value| json!({"method": "notifications/progress", "params": {"progressToken": token, "progress": "2", "message": "hi", "_meta": {"stream": "stderr"}}});
        let Incoming::Progress(got) = of(id, &progress(Value::from(id.0.to_string()))) else {
            panic!("not read");
        };
        assert_eq!(got.message.as_deref(), Some("hi"));
        assert!((got.progress - 2.0).abs() < f64::EPSILON);
        assert_eq!(got.meta["stream"], "stderr");
        assert!(matches!(
            of(id, &progress(Value::from("other"))),
            Incoming::Other
        ));
    }

    #[test]
    fn a_server_that_asks_is_told_from_one_that_tells() {
        let id = RequestId::fresh();
        assert!(matches!(
            of(id, &json!({"id": "s1", "method": "ping"})),
            Incoming::Request { .. }
        ));
        assert!(matches!(
            of(
                id,
                &json!({"method": "notifications/message", "params": {}})
            ),
            Incoming::Other
        ));
    }

    #[test]
    fn half_a_surrogate_pair_does_not_lose_the_message() {
        let id = RequestId::fresh();
        let text = r#"{"method":"notifications/progress","params":{"progress":1,"message":"a\\ud83d \ud83c\udf88 b\ud83d"}}"#;
        let Ok(Incoming::Progress(got)) = incoming(text, id) else {
            panic!("not read");
        };
        assert_eq!(got.message.as_deref(), Some("a\\ud83d 🎈 b\u{fffd}"));
    }

    #[test]
    fn an_answer_cut_short_is_a_lost_answer() {
        let status = incoming(r#"{"id":1,"result":{"#, RequestId::fresh()).unwrap_err();
        assert_eq!(status.origin, super::super::errors::Origin::Transport);
        let wrong = incoming("{]", RequestId::fresh()).unwrap_err();
        assert_eq!(wrong.origin, super::super::errors::Origin::Protocol);
    }
}
