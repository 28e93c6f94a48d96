//! POSTs to one endpoint: TLS, proxies, credentials, and what a failed exchange means.
//!
//! Invariants:
//!
//! * A bearer token goes to the endpoint alone, and only over https or to a loopback address: redirects are not followed, and a
//!   loopback endpoint is never reached through a proxy.
//! * There is no total time limit here; callers set one where an answer is due. A dead connection is found by HTTP/2 PINGs and
//!   TCP keep-alive.
//! * A request is repeated once, with fresh credentials, after a 401: it did not run.

use std::error::Error as _;
use std::net::IpAddr;
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Method, Response, StatusCode};
use url::{Host, Url};

use super::TokenSource;
use super::errors::{Code, Origin, REASON_CERTIFICATE, Status};
use super::normalise;
use super::trace::{self, Way};
use super::words;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long silence may last before a connection is tested, and how long the test may take.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How much of an error's body is read, and for how long.
const ERROR_BODY_BYTES: usize = 256 * 1024;
const ERROR_BODY_TIME: Duration = Duration::from_secs(10);

/// Makes ring the process's provider of cryptography. Every TLS connection of the process needs it first; calling it again does
/// nothing.
pub fn install_crypto() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error means that somebody else installed a provider, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

/// What every client of the process has in common: how it connects to this address, and that it follows no redirect, because
/// its requests carry tokens. An address of this machine is not reached through a proxy.
pub(crate) fn builder(url: &Url) -> reqwest::ClientBuilder {
    install_crypto();
    let builder = reqwest::Client::builder()
        .user_agent(concat!("colab-kernel/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT);
    if is_loopback(url) {
        builder.no_proxy()
    } else {
        builder
    }
}

/// One endpoint and how it is reached. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Http {
    /// Made for the first request: reading the system's roots takes longer than a kernel may take to answer its front-end.
    client: Arc<OnceLock<reqwest::Client>>,
    endpoint: Url,
    tokens: Arc<dyn TokenSource>,
}

/// An answer with a status of 300 or above, read to its end.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) http: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Refusal {
    /// What it says, normalised.
    pub(crate) fn status(&self) -> Status {
        if self.http.is_redirection() {
            let target = self
                .headers
                .get(LOCATION)
                .and_then(|value| value.to_str().ok())
                .and_then(|target| Url::parse(target).ok())
                .and_then(|url| url.host_str().map(str::to_owned))
                .unwrap_or_else(|| "another address".to_owned());
            return Status::protocol(format!(
                "The endpoint redirects to {target} (HTTP {}), which is not followed because the request carries a token",
                self.http.as_u16()
            ));
        }
        normalise::from_http(self.http.as_u16(), &self.headers, &self.body)
    }
}

/// Why a POST brought no answer to read.
#[derive(Debug)]
pub(crate) enum PostError {
    /// Nothing came back, or nothing was sent.
    Failed(Status),
    /// The server refused it.
    Refused(Box<Refusal>),
}

impl From<PostError> for Status {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Failed(status) => status,
            PostError::Refused(refusal) => refusal.status(),
        }
    }
}

impl Http {
    /// Refuses an endpoint to which a token must not be sent.
    pub(crate) fn new(endpoint: Url, tokens: Arc<dyn TokenSource>) -> Result<Self, Status> {
        let refused =
            |message: String| Err(Status::new(Code::InvalidArgument, Origin::Connect, message));
        match endpoint.scheme() {
            "https" => {}
            "http" if is_loopback(&endpoint) => {}
            "http" => {
                return refused(format!(
                    "The endpoint {} is not https: a bearer token is sent only over https or to this machine",
                    shown(&endpoint)
                ));
            }
            other => {
                return refused(format!(
                    "The endpoint must be an https address, not {other}:"
                ));
            }
        }
        Ok(Self {
            client: Arc::default(),
            endpoint,
            tokens,
        })
    }

