//! What the remote kernel is asked for: completion, inspection, its comms, its use of the machine.
//!
//! * Nobody waits for ever: a question has a time limit, and an interrupt ends it. What is not answered gets a valid reply with
//!   nothing in it, and so does what the remote side aborted or answered with something that is no reply.
//! * Replies pass as they came, but for what is missing in them.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::execute::Executor;
use super::inspect;
use super::messages::{CursorRequest, error_reply, invalid};
use crate::backend::{Backend, ErrorName, JsonMap, Question};
use crate::jupyter::message::Request;

/// How long the remote kernel may take over a question that others wait behind.
pub const QUESTION_LIMIT: Duration = Duration::from_secs(10);

/// How long it may take over a `usage_request`, which front-ends repeat.
pub const USAGE_LIMIT: Duration = Duration::from_secs(5);

impl<B: Backend> Executor<B> {
    /// The content of the reply to a question of the queue.
    pub(super) async fn answer(
        &self,
        question: Question,
        request: &Request,
        interrupt: &CancellationToken,
    ) -> Box<RawValue> {
        let nothing = nothing(question, request);
        if nothing["status"] == "error" {
            return raw(&nothing);
        }
        let asked = tokio::select! {
            answer = ask(&*self.backend, question, request, QUESTION_LIMIT) => answer,
            () = interrupt.cancelled() => None,
        };
        tidy(question, request, nothing, asked)
    }
}

/// Asks with a time limit. A backend that fails has not answered.
async fn ask(
    backend: &impl Backend,
    question: Question,
    request: &Request,
    limit: Duration,
) -> Option<Box<RawValue>> {
    if !backend.has_session() {
        return None;
    }
    let asked = AssertUnwindSafe(backend.ask(question, request.content.clone())).catch_unwind();
    match tokio::time::timeout(limit, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => None,
        Err(_) => {
            tracing::warn!(?question, "the remote kernel does not answer");
            None
        }
    }
}

/// The content of `usage_reply`.
pub async fn usage(backend: &impl Backend, request: &Request) -> Box<RawValue> {
    match ask(backend, Question::Usage, request, USAGE_LIMIT).await {
        Some(answer) if is_object(&answer) => {
            let nothing = nothing(Question::Usage, request);
            tidy(Question::Usage, request, nothing, Some(answer))
        }
        _ => {
            let text = "Colab's kernel does not tell what it uses of the machine. Run a cell first; after that, the log says \
                        whether there is a direct connection to the kernel";
            let name = ErrorName::ColabCompanionUnavailable.to_string();
            raw(&error_reply(&name, text))
        }
    }
}

/// The content of a reply with nothing in it; an error if the request cannot be read.
pub fn nothing(question: Question, request: &Request) -> Value {
    match question {
        Question::Complete => match request.content::<CursorRequest>() {
            Ok(content) => {
                let cursor = content
                    .cursor_pos
                    .unwrap_or_else(|| content.code.chars().count());
                json!({"status": "ok", "matches": [], "cursor_start": cursor, "cursor_end": cursor, "metadata": {}})
            }
            Err(error) => invalid(request, &error),
        },
        Question::Inspect => json!({"status": "ok", "found": false, "data": {}, "metadata": {}}),
        Question::CommInfo => json!({"status": "ok", "comms": {}}),
        Question::Usage => json!({"status": "ok"}),
    }
}

/// What the front-end gets for what the remote kernel answered.
fn tidy(
    question: Question,
    request: &Request,
    nothing: Value,
    answer: Option<Box<RawValue>>,
) -> Box<RawValue> {
    // A kernel whose completion fails replies with a string (google.colab's does).
    let Some((answer, mut content)) = answer.and_then(|answer| {
        let content = serde_json::from_str::<JsonMap>(answer.get()).ok()?;
        Some((answer, content))
    }) else {
        return raw(&nothing);
    };
    match content.get("status").and_then(Value::as_str) {
        Some("error") => return answer,
        Some("ok") | None => {}
        Some(_) => return raw(&nothing),
    }
    let mut changed = false;
    if let Value::Object(defaults) = nothing {
        for (name, value) in defaults {
            let missing = content.get(&name).is_none_or(Value::is_null);
            if missing {
                content.insert(name, value);
                changed = true;
            }
        }
    }
    if question == Question::Inspect {
        let detail = request.content::<JsonMap>().ok();
        let detail = detail.and_then(|content| content.get("detail_level")?.as_u64());
        changed |= inspect::to_text(&mut content, detail.unwrap_or(0));
    }
    if changed { raw(&content) } else { answer }
}

fn is_object(json: &RawValue) -> bool {
    json.get().starts_with('{')
}

fn raw(content: &impl serde::Serialize) -> Box<RawValue> {
    to_raw_value(content).unwrap_or_else(|error| {
        // Values and maps of them always have a JSON form.
        tracing::error!(%error, "content has no JSON form");
        RawValue::NULL.to_owned()
    })
}
