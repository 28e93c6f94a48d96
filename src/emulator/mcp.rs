//! The MCP endpoint: JSON-RPC over Streamable HTTP, in every era, with errors on every surface.
//!
//! Invariants: every request is answered, in its era's way; on an event stream the progress of a call comes in the order of
//! printing and its response last; an account sees nothing of another.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::time::{MissedTickBehavior, interval_at};

use super::callers::{self, Caller};
use super::calls::{Call, CallKey, CallStep, Calls};
use super::eras::{self, Era, McpSessions};
use super::errors::{Code, Failure, locked};
use super::progress::{Progress, event};
use super::quirks::{Answers, CancelBy, ErrorSurface, Quirks, ResultPlace};
use super::runtimes::{Account, Workshop};
use super::schemas;
use super::tools::{self, Answer, ToolError};

/// How often a silent event stream shows that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The largest request: code of any sensible size.
const MAX_REQUEST: usize = 64 * 1024 * 1024;

/// What the endpoint serves from.
pub(super) struct Service {
    pub workshop: Arc<Workshop>,
    accounts: Mutex<HashMap<String, Arc<Account>>>,
    calls: Arc<Calls>,
    sessions: McpSessions,
}

impl Service {
    /// A service without accounts.
    pub fn new(workshop: Workshop) -> Arc<Self> {
        Arc::new(Self {
            workshop: Arc::new(workshop),
            accounts: Mutex::default(),
            calls: Arc::default(),
            sessions: McpSessions::default(),
        })
    }

    /// Every account that has ever called.
    pub fn accounts(&self) -> Vec<Arc<Account>> {
        locked(&self.accounts).values().cloned().collect()
    }

    fn quirks(&self) -> &Arc<Quirks> {
        &self.workshop.quirks
    }

    fn account(&self, key: &str) -> Arc<Account> {
        locked(&self.accounts)
            .entry(key.to_owned())
            .or_default()
            .clone()
    }
}

/// The routes of the emulator's own port.
pub(super) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/mcp", any(endpoint))
        .route("/v1/operations/{id}", get(operation))
        .layer(axum::middleware::from_fn(callers::authenticate))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        // Of the emulator, not of Colab: no token is asked for.
        .route("/emulator/counters", get(counters))
        .with_state(service)
}

/// `GET v1/operations/{id}`, also as `{id}:wait`.
async fn counters(State(service): State<Arc<Service>>) -> Response {
    axum::Json(service.workshop.counters.counts()).into_response()
}

async fn operation(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    axum::Extension(caller): axum::Extension<Caller>,
) -> Response {
    let account = service.account(&caller.account);
    let (id, wait) = id
        .strip_suffix(":wait")
        .map_or((id.as_str(), false), |id| (id, true));
    let name = format!("operations/{id}");
    let Some(operation) = account.operation(&name) else {
        let failure = Failure::not_found(&name);
        return (StatusCode::NOT_FOUND, axum::Json(failure.http_body())).into_response();
    };
    if wait {
        // How it ended is in its JSON.
        let _ = operation.done().await;
    }
    axum::Json(operation.json()).into_response()
}

async fn endpoint(
    State(service): State<Arc<Service>>,
    axum::Extension(caller): axum::Extension<Caller>,
    method: axum::http::Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if method == axum::http::Method::DELETE {
        let session = headers
            .get("mcp-session-id")
            .and_then(|id| id.to_str().ok());
        return match session {
            Some(id) if service.sessions.close(id) => StatusCode::NO_CONTENT.into_response(),
            Some(_) => StatusCode::NOT_FOUND.into_response(),
            None => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        };
    }
    if method != axum::http::Method::POST {
        let allow = [(header::ALLOW, "POST, DELETE")];
        return (StatusCode::METHOD_NOT_ALLOWED, allow).into_response();
    }
    let Some(wants) = Wants::of(&headers) else {
        return StatusCode::NOT_ACCEPTABLE.into_response();
    };
    let message: Value = match serde_json::from_slice(&body) {
        Ok(message) => message,
        Err(_) => {
            return refuse(eras::refusal(
                StatusCode::BAD_REQUEST,
                &Value::Null,
                -32700,
                "Parse error",
            ));
        }
    };
    let is_message = message["jsonrpc"] == "2.0" && message["method"].is_string();
    if !is_message {
        return refuse(eras::refusal(
            StatusCode::BAD_REQUEST,
            &Value::Null,
            -32600,
            "Invalid request",
        ));
    }
    match eras::judge(service.quirks().era, &service.sessions, &headers, &message) {
        Err(refusal) => refuse(refusal),
        Ok(era) if message.get("id").is_none() => {
            notify(&service, &caller, &era, &message);
            StatusCode::ACCEPTED.into_response()
        }
        Ok(era) => {
            let exchange = Exchange {
                id: message["id"].clone(),
                service,
                caller,
                era,
                wants,
            };
            exchange.answer(&message).await
        }
    }
}

