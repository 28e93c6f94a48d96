//! Fetching files of the runtime through its proxy.
//!
//! Invariants: the proxy token goes to the host it was issued for and nowhere else (redirects are not followed), only over https
//! or to this machine; it never appears in a message; what is fetched has a limit.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use reqwest::StatusCode;
use url::Url;

use super::api::ConnectionInfo;
use super::mcp::http::{builder, is_loopback};

/// The largest file that is fetched for an output.
pub const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// The header that carries the proxy token.
const TOKEN_HEADER: &str = "X-Colab-Runtime-Proxy-Token";
/// How long a token must at least be valid to be used.
const MARGIN: Duration = Duration::from_secs(5 * 60);
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a file was not fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The token may be too old (a missing or expired one is answered with 404).
    #[error("the runtime does not have it (HTTP {0})")]
    Refused(u16),
    /// Anything else, in words.
    #[error("{0}")]
    Failed(String),
}

/// Fetches files. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Files {
    /// Made for the first file: reading the system's roots takes longer than a kernel may take to answer its front-end.
    /// One is for other machines, one for this one, which is not reached through a proxy.
    http: Arc<[OnceLock<Result<reqwest::Client, String>>; 2]>,
    limit: u64,
}

impl Default for Files {
    fn default() -> Self {
        Self::new()
    }
}

impl Files {
    /// A fetcher with the system's proxies and roots.
    pub fn new() -> Self {
        Self {
            http: Arc::default(),
            limit: MAX_BYTES,
        }
    }

    /// Fetches the file at this absolute path of the runtime.
    pub async fn fetch(&self, info: &ConnectionInfo, path: &str) -> Result<Vec<u8>, FetchError> {
        let url = file_url(&info.url, path).map_err(failed)?;
        let http = self.http[usize::from(is_loopback(&url))].get_or_init(|| client(&url));
        let http = http.as_ref().map_err(|why| failed(why.clone()))?;
        let response = http
            .get(url)
            .header(TOKEN_HEADER, &info.token)
            .send()
            .await
            .map_err(|error| failed(in_words(error)))?;
        match response.status() {
            StatusCode::OK => {}
            status @ (StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                return Err(FetchError::Refused(status.as_u16()));
            }
            status => {
                return Err(failed(format!(
                    "the runtime answered HTTP {}",
                    status.as_u16()
                )));
            }
        }
        if response
            .content_length()
            .is_some_and(|length| length > self.limit)
        {
            return Err(self.too_large());
        }
        let mut content = Vec::new();
        let mut body = response.bytes_stream();
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| failed(in_words(error)))?;
            if content.len() as u64 + piece.len() as u64 > self.limit {
                return Err(self.too_large());
            }
            content.extend_from_slice(&piece);
        }
        Ok(content)
    }

    fn too_large(&self) -> FetchError {
        failed(format!(
            "it is larger than {} MiB",
            self.limit / (1024 * 1024)
        ))
    }
}

/// Whether this connection's token is known to be good for a while.
pub fn is_fresh(info: &ConnectionInfo, now: chrono::DateTime<chrono::Utc>) -> bool {
    // Without a time that can be read, the answer 404 tells.
    chrono::DateTime::parse_from_rfc3339(&info.expire_time).map_or(true, |expiry| {
        expiry.to_utc() - now > chrono::TimeDelta::from_std(MARGIN).unwrap_or_default()
    })
}

fn client(url: &Url) -> Result<reqwest::Client, String> {
    builder(url)
        .read_timeout(READ_TIMEOUT)
        .build()
        .map_err(|error| format!("no HTTP client: {}", in_words(error)))
}

/// `{url}/files/{path}`, each part of the path percent-encoded.
fn file_url(base: &str, path: &str) -> Result<Url, String> {
    let mut url =
        Url::parse(base).map_err(|error| format!("the runtime's address is no URL: {error}"))?;
    if url.scheme() != "https" && !(url.scheme() == "http" && is_loopback(&url)) {
        return Err("the runtime's address is not https".to_owned());
    }
    if path.split('/').any(|part| matches!(part, "." | "..")) {
        return Err("its path is not absolute".to_owned());
    }
    url.path_segments_mut()
        .map_err(|()| "the runtime's address has no path".to_owned())?
        .pop_if_empty()
        .push("files")
        .extend(path.split('/').filter(|part| !part.is_empty()));
    Ok(url)
}

