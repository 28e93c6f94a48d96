//! Requests to a runtime's own Jupyter server, through the proxy in front of it.
//!
//! Invariants: the proxy token goes to the host it was issued for and nowhere else (redirects are not followed), only over https
//! or to this machine; neither it nor an address appears in a message. There is no time limit here but for connecting.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Client, Method, RequestBuilder};
use url::Url;

use super::api::ConnectionInfo;
use super::mcp::http::{builder, is_loopback};

/// The header that carries the proxy token.
pub(super) const TOKEN_HEADER: &str = "X-Colab-Runtime-Proxy-Token";
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Speaks to runtimes, with the system's proxies and roots. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct RuntimeHttp {
    /// Made for the first request: reading the system's roots takes longer than a kernel may take to answer its front-end.
    /// One is for other machines, one for this one, which is not reached through a proxy.
    clients: Arc<[OnceLock<Result<Client, String>>; 2]>,
}

impl RuntimeHttp {
    /// Connects to nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A request for the resource at this path below the runtime's address, with the token. An error is in words.
    pub(super) fn request<'a>(
        &self,
        method: Method,
        info: &ConnectionInfo,
        path: impl IntoIterator<Item = &'a str>,
        query: &[(&str, &str)],
    ) -> Result<RequestBuilder, String> {
        let mut url = address(&info.url, path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut token = HeaderValue::from_str(&info.token)
            .map_err(|_| "the runtime's token cannot be sent in a header".to_owned())?;
        token.set_sensitive(true);
        let client = self.clients[usize::from(is_loopback(&url))].get_or_init(|| client(&url));
        let client = client.as_ref().map_err(Clone::clone)?;
        Ok(client.request(method, url).header(TOKEN_HEADER, token))
    }
}

/// HTTP/1.1, because a WebSocket begins as one and the rest is a request now and then.
fn client(url: &Url) -> Result<Client, String> {
    builder(url)
        .http1_only()
        .tcp_nodelay(true)
        .tcp_keepalive(KEEP_ALIVE)
        .build()
        .map_err(|error| format!("no HTTP client: {}", in_words(error)))
}

/// `{base}/{path}`, each part of the path percent-encoded.
fn address<'a>(base: &str, path: impl IntoIterator<Item = &'a str>) -> Result<Url, String> {
    let mut url =
        Url::parse(base).map_err(|error| format!("the runtime's address is no URL: {error}"))?;
    if url.scheme() != "https" && !(url.scheme() == "http" && is_loopback(&url)) {
        return Err("the runtime's address is not https".to_owned());
    }
    let path: Vec<&str> = path.into_iter().filter(|part| !part.is_empty()).collect();
    if path.iter().any(|part| matches!(*part, "." | "..")) {
        return Err("its path is not absolute".to_owned());
    }
    url.path_segments_mut()
        .map_err(|()| "the runtime's address has no path".to_owned())?
        .pop_if_empty()
        .extend(path);
    Ok(url)
}

/// An HTTP error without the URL, which may carry secrets.
pub(super) fn in_words(error: reqwest::Error) -> String {
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
    use super::*;

    #[test]
    fn the_token_goes_over_https_or_to_this_machine_only() {
        for good in [
            "https://x.example/p",
            "http://127.0.0.1:1",
            "http://[::1]:1",
            "http://localhost",
        ] {
            assert!(address(good, ["a"]).is_ok(), "{good}");
        }
        for bad in ["http://x.example", "ftp://127.0.0.1", "", "/a"] {
            assert!(address(bad, ["a"]).is_err(), "{bad}");
        }
        assert!(address("https://x.example", ["a", "..", "b"]).is_err());
    }

    #[test]
    fn a_path_is_below_the_runtimes_address() {
        for base in ["https://x.example/p", "https://x.example/p/"] {
            let url = address(base, ["api", "", "a b/c"]).unwrap();
            assert_eq!(url.as_str(), "https://x.example/p/api/a%20b%2Fc");
        }
    }

    #[test]
    fn a_token_is_not_shown() {
        let info = ConnectionInfo {
            token: "s3cret".into(),
            url: "https://x.example".into(),
            ..ConnectionInfo::default()
        };
        let request = RuntimeHttp::new()
            .request(Method::GET, &info, ["api"], &[])
            .unwrap();
        assert!(!format!("{request:?}").contains("s3cret"));
        let broken = ConnectionInfo {
            token: "s3cret\n".into(),
            ..info
        };
        let why = RuntimeHttp::new()
            .request(Method::GET, &broken, ["api"], &[])
            .unwrap_err();
        assert!(!why.contains("s3cret"), "{why}");
    }
}
