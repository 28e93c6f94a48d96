//! The proxy in front of a runtime's Jupyter Server: an address of its own, a token in every request.
//!
//! Invariants: without a good token every request is answered 404, as the reference says; the Jupyter Server's own token and
//! whatever credentials the caller sent stay on their own side.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::serve::ListenerExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::runtimes::Runtime;

const TOKEN_HEADER: &str = "x-colab-runtime-proxy-token";

/// Serves until the task is aborted.
pub(super) async fn serve(listener: TcpListener, runtime: Arc<Runtime>, http: reqwest::Client) {
    let app = Router::new()
        .fallback(forward)
        .with_state(Arc::new(Proxy { runtime, http }));
    let listener = listener.tap_io(send_at_once);
    if let Err(error) = axum::serve(listener, app).await {
        tracing::warn!(%error, "a runtime's proxy ended");
    }
}

/// Small writes are not held back for an acknowledgement, which would cost an event up to 40 ms.
pub(super) fn send_at_once(stream: &mut TcpStream) {
    // A connection on which it fails is about to fail anyway.
    let _ = stream.set_nodelay(true);
}

struct Proxy {
    runtime: Arc<Runtime>,
    http: reqwest::Client,
}

async fn forward(State(proxy): State<Arc<Proxy>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let token = parts.headers.get(TOKEN_HEADER);
    let token = token
        .and_then(|token| token.to_str().ok())
        .unwrap_or_default();
    if !proxy.runtime.takes(token) {
        return (StatusCode::NOT_FOUND, "Not found\n").into_response();
    }
    if parts.headers.contains_key(header::UPGRADE) {
        return (StatusCode::NOT_IMPLEMENTED, "WebSockets are not proxied\n").into_response();
    }

    let server = &proxy.runtime.server;
    let target = parts
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let mut headers = end_to_end(&parts.headers);
    for name in [
        header::HOST,
        header::AUTHORIZATION,
        header::ORIGIN,
        header::REFERER,
    ] {
        headers.remove(name);
    }
    headers.remove(TOKEN_HEADER);
    let has_body = headers.contains_key(header::CONTENT_LENGTH)
        || parts.headers.contains_key(header::TRANSFER_ENCODING);
    let mut onward = proxy
        .http
        .request(parts.method, format!("{}{target}", server.url))
        .headers(headers)
        .header(header::AUTHORIZATION, format!("token {}", server.token));
    if has_body {
        onward = onward.body(reqwest::Body::wrap_stream(body.into_data_stream()));
    }
    let Ok(answer) = onward.send().await else {
        return (StatusCode::NOT_FOUND, "Not found\n").into_response();
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.status();
    *response.headers_mut() = end_to_end(answer.headers());
    *response.body_mut() = Body::from_stream(answer.bytes_stream());
    response
}

/// The headers without those of one hop (RFC 9110 §7.6.1). The length is kept: bodies pass through as they are.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    const HOP: [HeaderName; 7] = [
        header::CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    let mut kept = headers.clone();
    for name in HOP {
        kept.remove(name);
    }
    kept
}
