//! Fetching files of the runtime through its proxy.
//!
//! Invariants: those of [`super::runtime_http`]; what is fetched has a limit.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::{Method, StatusCode};
use tokio::time::timeout;

use super::api::ConnectionInfo;
use super::runtime_http::{RuntimeHttp, in_words};

/// The largest file that is fetched for an output.
pub const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// How long a token must at least be valid to be used.
const MARGIN: Duration = Duration::from_secs(5 * 60);
/// How long the runtime may be silent before or within its answer.
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
    http: RuntimeHttp,
    limit: u64,
}

impl Files {
    /// A fetcher over this client.
    pub fn new(http: RuntimeHttp) -> Self {
        Self {
            http,
            limit: MAX_BYTES,
        }
    }

    /// Fetches the file at this absolute path of the runtime.
    pub async fn fetch(&self, info: &ConnectionInfo, path: &str) -> Result<Vec<u8>, FetchError> {
        let parts = std::iter::once("files").chain(path.split('/'));
        let request = self
            .http
            .request(Method::GET, info, parts, &[])
            .map_err(failed)?;
        let response = timeout(READ_TIMEOUT, request.send())
            .await
            .map_err(|_| silent())?
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
        while let Some(piece) = timeout(READ_TIMEOUT, body.next())
            .await
            .map_err(|_| silent())?
        {
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

fn failed(why: String) -> FetchError {
    FetchError::Failed(why)
}

fn silent() -> FetchError {
    failed("the runtime did not answer in time".to_owned())
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

    use super::super::runtime_http::TOKEN_HEADER;
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
            Files::new(RuntimeHttp::new()).fetch(&info, "/content/.out/a b%é?.json"),
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
        let error = timeout(LIMIT, Files::new(RuntimeHttp::new()).fetch(&info, "/x"))
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
            ..Files::new(RuntimeHttp::new())
        };
        for path in ["/known", "/chunked"] {
            let error = timeout(LIMIT, files.fetch(&info, path)).await.unwrap();
            assert_eq!(error, Err(files.too_large()), "{path}");
        }
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