/// What the caller takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    Json,
    Stream,
    Both,
}

impl Wants {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let accept = headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok());
        let accept = accept.unwrap_or("*/*");
        let json = accept.contains("application/json") || accept.contains("*/*");
        match (json, accept.contains("text/event-stream")) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Json),
            (false, true) => Some(Self::Stream),
            (false, false) => None,
        }
    }
}

fn refuse((status, body): eras::Refusal) -> Response {
    (status, axum::Json(body)).into_response()
}

fn notify(service: &Service, caller: &Caller, era: &Era, message: &Value) {
    match message["method"].as_str() {
        Some("notifications/initialized") => {
            if let Era::Legacy(Some(session)) = era {
                service.sessions.initialize(session);
            }
        }
        Some("notifications/cancelled") if service.quirks().cancel != CancelBy::Disconnect => {
            let id = &message["params"]["requestId"];
            service.calls.cancel(&call_key(caller, era, id));
        }
        _ => {}
    }
}

fn call_key(caller: &Caller, era: &Era, id: &Value) -> CallKey {
    let mcp_session = match era {
        Era::Legacy(Some(session)) => session.clone(),
        _ => String::new(),
    };
    CallKey {
        account: caller.account.clone(),
        mcp_session,
        id: id.to_string(),
    }
}

/// One request and what is needed to answer it.
struct Exchange {
    id: Value,
    service: Arc<Service>,
    caller: Caller,
    era: Era,
    wants: Wants,
}

impl Exchange {
    async fn answer(self, message: &Value) -> Response {
        let method = message["method"].as_str().unwrap_or_default();
        let params = &message["params"];
        match method {
            "initialize" if self.era != Era::Modern => self.initialize(params),
            "server/discover" if self.era == Era::Modern => self.reply(json!({
                "supportedVersions": [eras::MODERN],
                "capabilities": {"tools": {}},
                "_meta": {"io.modelcontextprotocol/serverInfo": server_info()},
                "ttlMs": 3_600_000,
                "cacheScope": "public",
            })),
            "ping" => self.reply(json!({})),
            "tools/list" => self.reply(json!({"tools": schemas::list(self.service.quirks())})),
            "tools/call" => self.call_tool(params).await,
            _ => {
                let (status, body) = eras::method_not_found(&self.id, method);
                let status = if self.era == Era::Modern {
                    status
                } else {
                    StatusCode::OK
                };
                refuse((status, body))
            }
        }
    }

    fn initialize(&self, params: &Value) -> Response {
        let asked = params["protocolVersion"].as_str().unwrap_or_default();
        let version = if eras::LEGACY.contains(&asked) {
            asked
        } else {
            eras::LEGACY[0]
        };
        let mut response = self.reply(json!({
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": server_info(),
        }));
        let session = self.service.sessions.open();
        if let Ok(session) = HeaderValue::from_str(&session) {
            response.headers_mut().insert("mcp-session-id", session);
        }
        response
    }

    async fn call_tool(self, params: &Value) -> Response {
        let name = params["name"].as_str().unwrap_or_default();
        let empty = Map::new();
        let arguments = params["arguments"].as_object().unwrap_or(&empty);
        let account = self.service.account(&self.caller.account);
        let token = &params["_meta"]["progressToken"];
        let token = Some(token.clone()).filter(|token| token.is_string() || token.is_number());
        match tools::call(&account, &self.service.workshop, name, arguments).await {
            Ok(Answer::Value(value)) => self.reply(self.tool_result(&value)),
            Ok(Answer::Execution { follower, session }) => {
                let call = Call::new(
                    &self.service.calls,
                    call_key(&self.caller, &self.era, &self.id),
                    self.service.quirks(),
                    session,
                    follower,
                );
                self.follow(call, token).await
            }
            Err(ToolError::Unknown) => {
                let message = format!("Unknown tool: {name}");
                refuse(eras::refusal(StatusCode::OK, &self.id, -32602, &message))
            }
            Err(ToolError::Failed(failure)) => self.fail(&failure),
        }
    }

