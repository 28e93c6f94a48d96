//! A scripted Colab over HTTP: the MCP endpoint and the proxy of one runtime.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use colab_kernel::colab::mcp::TokenSource;
use colab_kernel::colab::mcp::errors::Status;
use reqwest::header::HeaderValue;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

/// What an execution does.
#[derive(Clone)]
pub enum Play {
    /// These progress messages, then this result.
    Run(Vec<&'static str>, Value),
    /// These progress messages, then the connection is closed without a result.
    Cut(Vec<&'static str>),
    /// Runs until it is interrupted, then raises KeyboardInterrupt.
    Forever,
}

/// What stops an execution.
#[derive(Clone, Copy)]
pub struct Stops {
    /// After a posted `notifications/cancelled`, with this delay.
    pub notification: Option<Duration>,
    /// When the stream is closed.
    pub close: bool,
}

pub struct Colab {
    pub plays: Mutex<VecDeque<Play>>,
    pub stops: Stops,
    /// Answers `execute_code` with one JSON body.
    pub json_only: bool,
    /// The proxy token that is valid now.
    pub token: Mutex<String>,
    pub files: Vec<(&'static str, Value)>,
    pub log: Mutex<Vec<String>>,
    pub sessions: Mutex<Vec<String>>,
    /// One execution at a time, as in a session.
    pub kernel: tokio::sync::Mutex<i64>,
    pub cancelled: Notify,
    pub base: Mutex<String>,
}

impl Colab {
    pub fn new(plays: Vec<Play>) -> Self {
        Self {
            plays: Mutex::new(plays.into()),
            stops: Stops {
                notification: Some(Duration::ZERO),
                close: false,
            },
            json_only: false,
            token: Mutex::new("t0".into()),
            files: Vec::new(),
            log: Mutex::default(),
            sessions: Mutex::default(),
            kernel: tokio::sync::Mutex::new(0),
            cancelled: Notify::new(),
            base: Mutex::default(),
        }
    }

    /// Serves on a free port; the endpoint's address.
    pub async fn serve(self) -> (Arc<Self>, url::Url) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        *self.base.lock().unwrap() = base.clone();
        let colab = Arc::new(self);
        let router = Router::new()
            .route("/mcp", post(answer))
            .route("/proxy/files/{*path}", get(file))
            .with_state(colab.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (colab, format!("{base}/mcp").parse().unwrap())
    }

    pub fn note(&self, line: impl Into<String>) {
        self.log.lock().unwrap().push(line.into());
    }

    pub fn count_of(&self, start: &str) -> usize {
        let log = self.log.lock().unwrap();
        log.iter().filter(|line| line.starts_with(start)).count()
    }

    fn runtime(&self) -> Value {
        json!({
            "name": "runtimes/r1",
            "runtimeSpec": {"variant": "VARIANT_CPU", "accelerator": "NONE", "shape": "SHAPE_STANDARD"},
            "connectionInfo": {
                "token": *self.token.lock().unwrap(),
                "expireTime": (chrono::Utc::now() + chrono::TimeDelta::hours(1)).to_rfc3339(),
                "url": format!("{}/proxy", self.base.lock().unwrap()),
            },
        })
    }

    fn tool(&self, name: &str, arguments: &Value) -> Value {
        match name {
            "list_runtimes" => json!({"runtimes": [self.runtime()]}),
            "get_runtime" => self.runtime(),
            "create_session" => {
                let parent = arguments["parent"].as_str().unwrap();
                let name = format!(
                    "{parent}/sessions/{}",
                    arguments["sessionId"].as_str().unwrap()
                );
                self.sessions.lock().unwrap().push(name.clone());
                json!({ "name": name })
            }
            "list_sessions" => {
                let sessions = self.sessions.lock().unwrap();
                let names = sessions.iter().map(|name| json!({ "name": name }));
                json!({ "sessions": names.collect::<Vec<_>>() })
            }
            "delete_session" => {
                let mut sessions = self.sessions.lock().unwrap();
                sessions.retain(|name| Some(name.as_str()) != arguments["name"].as_str());
                json!({})
            }
            other => panic!("unexpected tool {other}"),
        }
    }
}

async fn answer(State(colab): State<Arc<Colab>>, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let id = request["id"].clone();
    match request["method"].as_str().unwrap() {
        "tools/list" => json_answer(json!({"jsonrpc": "2.0", "id": id, "result": {"tools": []}})),
        "notifications/cancelled" => {
            colab.note("cancelled");
            if let Some(delay) = colab.stops.notification {
                let colab = colab.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    colab.cancelled.notify_waiters();
                });
            }
            StatusCode::ACCEPTED.into_response()
        }
        "tools/call" => {
            let (name, arguments) = (
                request["params"]["name"].as_str().unwrap().to_owned(),
                request["params"]["arguments"].clone(),
            );
            if name == "execute_code" {
                colab.note(format!("execute_code {arguments}"));
                return execute(
                    colab,
                    id,
                    request["params"]["_meta"]["progressToken"].clone(),
                )
                .await;
            }
            colab.note(&name);
            json_answer(result(&id, &colab.tool(&name, &arguments)))
        }
        _ => StatusCode::BAD_REQUEST.into_response(),
    }
}

fn result(id: &Value, structured: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {
        "content": [{"type": "text", "text": structured.to_string()}],
        "structuredContent": structured,
    }})
}

