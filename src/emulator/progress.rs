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
