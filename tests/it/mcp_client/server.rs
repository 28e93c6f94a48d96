//! A raw HTTP/1.1 server whose answers are written by the test.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// One request as it came in.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Method and path.
    pub line: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    pub body: Value,
}

impl Seen {
    /// The JSON-RPC method.
    pub fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What is sent back.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub parts: Vec<Part>,
    /// Sends nothing, not even headers, before this.
    pub hold: Option<Arc<Notify>>,
}

/// A piece of a body.
pub enum Part {
    Bytes(Vec<u8>),
    /// Goes on when notified.
    Wait(Arc<Notify>),
    /// Ends the connection in the middle of the body.
    Cut,
    /// Waits until the client closes the connection, and tells.
    UntilClosed(Arc<Notify>),
    /// Sends the bytes again and again until the client does not take any for a while; counts what it took, and tells.
    Flood {
        bytes: Vec<u8>,
        taken: Arc<AtomicUsize>,
        blocked: Arc<Notify>,
    },
}

impl Reply {
    pub fn new(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: vec![("content-type".into(), content_type.into())],
            parts: vec![Part::Bytes(body.into())],
            hold: None,
        }
    }

    pub fn json(body: &Value) -> Self {
        Self::new(200, "application/json", body.to_string())
    }

    pub fn sse(parts: Vec<Part>) -> Self {
        Self {
            parts,
            ..Self::new(200, "text/event-stream", "")
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn hold(mut self, until: &Arc<Notify>) -> Self {
        self.hold = Some(Arc::clone(until));
        self
    }

    /// A JSON-RPC result in answer to a request.
    pub fn result(seen: &Seen, result: &Value) -> Self {
        Self::json(&json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result}))
    }

    /// A JSON-RPC error.
    pub fn rpc_error(status: u16, seen: &Seen, error: &Value) -> Self {
        let body = json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error});
        Self::new(status, "application/json", body.to_string())
    }
}

/// An event whose data is this JSON.
pub fn event(value: &Value) -> Part {
    Part::Bytes(format!("event: message\ndata: {value}\n\n").into_bytes())
}

/// The event of a progress notification for a request.
pub fn progress(seen: &Seen, number: usize, message: &str) -> Part {
    event(
        &json!({"jsonrpc": "2.0", "method": "notifications/progress", "params":
        {"progressToken": seen.body["params"]["_meta"]["progressToken"], "progress": number, "message": message}}),
    )
}

/// The event of the result.
pub fn done(seen: &Seen, structured: &Value) -> Part {
    event(
        &json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": {"structuredContent": structured, "content": []}}),
    )
}

type Script = Arc<dyn Fn(&Seen) -> Reply + Send + Sync>;

/// The running server; it ends with the test.
pub struct Server {
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    arrived: Arc<Notify>,
}

impl Server {
    /// A server that answers every request by the script.
    pub async fn raw(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let arrived = Arc::new(Notify::new());
        let script: Script = Arc::new(script);
        let server = Self {
            url,
            seen: Arc::clone(&seen),
            arrived: Arc::clone(&arrived),
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, arrived, script) =
                    (Arc::clone(&seen), Arc::clone(&arrived), Arc::clone(&script));
                tokio::spawn(async move {
                    // A client that goes away ends its connection, which is no failure of the test.
                    let _ = serve(stream, &seen, &arrived, &script).await;
                });
            }
        });
        server
    }

    /// A server of the stateless era with these tools; the script answers `tools/call` (and notifications with 202).
    pub async fn stateless(
        tools: Value,
        script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::raw(move |seen| {
            if seen.header("mcp-protocol-version") != Some("2026-07-28") {
                return Reply::rpc_error(
                    400,
                    seen,
                    &json!({"code": -32020, "message": "headers are missing"}),
                );
            }
            match seen.method() {
                "tools/list" => {
                    Reply::result(seen, &json!({"tools": tools, "resultType": "complete"}))
                }
                "tools/call" => script(seen),
                _ => Reply::new(202, "", ""),
            }
        })
        .await
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The JSON-RPC methods so far.
    pub fn methods(&self) -> Vec<String> {
        self.seen()
            .iter()
            .map(|seen| seen.method().to_owned())
            .collect()
    }

    /// Waits until a request is there for which the condition holds.
    pub async fn until(&self, condition: impl Fn(&Seen) -> bool) -> Seen {
        loop {
            let arrived = self.arrived.notified();
            if let Some(seen) = self.seen().into_iter().find(|seen| condition(seen)) {
                return seen;
            }
            arrived.await;
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<Seen>>,
    arrived: &Notify,
    script: &Script,
) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let Some(request) = read_request(&mut stream, &mut buffer).await? else {
            return Ok(());
        };
        let reply = script(&request);
        seen.lock().unwrap().push(request);
        arrived.notify_waiters();
        if let Some(hold) = reply.hold {
            hold.notified().await;
        }
        let mut head = format!(
            "HTTP/1.1 {} X\r\ntransfer-encoding: chunked\r\n",
            reply.status
        );
        for (name, value) in reply.headers.iter().filter(|(_, value)| !value.is_empty()) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await?;
        for part in reply.parts {
            match part {
                Part::Bytes(bytes) if bytes.is_empty() => {}
                Part::Bytes(bytes) => write_chunk(&mut stream, &bytes).await?,
                Part::Wait(until) => until.notified().await,
                Part::Cut => return Ok(()),
                Part::UntilClosed(told) => {
                    let mut byte = [0];
                    while stream.read(&mut byte).await.is_ok_and(|n| n > 0) {}
                    told.notify_one();
                    return Ok(());
                }
                Part::Flood {
                    bytes,
                    taken,
                    blocked,
                } => loop {
                    let write = write_chunk(&mut stream, &bytes);
                    match tokio::time::timeout(Duration::from_millis(500), write).await {
                        Ok(Ok(())) => {
                            taken.fetch_add(bytes.len(), Ordering::SeqCst);
                        }
                        Ok(Err(error)) => return Err(error),
                        Err(_) => {
                            blocked.notify_one();
                            return Ok(());
                        }
                    }
                },
            }
        }
        stream.write_all(b"0\r\n\r\n").await?;
    }
}

async fn write_chunk(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream
        .write_all(format!("{:x}\r\n", bytes.len()).as_bytes())
        .await?;
    stream.write_all(bytes).await?;
    stream.write_all(b"\r\n").await
}

async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> std::io::Result<Option<Seen>> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let mut lines = head.lines();
    let line = lines
        .next()
        .unwrap_or_default()
        .trim_end_matches(" HTTP/1.1")
        .to_owned();
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length: usize = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    while buffer.len() < head_end + 4 + length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body =
        serde_json::from_slice(&buffer[head_end + 4..head_end + 4 + length]).unwrap_or_default();
    buffer.drain(..head_end + 4 + length);
    Ok(Some(Seen {
        line,
        headers,
        body,
    }))
}
