//! What is asked of the runtime's Jupyter Server outside of a kernel's channels.
//!
//! Invariants: every request has a time limit; what is read has a size limit; neither tokens nor addresses appear in an error.

use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use super::super::api::ConnectionInfo;
use super::super::runtime_http::{RuntimeHttp, in_words};

const LIMIT: Duration = Duration::from_secs(15);
const LIST_BYTES: usize = 4 * 1024 * 1024;
const WORDS_BYTES: usize = 64 * 1024;

/// Why the server did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestError {
    /// The token may be too old, or this may not be asked at all (a kernel gateway refuses listings).
    #[error("the runtime's server refuses it (HTTP {0})")]
    Refused(u16),
    /// Another status.
    #[error("the runtime's server answered HTTP {0}")]
    Status(u16),
    /// No answer, in words.
    #[error("{0}")]
    Unreachable(String),
    /// The answer is not what it should be.
    #[error("the answer of the runtime's server cannot be read")]
    Unreadable,
}

/// A session of the Jupyter Server: a name for a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JupyterSession {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The notebook or file that it is for.
    pub path: String,
    /// Its kernel.
    pub kernel_id: String,
}

/// The sessions that the server tells of. What is no session in the list is passed over.
pub async fn sessions(
    http: &RuntimeHttp,
    info: &ConnectionInfo,
) -> Result<Vec<JupyterSession>, RestError> {
    let request = http
        .request(Method::GET, info, ["api", "sessions"], &[])
        .map_err(RestError::Unreachable)?;
    let list = limited(async {
        let response = send(request).await?;
        read(response, LIST_BYTES).await
    })
    .await?;
    let Ok(Value::Array(list)) = serde_json::from_slice(&list) else {
        return Err(RestError::Unreadable);
    };
    let sessions = list
        .into_iter()
        .filter_map(|session| serde_json::from_value::<Listed>(session).ok())
        .map(JupyterSession::from);
    Ok(sessions.collect())
}

/// Interrupts a kernel.
pub async fn interrupt(
    http: &RuntimeHttp,
    info: &ConnectionInfo,
    kernel_id: &str,
) -> Result<(), RestError> {
    let path = ["api", "kernels", kernel_id, "interrupt"];
    let request = http
        .request(Method::POST, info, path, &[])
        .map_err(RestError::Unreachable)?;
    // Some proxies refuse a POST that tells no length.
    let request = request.header(CONTENT_LENGTH, 0);
    limited(async { send(request).await.map(drop) }).await
}

/// Whether the server has a kernel with this id. An error says nothing about it: only the server's own words do.
pub async fn has_kernel(
    http: &RuntimeHttp,
    info: &ConnectionInfo,
    kernel_id: &str,
) -> Result<bool, RestError> {
    let request = http
        .request(Method::GET, info, ["api", "kernels", kernel_id], &[])
        .map_err(RestError::Unreachable)?;
    limited(async {
        let response = request.send().await.map_err(unreachable)?;
        if response.status() != StatusCode::NOT_FOUND {
            return checked(response).map(|_| true);
        }
        // The proxy's 404, for a token, has other words.
        let words = read(response, WORDS_BYTES).await?;
        if String::from_utf8_lossy(&words).contains("Kernel does not exist") {
            return Ok(false);
        }
        Err(RestError::Refused(StatusCode::NOT_FOUND.as_u16()))
    })
    .await
}

#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    path: Option<String>,
    /// Where servers before 2017 put the path, and newer ones still do.
    #[serde(default)]
    notebook: Option<Notebook>,
    #[serde(default)]
    kernel: Option<Kernel>,
}

#[derive(Deserialize)]
struct Notebook {
    #[serde(default)]
    path: Option<String>,
}

#[derive(Deserialize)]
struct Kernel {
    #[serde(default)]
    id: Option<String>,
}

impl From<Listed> for JupyterSession {
    fn from(listed: Listed) -> Self {
        let path = listed.path.filter(|path| !path.is_empty());
        let path = path.or_else(|| listed.notebook.and_then(|notebook| notebook.path));
        let kernel = listed.kernel.and_then(|kernel| kernel.id);
        Self {
            id: listed.id.unwrap_or_default(),
            name: listed.name.unwrap_or_default(),
            path: path.unwrap_or_default(),
            kernel_id: kernel.unwrap_or_default(),
        }
    }
}

async fn limited<T>(work: impl Future<Output = Result<T, RestError>>) -> Result<T, RestError> {
    timeout(LIMIT, work).await.unwrap_or_else(|_| {
        Err(RestError::Unreachable(
            "the runtime's server did not answer in time".to_owned(),
        ))
    })
}

async fn send(request: RequestBuilder) -> Result<Response, RestError> {
    checked(request.send().await.map_err(unreachable)?)
}

fn checked(response: Response) -> Result<Response, RestError> {
    match response.status() {
        status if status.is_success() => Ok(response),
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) => {
            Err(RestError::Refused(status.as_u16()))
        }
        status => Err(RestError::Status(status.as_u16())),
    }
}

