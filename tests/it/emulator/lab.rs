//! An emulator and a raw client of it.
//!
//! Tests share one emulator with one runtime where they need no quirk, each with sessions of its own. It lives on a runtime of
//! its own, because a test's runtime ends with the test.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use colab_kernel::emulator::{Counts, Emulator, EmulatorConfig, PythonChoice, Quirks};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::python_env::python_dir;

/// How long a test may take, the making of the Python environment included.
pub const LIMIT: Duration = Duration::from_secs(600);

static BACKGROUND: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
});

static SHARED: OnceCell<(Lab, String)> = OnceCell::const_new();

/// Runs a test within its time limit.
pub async fn limited(test: impl Future<Output = ()>) {
    tokio::time::timeout(LIMIT, test)
        .await
        .expect("the test took too long");
}

/// The environment is made once for all test runs.
pub fn python() -> PythonChoice {
    PythonChoice::Managed {
        cache_dir: Some(python_dir()),
    }
}

pub async fn start(quirks: &[&str]) -> Emulator {
    let mut set = Quirks::default();
    for quirk in quirks {
        set.set(quirk).unwrap();
    }
    let config = EmulatorConfig {
        python: python(),
        quirks: set,
        ..EmulatorConfig::default()
    };
    let started = BACKGROUND.spawn(Emulator::start(config));
    started.await.unwrap().unwrap()
}

/// A raw client and its emulator.
pub struct Lab {
    pub emulator: Option<Emulator>,
    pub endpoint: String,
    pub http: reqwest::Client,
    pub token: &'static str,
    code_argument: String,
}

/// The shared emulator's client and its runtime.
pub async fn shared() -> (&'static Lab, &'static str) {
    let (lab, runtime) = SHARED
        .get_or_init(|| async {
            let lab = Lab::new(&[]).await;
            let runtime = lab.new_runtime().await;
            (lab, runtime)
        })
        .await;
    (lab, runtime)
}

/// A session name that no other test has.
pub fn fresh(runtime: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{runtime}/sessions/ck-{n}")
}

pub fn uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// A JSON-RPC id that no other request has.
pub fn request_id() -> String {
    format!("id-{}", uuid())
}

impl Lab {
    pub async fn new(quirks: &[&str]) -> Self {
        let mut lab = Self::of(start(quirks).await);
        let named = quirks
            .iter()
            .find_map(|quirk| quirk.strip_prefix("code-argument="));
        lab.code_argument = named.unwrap_or("code").to_owned();
        lab
    }

    /// A client of an emulator that the test has started itself.
    pub fn of(emulator: Emulator) -> Self {
        Self {
            endpoint: emulator.endpoint().to_string(),
            emulator: Some(emulator),
            http: client(),
            token: "tester",
            code_argument: "code".to_owned(),
        }
    }

    /// With a runtime of its own.
    pub async fn with_runtime(quirks: &[&str]) -> (Self, String) {
        let lab = Self::new(quirks).await;
        let runtime = lab.new_runtime().await;
        (lab, runtime)
    }

    pub fn request(&self) -> reqwest::RequestBuilder {
        self.http
            .post(&self.endpoint)
            .bearer_auth(self.token)
            .header("accept", "application/json, text/event-stream")
    }

    pub async fn send(&self, message: &Value) -> reqwest::Response {
        self.request().json(message).send().await.unwrap()
    }

    pub async fn rpc(&self, method: &str, params: Value) -> Value {
        let message =
            json!({"jsonrpc": "2.0", "id": request_id(), "method": method, "params": params});
        let response = self.send(&message).await;
        Stream::of(response).response().await
    }

    /// Starts a tool call.
    pub async fn start(&self, id: &str, tool: &str, arguments: Value) -> Stream {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {
            "name": tool,
            "arguments": arguments,
            "_meta": {"progressToken": format!("p-{id}")},
        }});
        Stream::of(self.send(&message).await)
    }

    /// A tool's result, or its error's canonical name and reason.
    pub async fn call(&self, tool: &str, arguments: Value) -> Result<Value, Refused> {
        let mut stream = self.start(&request_id(), tool, arguments).await;
        outcome(stream.status, &stream.response().await)
    }

    pub async fn new_runtime(&self) -> String {
        let created = self.call("create_runtime", cpu()).await.unwrap();
        created["name"].as_str().unwrap().to_owned()
    }

    /// Starts code on a session.
    pub async fn begin(&self, id: &str, session: &str, code: &str, execution: &str) -> Stream {
        let mut arguments = json!({"session": session, self.code_argument.as_str(): code});
        if !execution.is_empty() {
            arguments["executionId"] = execution.into();
        }
        self.start(id, "execute_code", arguments).await
    }

    pub async fn execute(&self, session: &str, code: &str) -> Result<Value, Refused> {
        let mut stream = self.begin(&request_id(), session, code, "").await;
        outcome(stream.status, &stream.response().await)
    }

    /// Ends a session.
    pub async fn close(&self, session: &str) {
        self.call("delete_session", json!({"name": session}))
            .await
            .unwrap();
    }

    pub async fn cancel(&self, id: &str) {
        let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "test"}});
        let response = self.send(&message).await;
        assert_eq!(response.status(), 202);
    }

    /// Writes a file on the runtime, which lets code go on that waits for it.
    pub async fn put_file(&self, runtime: &str, path: &str, text: &str) {
        let connection = self.connection(runtime).await;
        let body = json!({"type": "file", "format": "text", "content": text});
        let response = connection
            .put(&self.http, path)
            .json(&body)
            .send()
            .await
            .unwrap();
        assert!(response.status().is_success(), "{}", response.status());
    }

    pub async fn read_file(&self, runtime: &str, path: &str) -> Option<String> {
        let connection = self.connection(runtime).await;
        let response = connection.get(&self.http, path).send().await.unwrap();
        if !response.status().is_success() {
            return None;
        }
        Some(response.text().await.unwrap())
    }

    pub async fn connection(&self, runtime: &str) -> Connection {
        let runtime = self
            .call("get_runtime", json!({"name": runtime}))
            .await
            .unwrap();
        let info = &runtime["connectionInfo"];
        Connection {
            url: info["url"].as_str().unwrap().to_owned(),
            token: info["token"].as_str().unwrap().to_owned(),
        }
    }

    pub fn counters(&self) -> Counts {
        self.emulator.as_ref().unwrap().counters()
    }

    pub async fn shutdown(mut self) {
        if let Some(emulator) = self.emulator.take() {
            BACKGROUND.spawn(emulator.shutdown()).await.unwrap();
        }
    }
}

