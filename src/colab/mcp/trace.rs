//! The log of raw frames, for the first live run against a service whose details are not documented.
//!
//! Written at debug level under the target `colab_kernel::mcp`. Invariants: proxy and bearer tokens never reach it, wherever in a
//! payload they stand (also inside JSON that is itself a string), and a long payload is cut.

use serde_json::Value;

use super::words;

/// The target of every frame.
const TARGET: &str = "colab_kernel::mcp";
/// How much of one string is kept.
const STRING_CHARS: usize = 2000;
/// How much of one frame is kept.
const FRAME_CHARS: usize = 16_000;
/// Text longer than this is not parsed for the log: it is cut, and only what is kept is masked.
const PARSE_BYTES: usize = 1024 * 1024;

/// Which way a frame went.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    Sent,
    Received,
}

/// Logs a frame if anybody listens.
pub(crate) fn frame(way: Way, about: &str, text: &str) {
    if !tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
        return;
    }
    let arrow = match way {
        Way::Sent => "→",
        Way::Received => "←",
    };
    tracing::debug!(target: TARGET, "{arrow} {about} {}", shown(text));
}

/// The text as it may be logged.
fn shown(text: &str) -> String {
    if text.len() <= PARSE_BYTES
        && let Ok(mut value) = serde_json::from_str::<Value>(text)
    {
        redact(&mut value);
        return words::cut(&value.to_string(), FRAME_CHARS);
    }
    mask_token_members(&words::mask_secrets(&words::cut(text, STRING_CHARS)))
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, member) in object.iter_mut() {
                if is_secret(key) {
                    if !member.is_null() {
                        *member = Value::from("***");
                    }
                } else {
                    redact(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::String(text) => {
            *text = match serde_json::from_str::<Value>(text) {
                Ok(mut inner) if inner.is_object() || inner.is_array() => {
                    redact(&mut inner);
                    inner.to_string()
                }
                _ => mask_token_members(&words::mask_secrets(text)),
            };
            if text.len() > STRING_CHARS {
                *text = words::cut(text, STRING_CHARS);
            }
        }
        _ => {}
    }
}

/// A member that holds a credential. (`progressToken` and `nextPageToken` do not.)
fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase().replace(['_', '-'], "");
    matches!(
        key.as_str(),
        "token" | "authorization" | "password" | "secret" | "cookie"
    ) || [
        "accesstoken",
        "refreshtoken",
        "idtoken",
        "proxytoken",
        "clientsecret",
        "apikey",
    ]
    .iter()
    .any(|name| key.contains(name))
}

/// `"token": "…"` in a text that is not (or no longer) whole JSON, with any number of backslashes before its quotes.
fn mask_token_members(text: &str) -> String {
    const QUOTES: [char; 2] = ['\\', '"'];
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("oken") {
        let (before, tail) = rest.split_at(at + "oken".len());
        out.push_str(before);
        rest = tail;
        let Some(value) = tail
            .trim_start_matches(QUOTES)
            .trim_start()
            .strip_prefix(':')
        else {
            continue;
        };
        let value = value.trim_start().trim_start_matches(QUOTES);
        let end = value.find(['"', '\\', ',', '}']).unwrap_or(value.len());
        out.push_str("\": \"***");
        rest = &value[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_are_hidden_at_every_depth() {
        let inner = json!({"connectionInfo": {"token": "s3cret", "url": "https://h"}});
        let frame = json!({"result": {"structuredContent": inner, "content": [{"type": "text", "text": inner.to_string()}]},
            "params": {"_meta": {"progressToken": 77}}});
        let text = shown(&frame.to_string());
        assert!(!text.contains("s3cret"), "{text}");
        assert!(text.contains("https://h") && text.contains("77"), "{text}");
    }

    #[test]
    fn tokens_are_hidden_in_cut_and_broken_frames() {
        let text = shown(r#"{"connectionInfo": {"token": "s3cret", "url": "#);
        assert!(!text.contains("s3cret"), "{text}");
        let escaped = shown(r#"{"text": "{\"token\": \"s3cret\", oops"#);
        assert!(!escaped.contains("s3cret"), "{escaped}");
    }

    #[test]
    fn long_strings_are_cut() {
        let frame = json!({"params": {"message": "x".repeat(100_000)}}).to_string();
        assert!(shown(&frame).len() < 3 * STRING_CHARS);
    }
}