    /// Answers with the end of a call, streaming its progress if the caller takes a stream.
    async fn follow(self, mut call: Call, token: Option<Value>) -> Response {
        if self.wants == Wants::Json {
            loop {
                match call.step().await {
                    CallStep::Printed(_) => {}
                    CallStep::End(Ok(result)) => return self.reply(self.tool_result(&result)),
                    CallStep::End(Err(failure)) => return self.fail(&failure),
                }
            }
        }
        let mut ticks = interval_at(tokio::time::Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let progress = Progress::new(token, self.service.quirks().progress);
        let state = Some((self, call, progress, ticks));
        let events = stream::unfold(state, async |state| {
            let (exchange, mut call, mut progress, mut ticks) = state?;
            tokio::select! {
                biased;
                step = call.step() => match step {
                    CallStep::Printed(pieces) => {
                        let events = progress.events(&pieces);
                        Some((Ok::<_, Infallible>(events), Some((exchange, call, progress, ticks))))
                    }
                    CallStep::End(end) => {
                        let message = exchange.streamed_end(end);
                        Some((Ok(event(&message)), None))
                    }
                },
                _ = ticks.tick() => {
                    let comment = Bytes::from_static(b": keep-alive\n\n");
                    Some((Ok(comment), Some((exchange, call, progress, ticks))))
                }
            }
        });
        stream_response(Body::from_stream(events))
    }

    /// The response of a call whose stream has begun: an HTTP status cannot be given any more.
    fn streamed_end(&self, end: Result<Value, Failure>) -> Value {
        match end {
            Ok(result) => self.response(self.tool_result(&result)),
            Err(failure) => match self.tool_failure(&failure) {
                Some(result) => self.response(result),
                None => self.rpc_failure(&failure),
            },
        }
    }

    /// A successful response, as JSON or as a stream of one event.
    fn reply(&self, result: Value) -> Response {
        let message = self.response(result);
        let stream = self.service.quirks().answers == Answers::Sse && self.wants != Wants::Json;
        if stream || self.wants == Wants::Stream {
            return stream_response(event(&message).into());
        }
        axum::Json(message).into_response()
    }

    fn response(&self, mut result: Value) -> Value {
        if self.era == Era::Modern {
            result["resultType"] = "complete".into();
        }
        json!({"jsonrpc": "2.0", "id": self.id, "result": result})
    }

    /// A tool's result where the quirk says it is.
    fn tool_result(&self, value: &Value) -> Value {
        let quirks = self.service.quirks();
        let text = || json!([{"type": "text", "text": value.to_string()}]);
        let mut result = match quirks.result {
            ResultPlace::Structured => json!({"content": [], "structuredContent": value}),
            ResultPlace::Text => json!({"content": text()}),
            ResultPlace::Both => json!({"content": text(), "structuredContent": value}),
        };
        if quirks.is_error && value.get("executionError").is_some() {
            result["isError"] = true.into();
        }
        result
    }

    /// A failure on the surface that the quirk says.
    fn fail(&self, failure: &Failure) -> Response {
        if let Some(result) = self.tool_failure(failure) {
            return self.reply(result);
        }
        if self.service.quirks().errors == ErrorSurface::JsonRpc {
            return axum::Json(self.rpc_failure(failure)).into_response();
        }
        let (_, _, status) = failure.code.parts();
        // 499 is no registered status, but a valid one.
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(failure.http_body())).into_response();
        if let Some(after) = failure.retry_after {
            let seconds = after.as_secs_f64().ceil();
            if let Ok(value) = HeaderValue::from_str(&seconds.to_string()) {
                response.headers_mut().insert(header::RETRY_AFTER, value);
            }
        }
        response
    }

    fn tool_failure(&self, failure: &Failure) -> Option<Value> {
        let text = match self.service.quirks().errors {
            ErrorSurface::Http | ErrorSurface::JsonRpc => return None,
            ErrorSurface::Tool => failure.http_body().to_string(),
            ErrorSurface::Text => {
                let (_, name, _) = failure.code.parts();
                format!("{name}: {} (reason: {})", failure.message, failure.reason)
            }
        };
        Some(json!({"content": [{"type": "text", "text": text}], "isError": true}))
    }

    fn rpc_failure(&self, failure: &Failure) -> Value {
        let code = if failure.code == Code::InvalidArgument {
            -32602
        } else {
            -32000
        };
        json!({"jsonrpc": "2.0", "id": self.id, "error": {
            "code": code,
            "message": failure.message,
            "data": failure.status(),
        }})
    }
}

fn stream_response(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // MCP 2026-07-28: proxies are not to hold events back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

fn server_info() -> Value {
    json!({"name": "colab-kernel-emulator", "version": env!("CARGO_PKG_VERSION")})
}