/// `connectionInfo`
pub struct Connection {
    pub url: String,
    pub token: String,
}

impl Connection {
    pub fn get(&self, http: &reqwest::Client, path: &str) -> reqwest::RequestBuilder {
        http.get(format!("{}/files/{path}", self.url))
            .header("X-Colab-Runtime-Proxy-Token", &self.token)
    }

    pub fn put(&self, http: &reqwest::Client, path: &str) -> reqwest::RequestBuilder {
        http.put(format!("{}/api/contents/{path}", self.url))
            .header("X-Colab-Runtime-Proxy-Token", &self.token)
    }
}

pub fn cpu() -> Value {
    json!({"runtime": {"runtimeSpec": {"variant": "VARIANT_CPU", "accelerator": "NONE", "shape": "SHAPE_STANDARD"}}})
}

fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A pooled connection would belong to the test that opened it.
    let builder = reqwest::Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0);
    builder.build().unwrap()
}

/// An error's canonical name, reason and text.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    pub status: String,
    pub reason: String,
    pub message: String,
}

/// Reads an answer of the default surface: an HTTP status with a google.rpc body, or the same as data of a JSON-RPC error.
pub fn outcome(status: u16, body: &Value) -> Result<Value, Refused> {
    if let Some(result) = body.get("result") {
        let structured = result.get("structuredContent").cloned();
        let text = || serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        return Ok(structured.unwrap_or_else(text));
    }
    let error = if status >= 400 {
        &body["error"]
    } else {
        &body["error"]["data"]
    };
    Err(refused(error))
}

pub fn refused(error: &Value) -> Refused {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Refused {
        status: text(&error["status"]),
        reason: text(&error["details"][0]["reason"]),
        message: text(&error["message"]),
    }
}

/// An answer as it arrives: one JSON body, or events.
pub struct Stream {
    pub status: u16,
    pub headers: HeaderMap,
    body: Option<reqwest::Response>,
    buffer: String,
    /// Progress notifications' params, in order.
    pub progress: Vec<Value>,
    /// Comments, which keep a stream alive.
    pub comments: usize,
}

impl Stream {
    pub fn of(response: reqwest::Response) -> Self {
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: Some(response),
            buffer: String::new(),
            progress: Vec::new(),
            comments: 0,
        }
    }

    pub fn is_stream(&self) -> bool {
        self.headers["content-type"] == "text/event-stream"
    }

    /// The next progress' text, or `None` at the response (which is lost) or the end.
    pub async fn next_progress(&mut self) -> Option<Value> {
        let message = self.next_message().await?;
        (message["method"] == "notifications/progress").then(|| message["params"].clone())
    }

    /// Reads until this text has been printed.
    pub async fn wait_for(&mut self, text: &str) {
        while !self.text().contains(text) {
            self.next_progress()
                .await
                .unwrap_or_else(|| panic!("no {text:?} in {:?}", self.text()));
        }
    }

    /// What has been printed so far.
    pub fn text(&self) -> String {
        self.progress
            .iter()
            .filter_map(|params| params["message"].as_str())
            .collect()
    }

    /// Reads to the response.
    pub async fn response(&mut self) -> Value {
        if !self.is_stream() {
            let text = self.body.take().unwrap().text().await.unwrap();
            return serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        }
        while let Some(message) = self.next_message().await {
            if message.get("id").is_some() {
                assert_eq!(
                    self.next_message().await,
                    None,
                    "nothing follows the response"
                );
                return message;
            }
        }
        panic!("the stream ended without a response");
    }

    async fn next_message(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.buffer = rest;
                if event.starts_with(':') {
                    self.comments += 1;
                    continue;
                }
                let data: String = event
                    .lines()
                    .filter_map(|line| line.strip_prefix("data: "))
                    .collect();
                let message: Value = serde_json::from_str(&data).unwrap();
                if message["method"] == "notifications/progress" {
                    self.progress.push(message["params"].clone());
                }
                return Some(message);
            }
            let chunk = self.body.as_mut()?.chunk().await.ok()??;
            self.buffer
                .push_str(std::str::from_utf8(&chunk).expect("a chunk cut inside a character"));
        }
    }
}

/// Waits until a condition holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    for _ in 0..1200 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {what}");
}
