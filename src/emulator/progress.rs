//! Printed text as `notifications/progress`, in the shape that the quirk says.
//!
//! Invariant: the numbers of one call grow by one; without a progress token there are no notifications.

use bytes::Bytes;
use serde_json::{Value, json};

use super::executions::Printed;
use super::quirks::ProgressShape;

/// The progress notifications of one call.
pub(super) struct Progress {
    token: Option<Value>,
    count: u64,
    shape: ProgressShape,
}

impl Progress {
    /// Counts from one.
    pub fn new(token: Option<Value>, shape: ProgressShape) -> Self {
        Self {
            token,
            count: 0,
            shape,
        }
    }

    /// The notifications for what was printed.
    pub fn events(&mut self, pieces: &[Printed]) -> Bytes {
        let (Some(token), false) = (&self.token, self.shape == ProgressShape::None) else {
            return Bytes::new();
        };
        let mut events = Vec::new();
        for Printed { stream, text } in pieces {
            self.count += 1;
            let mut params = json!({"progressToken": token, "progress": self.count});
            params["message"] = match self.shape {
                ProgressShape::Json => json!({"stream": stream, "text": text}).to_string().into(),
                ProgressShape::JsonKeyed => json!({stream.as_str(): text}).to_string().into(),
                _ => text.as_str().into(),
            };
            if self.shape == ProgressShape::Meta {
                params["_meta"] = json!({"stream": stream});
            }
            let message =
                json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
            events.extend_from_slice(&event(&message));
        }
        events.into()
    }
}

/// One event of a stream.
pub(super) fn event(message: &Value) -> Bytes {
    format!("event: message\ndata: {message}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameters of the notifications for a piece of each stream.
    fn notified(token: Option<Value>, shape: ProgressShape) -> Vec<Value> {
        let piece = |stream: &str, text: &str| Printed {
            stream: stream.to_owned(),
            text: text.to_owned(),
        };
        let pieces = [piece("stdout", "out\n"), piece("stderr", "é")];
        let events = Progress::new(token, shape).events(&pieces);
        let events = std::str::from_utf8(&events).expect("events are text");
        let data = events
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| {
            let mut message: Value = serde_json::from_str(data).expect("data is JSON");
            assert_eq!(message["method"], "notifications/progress");
            message["params"].take()
        })
        .collect()
    }

    #[test]
    fn text_takes_the_shape_that_is_asked_for() {
        for (shape, expected) in [
            (
                ProgressShape::Meta,
                json!([["out\n", {"stream": "stdout"}], ["é", {"stream": "stderr"}]]),
            ),
            (
                ProgressShape::Message,
                json!([["out\n", null], ["é", null]]),
            ),
            (
                ProgressShape::Json,
                json!([
                    [r#"{"stream":"stdout","text":"out\n"}"#, null],
                    [r#"{"stream":"stderr","text":"é"}"#, null]
                ]),
            ),
            (
                ProgressShape::JsonKeyed,
                json!([[r#"{"stdout":"out\n"}"#, null], [r#"{"stderr":"é"}"#, null]]),
            ),
            (ProgressShape::None, json!([])),
        ] {
            let notified = notified(Some("p".into()), shape);
            let shown = notified
                .iter()
                .map(|params| json!([params["message"], params["_meta"]]));
            assert_eq!(Value::from_iter(shown), expected, "{shape:?}");
        }
    }

    #[test]
    fn notifications_are_numbered_and_need_a_token() {
        let numbers: Vec<_> = notified(Some(7.into()), ProgressShape::Meta)
            .iter()
            .map(|params| (params["progressToken"].clone(), params["progress"].clone()))
            .collect();
        assert_eq!(numbers, [(json!(7), json!(1)), (json!(7), json!(2))]);
        assert!(notified(None, ProgressShape::Meta).is_empty());
    }
}