fn json_answer(value: Value) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        value.to_string(),
    )
        .into_response()
}

async fn execute(colab: Arc<Colab>, id: Value, token: Value) -> Response {
    let (sender, receiver) = mpsc::channel::<String>(1024);
    let json_only = colab.json_only;
    tokio::spawn(play(colab, id, token, sender));
    if json_only {
        let mut receiver = receiver;
        let mut last = String::new();
        while let Some(message) = receiver.recv().await {
            last = message;
        }
        return ([(header::CONTENT_TYPE, "application/json")], last).into_response();
    }
    let events = futures_util::stream::unfold(receiver, |mut receiver| async {
        let message = receiver.recv().await?;
        Some((
            Ok::<_, Infallible>(format!("data: {message}\n\n")),
            receiver,
        ))
    });
    (
        [(header::CONTENT_TYPE, "text/event-stream")],
        Body::from_stream(events),
    )
        .into_response()
}

async fn play(colab: Arc<Colab>, id: Value, token: Value, stream: mpsc::Sender<String>) {
    let mut count = colab.kernel.lock().await;
    let play = colab.plays.lock().unwrap().pop_front();
    let (lines, end) = match play.unwrap_or(Play::Run(Vec::new(), json!({}))) {
        Play::Run(lines, end) => (lines, Some(end)),
        Play::Cut(lines) => (lines, None),
        Play::Forever => {
            let stop = colab.cancelled.notified();
            tokio::select! {
                () = stop => {}
                () = stream.closed(), if colab.stops.close => {}
            }
            colab.note("sigint");
            let error = json!({"name": "KeyboardInterrupt", "value": "", "traceback": ["real"]});
            (Vec::new(), Some(json!({ "executionError": error })))
        }
    };
    for (n, line) in lines.into_iter().enumerate() {
        let params = json!({"progressToken": token, "progress": n + 1, "message": line});
        let message =
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
        let _ = stream.send(message.to_string()).await;
    }
    if let Some(mut end) = end {
        *count += 1;
        end["executionCount"] = json!(*count);
        let _ = stream.send(result(&id, &end).to_string()).await;
    }
}

async fn file(
    State(colab): State<Arc<Colab>>,
    Path(path): Path<String>,
    headers: HeaderMap,
) -> Response {
    let token = headers.get("X-Colab-Runtime-Proxy-Token");
    let is_valid = token.is_some_and(|token| token == colab.token.lock().unwrap().as_str());
    colab.note(format!("file {path} {is_valid}"));
    let content = colab.files.iter().find(|(name, _)| *name == path);
    match content.filter(|_| is_valid) {
        Some((_, content)) => content.to_string().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// A fixed bearer token.
pub struct Fixed;

impl TokenSource for Fixed {
    fn headers(
        &self,
        _refresh: bool,
    ) -> Pin<Box<dyn Future<Output = Result<HeaderMap, Status>> + Send + '_>> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer t"));
        Box::pin(std::future::ready(Ok(headers)))
    }
}