    fn client(&self) -> Result<&reqwest::Client, Status> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let builder = builder(&self.endpoint)
            .tcp_nodelay(true)
            .tcp_keepalive(PING_INTERVAL)
            .tcp_keepalive_interval(Duration::from_secs(10))
            .tcp_keepalive_retries(3)
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .http2_initial_stream_window_size(2 * 1024 * 1024)
            .http2_initial_connection_window_size(4 * 1024 * 1024);
        let client = builder.build().map_err(|error| {
            let cause = root_cause(&error);
            Status::new(
                Code::Internal,
                Origin::Connect,
                format!("TLS could not be set up: {cause}"),
            )
        })?;
        // Two first requests at once make two; one of them is kept.
        Ok(self.client.get_or_init(|| client))
    }

    /// Posts a JSON body and returns the answer once its headers are there.
    pub(crate) async fn post(
        &self,
        body: &str,
        headers: &HeaderMap,
        about: &str,
    ) -> Result<Response, PostError> {
        trace::frame(Way::Sent, about, body);
        self.send(Method::POST, &self.endpoint, Some(body), headers, about)
            .await
    }

    /// Gets a resource of the same host with the same credentials.
    pub(crate) async fn get(&self, path: &str) -> Result<Vec<u8>, Status> {
        let url = self
            .endpoint
            .join(&format!("/{}", path.trim_start_matches('/')))
            .map_err(|_| {
                Status::new(
                    Code::InvalidArgument,
                    Origin::Connect,
                    format!("{path:?} is no resource name"),
                )
            })?;
        let response = self
            .send(Method::GET, &url, None, &HeaderMap::new(), path)
            .await?;
        let body = response
            .bytes()
            .await
            .map_err(|error| self.failure(&error))?;
        trace::frame(Way::Received, path, &String::from_utf8_lossy(&body));
        Ok(body.to_vec())
    }

    /// What a failed exchange means, in words that name the host and hold no secret.
    pub(crate) fn failure(&self, error: &reqwest::Error) -> Status {
        failure(&self.endpoint, error)
    }

    async fn send(
        &self,
        method: Method,
        url: &Url,
        body: Option<&str>,
        headers: &HeaderMap,
        about: &str,
    ) -> Result<Response, PostError> {
        let mut refresh = false;
        loop {
            let credentials = self
                .tokens
                .headers(refresh)
                .await
                .map_err(PostError::Failed)?;
            let client = self.client().map_err(PostError::Failed)?;
            let mut request = client
                .request(method.clone(), url.clone())
                .headers(headers.clone())
                .header(
                    ACCEPT,
                    HeaderValue::from_static("application/json, text/event-stream"),
                );
            if let Some(body) = body {
                request = request
                    .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                    .body(body.to_owned());
            }
            let mut credentials = credentials;
            if let Some(authorization) = credentials.get_mut(AUTHORIZATION) {
                authorization.set_sensitive(true);
            }
            let response = request
                .headers(credentials)
                .send()
                .await
                .map_err(|error| PostError::Failed(self.failure(&error)))?;
            if response.status().is_success() {
                return Ok(response);
            }
            let refusal = read_refusal(response).await;
            trace::frame(
                Way::Received,
                &format!("{about} HTTP {}", refusal.http.as_u16()),
                &String::from_utf8_lossy(&refusal.body),
            );
            if refusal.http == StatusCode::UNAUTHORIZED && !refresh {
                refresh = true;
                continue;
            }
            return Err(PostError::Refused(Box::new(refusal)));
        }
    }
}

async fn read_refusal(response: Response) -> Refusal {
    let http = response.status();
    let headers = response.headers().clone();
    let mut body = Vec::new();
    let mut stream = response.bytes_stream();
    let read = async {
        while let Some(Ok(chunk)) = stream.next().await {
            let room = ERROR_BODY_BYTES - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == ERROR_BODY_BYTES {
                break;
            }
        }
    };
    // Whatever has come by then has to do: the status alone is an answer.
    let _ = tokio::time::timeout(ERROR_BODY_TIME, read).await;
    Refusal {
        http,
        headers,
        body,
    }
}