async fn read(response: Response, limit: usize) -> Result<Vec<u8>, RestError> {
    let mut content = Vec::new();
    let mut body = response.bytes_stream();
    while let Some(piece) = body.next().await {
        content.extend_from_slice(&piece.map_err(unreachable)?);
        if content.len() > limit {
            return Err(RestError::Unreadable);
        }
    }
    Ok(content)
}

fn unreachable(error: reqwest::Error) -> RestError {
    RestError::Unreachable(in_words(error))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::Request;
    use axum::routing::{get, post};
    use serde_json::json;

    use super::*;

    async fn serve(router: Router) -> ConnectionInfo {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        ConnectionInfo {
            token: "s3cret".into(),
            expire_time: String::new(),
            url: format!("http://{address}/base"),
        }
    }

    async fn listed(answer: &'static str) -> Result<Vec<JupyterSession>, RestError> {
        let router = Router::new().route(
            "/base/api/sessions",
            get(move |request: Request| async move {
                assert_eq!(request.headers()["x-colab-runtime-proxy-token"], "s3cret");
                answer
            }),
        );
        sessions(&RuntimeHttp::new(), &serve(router).await).await
    }

    #[tokio::test]
    async fn sessions_are_read_and_what_is_none_is_passed_over() {
        let listed = listed(
            r#"[{"id": "s", "name": "n", "path": "p", "type": "notebook", "kernel": {"id": "k", "name": "python3"},
                 "notebook": {"path": "q", "name": ""}},
                {"id": "t", "kernel": null, "notebook": {"path": "q"}}, 7, {"id": {}}]"#,
        )
        .await
        .unwrap();
        let session = |id: &str, name: &str, path: &str, kernel_id: &str| JupyterSession {
            id: id.into(),
            name: name.into(),
            path: path.into(),
            kernel_id: kernel_id.into(),
        };
        assert_eq!(
            listed,
            [session("s", "n", "p", "k"), session("t", "", "q", "")]
        );
    }

    #[tokio::test]
    async fn an_answer_that_is_no_list_is_told() {
        for answer in ["", "{}", "<html>", "[{]"] {
            assert_eq!(listed(answer).await, Err(RestError::Unreadable), "{answer}");
        }
    }

    #[tokio::test]
    async fn an_endless_answer_is_not_read() {
        let router = Router::new().fallback(|| async {
            let piece = || Some(Ok::<_, std::io::Error>(vec![b' '; 64 * 1024]));
            axum::body::Body::from_stream(
                futures_util::stream::repeat_with(piece).filter_map(|piece| async move { piece }),
            )
        });
        let error = sessions(&RuntimeHttp::new(), &serve(router).await).await;
        assert_eq!(error, Err(RestError::Unreadable));
    }

    #[tokio::test]
    async fn refusals_are_told_from_failures() {
        for (status, expected) in [
            (401, RestError::Refused(401)),
            (403, RestError::Refused(403)),
            (404, RestError::Refused(404)),
            (302, RestError::Status(302)),
            (500, RestError::Status(500)),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let info = serve(Router::new().fallback(move || async move { status })).await;
            let http = RuntimeHttp::new();
            assert_eq!(sessions(&http, &info).await, Err(expected.clone()));
            assert_eq!(interrupt(&http, &info, "k").await, Err(expected));
        }
    }

    #[tokio::test]
    async fn a_kernel_is_missed_only_when_the_server_says_so() {
        for (status, words, expected) in [
            (200, "{}", Ok(true)),
            (
                404,
                r#"{"message": "Kernel does not exist: k", "reason": null}"#,
                Ok(false),
            ),
            (404, "Not found", Err(RestError::Refused(404))),
            (403, "Kernel does not exist", Err(RestError::Refused(403))),
            (502, "", Err(RestError::Status(502))),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let router = Router::new().route(
                "/base/api/kernels/k",
                get(move || async move { (status, words) }),
            );
            let found = has_kernel(&RuntimeHttp::new(), &serve(router).await, "k").await;
            assert_eq!(found, expected, "{status} {words}");
        }
    }

    #[tokio::test]
    async fn an_interrupt_is_a_post_without_a_body() {
        let router = Router::new().route(
            "/base/api/kernels/k/interrupt",
            post(|request: Request| async move {
                assert_eq!(request.headers()["content-length"], "0");
                assert_eq!(request.headers()["x-colab-runtime-proxy-token"], "s3cret");
                StatusCode::NO_CONTENT
            }),
        );
        let info = serve(router).await;
        assert_eq!(interrupt(&RuntimeHttp::new(), &info, "k").await, Ok(()));
    }

    #[tokio::test]
    async fn an_unreachable_server_is_named_without_its_address() {
        let info = serve(Router::new()).await;
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = gone.local_addr().unwrap().port();
        drop(gone);
        let info = ConnectionInfo {
            url: format!("http://127.0.0.1:{port}/secret-path"),
            ..info
        };
        let Err(RestError::Unreachable(why)) = sessions(&RuntimeHttp::new(), &info).await else {
            panic!("it answered");
        };
        assert!(!why.contains("secret"), "{why}");
        assert!(json!(why).to_string().len() > 10);
    }
}
