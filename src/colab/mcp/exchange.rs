//! One request and its answer, outside of tool calls: what the negotiation and the housekeeping need.
//!
//! Invariant: a refusal is sorted by who gave it ([`TroubleKind`]), because only a refusal that the service itself did not word
//! can be about the protocol's era.

use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::{Map, Value, json};

use super::eras::{self, Era};
use super::errors::{Code, Origin, Status};
use super::http::{Http, PostError, Refusal};
use super::normalise;
use super::rpc::{self, Incoming, RequestId};
use super::sse::Answer;
use super::trace::{self, Way};

/// How long a notification or a reply may take.
const TELL_TIME: Duration = Duration::from_secs(10);

/// Why a request brought no result.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) status: Status,
    pub(crate) kind: TroubleKind,
    /// The HTTP status of the refusal; `None` where the error came in an answer.
    pub(crate) http: Option<u16>,
    supported: Option<Vec<String>>,
}

/// Who refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TroubleKind {
    /// Nobody: there was no whole answer.
    Failed,
    /// The service, with a `google.rpc.Status`.
    Google,
    /// The MCP layer, with this JSON-RPC error.
    Rpc(i64),
    /// Somebody who speaks neither.
    Unrecognised,
}

impl Trouble {
    pub(crate) fn failed(status: Status) -> Self {
        Self {
            status,
            kind: TroubleKind::Failed,
            http: None,
            supported: None,
        }
    }

    fn late(method: &str, limit: Duration) -> Self {
        Self::failed(Status::new(
            Code::DeadlineExceeded,
            Origin::Transport,
            format!("No answer to {method} within {} s", limit.as_secs()),
        ))
    }

    /// From the JSON-RPC `error` of an answer.
    pub(crate) fn from_rpc(error: &Value) -> Self {
        Self {
            status: normalise::from_rpc(error),
            kind: kind_of(error),
            http: None,
            supported: supported_in(error),
        }
    }

    /// From an HTTP refusal.
    pub(crate) fn from_refusal(refusal: &Refusal) -> Self {
        let body: Option<Value> = serde_json::from_slice(&refusal.body).ok();
        let error = body.as_ref().and_then(|body| {
            let body = body
                .as_array()
                .and_then(|list| list.first())
                .unwrap_or(body);
            body.get("error").filter(|error| error.is_object())
        });
        let kind = match (error, &body) {
            (_, Some(body)) if normalise::is_google_error(body) => TroubleKind::Google,
            (Some(error), _) => kind_of(error),
            _ => TroubleKind::Unrecognised,
        };
        Self {
            status: refusal.status(),
            kind,
            http: Some(refusal.http.as_u16()),
            supported: error.and_then(supported_in),
        }
    }

    /// The versions that a server lists which does not support ours (error -32022).
    pub(crate) fn supported_versions(&self) -> Option<Vec<String>> {
        self.supported.clone().filter(|list| !list.is_empty())
    }

    /// Whether the MCP layer turned the request away before anything ran: wrong version, or headers that do not fit the body.
    pub(crate) fn is_era_rejection(&self) -> bool {
        matches!(self.kind, TroubleKind::Rpc(-32022 | -32020))
    }

    /// Whether the refusal may mean that the server has changed its era or forgotten our session.
    pub(crate) fn is_suspect(&self) -> bool {
        match (self.http, self.kind) {
            (Some(400 | 404 | 405 | 406 | 415), TroubleKind::Unrecognised) => true,
            (Some(400 | 404), TroubleKind::Rpc(_)) => {
                self.mentions(&["protocol version", "protocol-version"])
            }
            _ => false,
        }
    }

    /// Whether the MCP layer asks for the handshake that this call came without.
    pub(crate) fn wants_session(&self) -> bool {
        matches!(self.kind, TroubleKind::Rpc(_) | TroubleKind::Unrecognised)
            && self.mentions(&[
                "session id",
                "session-id",
                "not initialized",
                "not been initialized",
                "before initialization",
            ])
    }

    fn mentions(&self, words: &[&str]) -> bool {
        let message = self.status.message.to_ascii_lowercase();
        words.iter().any(|words| message.contains(words))
    }