/// Whether an address is this machine.
pub(crate) fn is_loopback(endpoint: &Url) -> bool {
    match endpoint.host() {
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            name.eq_ignore_ascii_case("localhost")
                || name.to_ascii_lowercase().ends_with(".localhost")
        }
        Some(Host::Ipv4(address)) => IpAddr::V4(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).is_loopback(),
        None => false,
    }
}

/// The address without what may be secret in it.
fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{}://{host}:{port}", url.scheme()),
        None => format!("{}://{host}", url.scheme()),
    }
}

fn failure(endpoint: &Url, error: &reqwest::Error) -> Status {
    let place = shown(endpoint);
    let causes = chain(error);
    let cause = words::mask_secrets(&root_cause(error));
    if !error.is_connect() && !error.is_builder() {
        return Status::lost(format!("The connection to {place} was lost: {cause}"));
    }
    let through = proxy_of(endpoint, &causes)
        .map(|proxy| format!(" through the proxy {proxy}"))
        .unwrap_or_default();
    let lower = causes.to_ascii_lowercase();
    let is_certificate = [
        "certificate",
        "unknownissuer",
        "notvalidforname",
        "ca not trusted",
    ]
    .iter()
    .any(|word| lower.contains(word));
    if is_certificate {
        let mut status = Status::new(
            Code::Unavailable,
            Origin::Connect,
            format!("The certificate of {place}{through} was not accepted: {cause}"),
        );
        status.reason = Some(REASON_CERTIFICATE.to_owned());
        return status;
    }
    let cause = if error.is_timeout() {
        "no answer in time".to_owned()
    } else {
        cause
    };
    Status::new(
        Code::Unavailable,
        Origin::Connect,
        format!("Cannot connect to {place}{through}: {cause}"),
    )
}

/// Every cause of an error, outermost first.
fn chain(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&cause.to_string());
        text.push('\n');
        source = cause.source();
    }
    text
}

/// The innermost cause. (The outermost repeats the URL.)
fn root_cause(error: &reqwest::Error) -> String {
    chain(error)
        .lines()
        .rfind(|line| !line.is_empty())
        .unwrap_or("no cause is known")
        .to_owned()
}

/// The proxy that the environment names for an endpoint, without its credentials.
fn proxy_of(endpoint: &Url, causes: &str) -> Option<String> {
    if is_loopback(endpoint) {
        return None;
    }
    let variables = match endpoint.scheme() {
        "https" => ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"],
        _ => ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"],
    };
    let value = variables
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let Some(value) = value else {
        return causes
            .contains("tunnel")
            .then(|| "of the system settings".to_owned());
    };
    let host = endpoint.host_str().unwrap_or_default();
    let exempt = ["NO_PROXY", "no_proxy"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .any(|list| {
            list.split(',')
                .map(|entry| entry.trim().trim_start_matches('.'))
                .any(|entry| entry == "*" || (!entry.is_empty() && host.ends_with(entry)))
        });
    if exempt {
        return None;
    }
    let url = Url::parse(&value)
        .or_else(|_| Url::parse(&format!("http://{value}")))
        .ok()?;
    Some(shown(&url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_known_in_all_their_forms() {
        for url in [
            "http://127.0.0.1:1/mcp",
            "http://127.9.8.7/",
            "http://[::1]:80/",
            "http://localhost:9/",
            "http://LOCALHOST./",
        ] {
            assert!(is_loopback(&Url::parse(url).unwrap()), "{url}");
        }
        for url in [
            "http://10.0.0.1/",
            "http://localhost.example.com/",
            "http://0.0.0.0/",
            "http://[::2]/",
        ] {
            assert!(!is_loopback(&Url::parse(url).unwrap()), "{url}");
        }
    }

    #[test]
    fn an_address_is_shown_without_its_credentials() {
        let url = Url::parse("https://user:pass@example.com:8443/mcp?token=x").unwrap();
        assert_eq!(shown(&url), "https://example.com:8443");
    }
}
