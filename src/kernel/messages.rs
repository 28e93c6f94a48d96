//! Contents of the messages that the kernel answers, typed
//! (<https://jupyter-client.readthedocs.io/en/stable/messaging.html>).

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::backend::{Exception, JsonMap};
use crate::jupyter::message::Request;

/// `execute_request`. What is absent or null is the default.
#[derive(Debug, Clone, Deserialize)]
pub struct ExecuteRequest {
    /// The source.
    pub code: String,
    /// Run without output, count or history.
    #[serde(default, deserialize_with = "or_default")]
    pub silent: bool,
    /// Whether the code counts; absent means yes, unless `silent`.
    pub store_history: Option<bool>,
    /// Expressions to evaluate afterwards.
    #[serde(default, deserialize_with = "or_default")]
    pub user_expressions: JsonMap,
    /// Whether the front-end can answer `input()`.
    #[serde(default = "yes", deserialize_with = "or_yes")]
    pub allow_stdin: bool,
    /// Whether an error here aborts what is queued behind.
    #[serde(default = "yes", deserialize_with = "or_yes")]
    pub stop_on_error: bool,
}

impl ExecuteRequest {
    /// Whether the code gets a number and enters the history.
    pub fn counted(&self) -> bool {
        !self.silent && self.store_history.unwrap_or(true)
    }
}

fn yes() -> bool {
    true
}

fn or_yes<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(true))
}

fn or_default<'de, T, D>(value: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

/// `execute_reply`. One shape for both outcomes: clients with strict types read the fields of the other one as well.
#[derive(Debug, Clone, Serialize)]
pub struct ExecuteReply {
    /// `ok` or `error`
    pub status: &'static str,
    /// The cell's number; 0 for a cell that never ran, which front-ends show as an empty prompt.
    pub execution_count: u32,
    /// Results of the expressions.
    pub user_expressions: JsonMap,
    /// Payloads for the front-end.
    pub payload: Vec<Value>,
    /// The exception, where there is one.
    #[serde(flatten)]
    pub error: Option<ErrorContent>,
}

/// `error`, and the same fields in a reply.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorContent {
    /// The exception's class.
    pub ename: String,
    /// Its message.
    pub evalue: String,
    /// The traceback, a line or frame an entry.
    pub traceback: Vec<String>,
}

impl From<Exception> for ErrorContent {
    fn from(exception: Exception) -> Self {
        Self {
            ename: exception.ename,
            evalue: exception.evalue,
            traceback: exception.traceback,
        }
    }
}

/// The content of a reply that says that the request could not be served.
pub fn error_reply(ename: &str, evalue: &str) -> Value {
    json!({"status": "error", "ename": ename, "evalue": evalue, "traceback": [format!("{ename}: {evalue}")]})
}

/// The same for one that cannot be read.
pub fn invalid(request: &Request, error: &serde_json::Error) -> Value {
    let msg_type = request.msg_type();
    tracing::warn!(%error, msg_type, "malformed request");
    error_reply(
        "InvalidRequest",
        &format!("This {msg_type} cannot be read: {error}"),
    )
}

/// `shutdown_request`
#[derive(Debug, Clone, Deserialize)]
pub struct ShutdownRequest {
    /// Whether a new process will follow.
    #[serde(default, deserialize_with = "or_default")]
    pub restart: bool,
}

/// `complete_request` and `inspect_request`, as far as they are answered here.
#[derive(Debug, Clone, Deserialize)]
pub struct CursorRequest {
    /// The source.
    pub code: String,
    /// The cursor, in code points.
    pub cursor_pos: Option<usize>,
}

/// `is_complete_request`
#[derive(Debug, Clone, Deserialize)]
pub struct IsCompleteRequest {
    /// The source so far.
    pub code: String,
}