fn failed(why: String) -> FetchError {
    FetchError::Failed(why)
}

/// An HTTP error without the URL, which may carry secrets.
fn in_words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::extract::Request;
    use axum::http::HeaderMap;
    use axum::response::{IntoResponse, Redirect};
    use axum::routing::get;
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    async fn serve(router: Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}/proxy/")
    }

    fn info(url: String) -> ConnectionInfo {
        ConnectionInfo {
            token: "s3cret".into(),
            expire_time: String::new(),
            url,
        }
    }

    #[tokio::test]
    async fn a_file_is_asked_for_with_the_token_and_its_path_encoded() {
        let router =
            Router::new().fallback(get(|headers: HeaderMap, request: Request| async move {
                let token = headers[TOKEN_HEADER].to_str().unwrap().to_owned();
                format!("{token} {}", request.uri())
            }));
        let info = info(serve(router).await);
        let fetched = timeout(
            LIMIT,
            Files::new().fetch(&info, "/content/.out/a b%é?.json"),
        )
        .await
        .unwrap()
        .unwrap();
        assert_eq!(
            String::from_utf8(fetched).unwrap(),
            "s3cret /proxy/files/content/.out/a%20b%25%C3%A9%3F.json"
        );
    }

    #[tokio::test]
    async fn the_token_does_not_follow_a_redirect() {
        let router = Router::new()
            .route(
                "/proxy/files/x",
                get(|| async { Redirect::temporary("/other") }),
            )
            .route("/other", get(|| async { "must not be read" }));
        let info = info(serve(router).await);
        let error = timeout(LIMIT, Files::new().fetch(&info, "/x"))
            .await
            .unwrap()
            .unwrap_err();
        assert_eq!(
            error,
            FetchError::Failed("the runtime answered HTTP 307".into())
        );
    }

    #[tokio::test]
    async fn a_file_above_the_limit_is_refused_however_it_comes() {
        let router = Router::new()
            .route("/proxy/files/known", get(|| async { vec![0_u8; 2000] }))
            .route(
                "/proxy/files/chunked",
                get(|| async {
                    let pieces = (0..20).map(|_| Ok::<_, std::io::Error>(vec![0_u8; 100]));
                    axum::body::Body::from_stream(futures_util::stream::iter(pieces))
                        .into_response()
                }),
            );
        let info = info(serve(router).await);
        let files = Files {
            limit: 1000,
            ..Files::new()
        };
        for path in ["/known", "/chunked"] {
            let error = timeout(LIMIT, files.fetch(&info, path)).await.unwrap();
            assert_eq!(error, Err(files.too_large()), "{path}");
        }
    }

    #[test]
    fn the_token_goes_over_https_or_to_this_machine_only() {
        for good in [
            "https://x.example/p",
            "http://127.0.0.1:1",
            "http://[::1]:1",
            "http://localhost",
        ] {
            assert!(file_url(good, "/a").is_ok(), "{good}");
        }
        for bad in ["http://x.example", "ftp://127.0.0.1", "", "/a"] {
            assert!(file_url(bad, "/a").is_err(), "{bad}");
        }
        assert!(file_url("https://x.example", "/a/../b").is_err());
    }

    #[test]
    fn a_token_is_fresh_while_five_minutes_are_left() {
        let now = chrono::Utc::now();
        let at = |seconds: i64| ConnectionInfo {
            expire_time: (now + chrono::TimeDelta::seconds(seconds)).to_rfc3339(),
            ..info(String::new())
        };
        assert!(is_fresh(&at(600), now));
        assert!(!is_fresh(&at(200), now));
        assert!(!is_fresh(&at(-10), now));
        assert!(is_fresh(&info(String::new()), now));
    }
}