    /// Whether the refusal is how servers say that a session is gone.
    pub(crate) fn is_lost_session(&self) -> bool {
        match (self.http, self.kind) {
            (Some(404), TroubleKind::Unrecognised) => true,
            (Some(404), TroubleKind::Rpc(code)) => code != -32601,
            (Some(400 | 401), TroubleKind::Rpc(_) | TroubleKind::Unrecognised) => {
                self.mentions(&["session"])
            }
            _ => false,
        }
    }
}

fn kind_of(error: &Value) -> TroubleKind {
    if normalise::is_google_error(error) {
        return TroubleKind::Google;
    }
    match error.get("code").and_then(normalise::as_integer) {
        Some(code) if code < 0 => TroubleKind::Rpc(code),
        Some(code) if code >= 400 => TroubleKind::Google,
        _ => TroubleKind::Rpc(0),
    }
}

fn supported_in(error: &Value) -> Option<Vec<String>> {
    let is_version_error = error.get("code").and_then(normalise::as_integer) == Some(-32022);
    let list = error.get("data")?.get("supported")?.as_array()?;
    is_version_error.then(|| {
        list.iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    })
}

/// Sends a request and waits for its result.
pub(crate) async fn ask(
    http: &Http,
    era: &Era,
    method: &str,
    params: Map<String, Value>,
    limit: Duration,
) -> Result<(Value, HeaderMap), Trouble> {
    let exchange = async {
        let id = RequestId::fresh();
        let body = eras::request(era, id, method, params, false);
        let response = http
            .post(&body, &era.headers(method, None), method)
            .await
            .map_err(trouble_of)?;
        let headers = response.headers().clone();
        let mut answer = Answer::new(response, http.clone());
        while let Some(text) = answer.next().await {
            let text = text.map_err(Trouble::failed)?;
            trace::frame(Way::Received, method, &text);
            match rpc::incoming(&text, id).map_err(Trouble::failed)? {
                Incoming::Result(result) => return Ok((result, headers)),
                Incoming::Error(error) => return Err(Trouble::from_rpc(&error)),
                Incoming::Request { id, method } => reply(http.clone(), era.clone(), id, method),
                Incoming::Progress(_) | Incoming::Other => {}
            }
        }
        Err(Trouble::failed(Status::lost(format!(
            "The answer to {method} ended without a result"
        ))))
    };
    match tokio::time::timeout(limit, exchange).await {
        Ok(result) => result,
        Err(_) => Err(Trouble::late(method, limit)),
    }
}

/// Sends a notification. Any 2xx will do.
pub(crate) async fn tell(
    http: &Http,
    era: &Era,
    method: &str,
    params: Map<String, Value>,
) -> Result<(), Trouble> {
    let body = rpc::notification(method, era.params(params, None));
    post_and_forget(http, era, method, &body).await
}

/// Answers a request of the server in the background: a ping with a pong, everything else with a refusal, so that it does not
/// wait for us.
pub(crate) fn reply(http: Http, era: Era, id: Value, method: String) {
    let body = if method == "ping" {
        json!({"jsonrpc": "2.0", "id": id, "result": {}})
    } else {
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": format!("{method} is not supported")}})
    };
    tokio::spawn(async move {
        if let Err(trouble) = post_and_forget(&http, &era, &method, &body.to_string()).await {
            tracing::debug!(method, status = %trouble.status, "the server's request could not be answered");
        }
    });
}

async fn post_and_forget(http: &Http, era: &Era, method: &str, body: &str) -> Result<(), Trouble> {
    let headers = era.headers(method, None);
    let sent = tokio::time::timeout(TELL_TIME, http.post(body, &headers, method)).await;
    match sent {
        Ok(Ok(_accepted)) => Ok(()),
        Ok(Err(error)) => Err(trouble_of(error)),
        Err(_) => Err(Trouble::late(method, TELL_TIME)),
    }
}

pub(crate) fn trouble_of(error: PostError) -> Trouble {
    match error {
        PostError::Failed(status) => Trouble::failed(status),
        PostError::Refused(refusal) => Trouble::from_refusal(&refusal),
    }
}
