//! The MCP client: JSON-RPC over Streamable HTTP, three protocol eras, progress in the order of its arrival.
//!
//! `http` posts, `sse` reads answers, `rpc` knows the messages, `eras` agrees with the server on how to speak, `exchange` asks
//! and tells, `call` runs one tool call, `result` and `normalise` say what came of it, `arguments` fits names to the server's
//! schemas, `trace` logs frames. Invariants:
//!
//! * The era is found out with `tools/list` alone, remembered, and found out again when it stops working.
//! * A call that may have run is not sent twice; the caller decides what a lost answer means.
//! * Every failure is a [`errors::Status`] that tells whether the call can have reached the service.

pub(super) mod arguments;
mod call;
mod eras;
pub mod errors;
mod exchange;
pub mod http;
pub(super) mod normalise;
mod result;
mod rpc;
mod sse;
mod trace;
mod words;

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;

pub use self::call::{Call, CallEvent, Canceller, Progress};
use self::eras::Agreement;
use self::errors::{Code, Origin, Status};
use self::http::Http;
pub(crate) use self::rpc::without_lone_surrogates;
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
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: Http,
    agreed: Mutex<Option<Arc<Agreement>>>,
    /// Lets one task negotiate while the others wait for what it finds.
    turn: Semaphore,
}

impl Client {
    /// A client for this endpoint. Connects at the first call.
    ///
    /// Refuses an endpoint to which a bearer token must not be sent: one that is neither https nor on this machine.
    pub fn new(endpoint: url::Url, tokens: Arc<dyn TokenSource>) -> Result<Self, Status> {
        Ok(Self {
            inner: Arc::new(Inner {
                http: Http::new(endpoint, tokens)?,
                agreed: Mutex::new(None),
                turn: Semaphore::new(1),
            }),
        })
    }

    /// Calls a tool and waits for its result (`structuredContent`, or the JSON of its text content), within the tool's time limit.
    pub async fn call(&self, tool: &str, arguments: JsonMap) -> Result<Value, Status> {
        let call = Call::new(self.clone(), tool, arguments, false, tool != "execute_code");
        let Some(limit) = time_limit(tool) else {
            return call.finished().await;
        };
        tokio::time::timeout(limit, call.finished())
            .await
            .unwrap_or_else(|_| {
                Err(Status::new(
                    Code::DeadlineExceeded,
                    Origin::Transport,
                    format!("No answer to {tool} within {} s", limit.as_secs()),
                ))
            })
    }

    /// Starts a tool call whose progress is wanted. Returns at once: the call is sent, and its answer read, by [`Call::next`].
    pub async fn start(&self, tool: &str, arguments: JsonMap) -> Result<Call, Status> {
        Ok(self.begin(tool, arguments))
    }

    /// As [`Client::start`], which never fails.
    pub(crate) fn begin(&self, tool: &str, arguments: JsonMap) -> Call {
        Call::new(self.clone(), tool, arguments, true, false)
    }

    /// The input schema of a tool, from `tools/list`.
    pub async fn input_schema(&self, tool: &str) -> Result<Option<Value>, Status> {
        Ok(self.agreement().await?.schema(tool).cloned())
    }

    /// Whether the server names this tool. One that names none is believed to have it.
    pub(crate) async fn offers(&self, tool: &str) -> Result<bool, Status> {
        Ok(self.agreement().await?.offers(tool))
    }

    /// Gets a resource from the endpoint's host by its REST name, with the same credentials.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Status> {
        let read = async {
            let body = self.inner.http.get(path).await?;
            serde_json::from_slice(&body).map_err(|error| sse::truncated(&error))
        };
        tokio::time::timeout(OTHERS_TIME, read)
            .await
            .unwrap_or_else(|_| {
                Err(Status::new(
                    Code::DeadlineExceeded,
                    Origin::Transport,
                    format!("No answer to GET {path}"),
                ))
            })
    }

    fn http(&self) -> &Http {
        &self.inner.http
    }

    /// What is agreed with the server, negotiated at the first call.
    async fn agreement(&self) -> Result<Arc<Agreement>, Status> {
        self.agreement_after(None, false).await
    }

    /// Negotiates again, unless somebody else has done so since `old` was agreed on.
    async fn renegotiate(
        &self,
        old: &Arc<Agreement>,
        wants_session: bool,
    ) -> Result<Arc<Agreement>, Status> {
        self.agreement_after(Some(old), wants_session).await
    }

    async fn agreement_after(
        &self,
        old: Option<&Arc<Agreement>>,
        wants_session: bool,
    ) -> Result<Arc<Agreement>, Status> {
        let current = || {
            let agreed = self
                .inner
                .agreed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            agreed.filter(|agreed| old.is_none_or(|old| !Arc::ptr_eq(old, agreed)))
        };
        if let Some(agreed) = current() {
            return Ok(agreed);
        }
        // The semaphore is never closed; without a permit two tasks would negotiate, which is wasteful and not wrong.
        let _turn = self.inner.turn.acquire().await.ok();
        if let Some(agreed) = current() {
            return Ok(agreed);
        }
        let negotiated = eras::negotiate(&self.inner.http, wants_session).await;
        let agreed = negotiated.map(Arc::new);
        *self
            .inner
            .agreed
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = agreed.as_ref().ok().cloned();
        agreed
    }
}

/// The limit of every tool but two.
const OTHERS_TIME: Duration = Duration::from_secs(60);

/// How long a tool may take. `create_runtime` waits until the machine is ready; code runs as long as it runs.
fn time_limit(tool: &str) -> Option<Duration> {
    match tool {
        "execute_code" => None,
        "create_runtime" => Some(Duration::from_secs(420)),
        _ => Some(OTHERS_TIME),
    }
}
