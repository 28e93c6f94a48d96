//! The MCP client: JSON-RPC over Streamable HTTP, three protocol eras, progress in the order of its arrival.

pub mod errors;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use self::errors::Status;
use crate::backend::JsonMap;

/// Where bearer tokens come from. `refresh` is true after a 401: the cached token must not be used again.
pub trait TokenSource: Send + Sync + 'static {
    /// The headers that authenticate a request (`authorization`, and `x-goog-user-project` where it is known).
    fn headers(
        &self,
        refresh: bool,
    ) -> Pin<Box<dyn Future<Output = Result<reqwest::header::HeaderMap, Status>> + Send + '_>>;
}

/// A client of one MCP endpoint. Cheap to clone.
#[derive(Clone)]
pub struct Client {}

impl Client {
    /// A client for this endpoint. Connects at the first call.
    pub fn new(_endpoint: url::Url, _tokens: Arc<dyn TokenSource>) -> Result<Self, Status> {
        todo!()
    }

    /// Calls a tool and waits for its result (`structuredContent`, or the JSON of its text content).
    pub async fn call(&self, _tool: &str, _arguments: JsonMap) -> Result<Value, Status> {
        todo!()
    }

    /// Starts a tool call whose progress is wanted. The POST has been answered with headers when this returns.
    pub async fn start(&self, _tool: &str, _arguments: JsonMap) -> Result<Call, Status> {
        todo!()
    }

    /// The input schema of a tool, from `tools/list`.
    pub async fn input_schema(&self, _tool: &str) -> Result<Option<Value>, Status> {
        todo!()
    }
}

/// A tool call in flight. Dropping it closes its stream.
pub struct Call {}

impl Call {
    /// What comes next; `None` after [`CallEvent::Finished`].
    pub async fn next(&mut self) -> Option<CallEvent> {
        todo!()
    }

    /// A handle that can cancel the call from another task.
    pub fn canceller(&self) -> Canceller {
        todo!()
    }
}

/// What arrives on a call's stream.
#[derive(Debug, Clone, PartialEq)]
pub enum CallEvent {
    /// `notifications/progress`
    Progress(Progress),
    /// The call's end: its result, or why there is none.
    Finished(Result<Value, Status>),
}

/// The parameters of `notifications/progress`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Increases with every notification.
    pub progress: f64,
    /// The total, where it is known.
    pub total: Option<f64>,
    /// The message, exactly as it was sent.
    pub message: Option<String>,
    /// `_meta`
    pub meta: JsonMap,
}

/// Posts `notifications/cancelled` for a call.
#[derive(Clone)]
pub struct Canceller {}

impl Canceller {
    /// Posts the notification (same JSON-RPC id as the call) and returns when it has been answered or has failed.
    pub async fn cancel(&self, _reason: &str) -> Result<(), Status> {
        todo!()
    }
}
