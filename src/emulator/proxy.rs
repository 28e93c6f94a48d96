//! The proxy in front of a runtime's Jupyter Server: an address of its own, a token in every request.
//!
//! Invariants:
//!
//! * Without a good token every request is answered 404, as the reference says; a WebSocket asked for by somebody else's web
//!   page is refused.
//! * The proxy's tokens, the Jupyter Server's own and whatever credentials the caller sent stay on their own side.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::serve::ListenerExt as _;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::counters::Counters;
use super::quirks::{Channels, Companion};
use super::runtimes::{Runtime, Workshop};
use super::tunnel;

const TOKEN_HEADER: &str = "x-colab-runtime-proxy-token";
const TOKEN_PARAMETER: &str = "colab-runtime-proxy-token";

/// The one web page that may open WebSockets.
const COLAB_ORIGIN: &str = "https://colab.research.google.com";

/// Serves until the task is aborted.
pub(super) fn serve(
    listener: TcpListener,
    runtime: Arc<Runtime>,
    workshop: &Workshop,
) -> impl Future<Output = ()> + use<> {
    let app = Router::new().fallback(forward).with_state(Arc::new(Proxy {
        runtime,
        http: workshop.http.clone(),
        companion: workshop.quirks.companion,
        channels: workshop.quirks.channels,
        counters: workshop.counters.clone(),
    }));
    let listener = listener.tap_io(send_at_once);
    async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::warn!(%error, "a runtime's proxy ended");
        }
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
    companion: Companion,
    channels: Channels,
    counters: Arc<Counters>,
}

async fn forward(State(proxy): State<Arc<Proxy>>, mut request: Request) -> Response {
    let header = request.headers().get(TOKEN_HEADER);
    let header = header.and_then(|token| token.to_str().ok());
    let (target, parameter) = without_token(request.uri());
    let given = header.into_iter().chain(parameter.as_deref());
    if !given.into_iter().any(|token| proxy.runtime.takes(token)) {
        return not_found();
    }
    let upgrade = is_websocket(request.headers());
    if upgrade && let Some(refusal) = proxy.refusal(request.headers()) {
        return refusal;
    }
    let client = upgrade.then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();

    let server = &proxy.runtime.server;
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
    if upgrade {
        ask_for_websocket(&mut headers);
        // Frames pass through as they are, and are read where a fault counts them.
        headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
        if proxy.channels == Channels::Default {
            headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
        }
    }
    let has_body = headers.contains_key(header::CONTENT_LENGTH)
        || parts.headers.contains_key(header::TRANSFER_ENCODING);
    let mut onward = proxy
        .http
        .request(parts.method, server.url(&target))
        .headers(headers)
        .header(header::AUTHORIZATION, format!("token {}", server.token));
    if has_body {
        onward = onward.body(reqwest::Body::wrap_stream(body.into_data_stream()));
    }
    let Ok(answer) = onward.send().await else {
        return not_found();
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.status();
    *response.headers_mut() = end_to_end(answer.headers());
    match client {
        Some(client) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
            ask_for_websocket(response.headers_mut());
            tokio::spawn(tunnel_between(proxy, client, answer));
        }
        _ => *response.body_mut() = Body::from_stream(answer.bytes_stream()),
    }
    response
}

impl Proxy {
    /// Why a WebSocket is not opened.
    fn refusal(&self, headers: &HeaderMap) -> Option<Response> {
        let foreign = |origin: &HeaderValue| origin != COLAB_ORIGIN;
        if headers.get(header::ORIGIN).is_some_and(foreign) {
            return Some((StatusCode::FORBIDDEN, "Origin not allowed\n").into_response());
        }
        if self.companion == Companion::Blocked {
            self.counters.blocked.add();
            return Some((StatusCode::FORBIDDEN, "Forbidden\n").into_response());
        }
        None
    }
}

/// Joins both ends, once both have changed over.
async fn tunnel_between(
    proxy: Arc<Proxy>,
    client: hyper::upgrade::OnUpgrade,
    answer: reqwest::Response,
) {
    let (Ok(client), Ok(server)) = tokio::join!(client, answer.upgrade()) else {
        return;
    };
    proxy.counters.websockets.add();
    let ending = proxy.runtime.server.ending();
    let tunnel = tunnel::run(
        TokioIo::new(client),
        server,
        proxy.companion,
        &proxy.counters,
    );
    tokio::select! {
        end = tunnel => {
            if let Err(error) = end {
                tracing::debug!(%error, "a WebSocket ended");
            }
        }
        () = ending.cancelled() => {}
    }
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "Not found\n").into_response()
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE);
    upgrade.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

fn ask_for_websocket(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

/// Path and query without the proxy's token, and that token. The rest of the query is left as it was written.
fn without_token(uri: &Uri) -> (String, Option<String>) {
    let Some(query) = uri.query() else {
        return (uri.path().to_owned(), None);
    };
    let mut token = None;
    let mut kept = Vec::new();
    for part in query.split('&') {
        let mut pairs = url::form_urlencoded::parse(part.as_bytes());
        match pairs.next() {
            Some((name, value)) if name == TOKEN_PARAMETER => token = Some(value.into_owned()),
            _ => kept.push(part),
        }
    }
    if kept.is_empty() {
        return (uri.path().to_owned(), token);
    }
    (format!("{}?{}", uri.path(), kept.join("&")), token)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_proxys_token_is_taken_out_of_a_query() {
        let split = |uri: &'static str| without_token(&Uri::from_static(uri));
        let none = || None::<String>;
        assert_eq!(split("/a%20b"), ("/a%20b".to_owned(), none()));
        assert_eq!(split("/a?x=%2F&y"), ("/a?x=%2F&y".to_owned(), none()));
        let token = Some("a/b".to_owned());
        assert_eq!(
            split("/a?colab-runtime-proxy-token=a%2Fb"),
            ("/a".to_owned(), token.clone())
        );
        assert_eq!(
            split("/a?session_id=1&colab-runtime-proxy-token=a%2Fb&c=%20"),
            ("/a?session_id=1&c=%20".to_owned(), token)
        );
    }
}
