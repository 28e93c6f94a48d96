//! What goes wrong outside of MCP: tokens, addresses, connections.

use std::sync::Arc;

use colab_kernel::colab::mcp::Client;
use colab_kernel::colab::mcp::errors::{Code, Origin, Status};
use serde_json::json;
use tokio::net::TcpListener;

use super::server::{Reply, Server};
use super::{Tokens, client, drain, limited, map};

async fn failure_at(url: &str) -> Status {
    let status = limited(client(url).call("list_runtimes", map(json!({}))))
        .await
        .unwrap_err();
    assert_eq!(
        (status.code, status.origin),
        (Code::Unavailable, Origin::Connect),
        "{status}"
    );
    assert!(
        !status.message.contains("Bearer") && !status.message.contains("t0"),
        "{status}"
    );
    status
}

#[tokio::test]
async fn an_expired_token_is_refreshed_once_and_the_call_repeated() {
    limited(async {
        let server = Server::raw(|seen| {
            if seen.method() == "tools/list" {
                return Reply::result(seen, &json!({"tools": []}));
            }
            match seen.header("authorization") {
                Some("Bearer t0") => Reply::new(
                    401,
                    "application/json",
                    r#"{"error":{"code":401,"message":"expired","status":"UNAUTHENTICATED"}}"#,
                ),
                _ => Reply::result(seen, &json!({"structuredContent": {}})),
            }
        })
        .await;
        let client = client(&server.url);
        let call = client.start("execute_code", map(json!({}))).await.unwrap();
        drain(call).await.1.unwrap();
        let tokens: Vec<_> = server
            .seen()
            .iter()
            .map(|seen| seen.header("authorization").unwrap().to_owned())
            .collect();
        assert_eq!(tokens, ["Bearer t0", "Bearer t0", "Bearer t1"]);
    })
    .await;
}

#[tokio::test]
async fn a_token_that_is_refused_again_is_an_error() {
    limited(async {
        let server = Server::stateless(json!([]), |_| Reply::new(401, "text/plain", "no")).await;
        let status = client(&server.url)
            .call("list_runtimes", map(json!({})))
            .await
            .unwrap_err();
        assert_eq!(
            (status.code, status.origin),
            (Code::Unauthenticated, Origin::Service)
        );
        assert_eq!(
            server
                .methods()
                .iter()
                .filter(|method| *method == "tools/call")
                .count(),
            2
        );
    })
    .await;
}

#[test]
fn a_token_goes_only_over_https_or_to_this_machine() {
    let made = |url: &str| Client::new(url.parse().unwrap(), Arc::new(Tokens::default()));
    for url in [
        "http://192.0.2.1/mcp",
        "http://example.com/mcp",
        "ftp://localhost/mcp",
    ] {
        let Err(status) = made(url) else {
            panic!("{url} was taken");
        };
        assert!(status.message.contains("https"), "{status}");
    }
    for url in [
        "https://example.com/mcp",
        "http://127.0.0.1:1/mcp",
        "http://[::1]:1/mcp",
        "http://localhost:1/mcp",
    ] {
        assert!(made(url).is_ok(), "{url}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    limited(async {
        let elsewhere = Server::raw(|seen| Reply::result(seen, &json!({"tools": []}))).await;
        let target = elsewhere.url.clone();
        let server =
            Server::raw(move |_| Reply::new(307, "text/plain", "").header("location", &target))
                .await;
        let status = client(&server.url)
            .call("list_runtimes", map(json!({})))
            .await
            .unwrap_err();
        assert_eq!(status.origin, Origin::Protocol);
        assert!(status.message.contains("redirects"), "{status}");
        assert!(elsewhere.seen().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_refused_connection_names_the_host() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let status = failure_at(&format!("http://{address}/mcp?token=s3cret")).await;
    assert!(status.message.contains(&address.to_string()), "{status}");
    assert!(
        status.message.to_lowercase().contains("refused"),
        "{status}"
    );
    assert!(!status.message.contains("s3cret"));
}

#[tokio::test]
async fn a_name_that_is_not_found_is_named() {
    let status = failure_at("https://no-such-host.invalid/mcp").await;
    assert!(status.message.contains("no-such-host.invalid"), "{status}");
}

#[tokio::test]
async fn a_server_without_tls_is_a_failed_connection() {
    let server = Server::raw(|seen| Reply::result(seen, &json!({}))).await;
    let status = failure_at(&server.url.replace("http:", "https:")).await;
    assert!(status.message.contains("https://127.0.0.1"), "{status}");
}

#[tokio::test]
async fn a_connection_that_is_closed_without_an_answer_is_a_lost_answer() {
    limited(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // Reads the request before it closes, so that it counts as sent.
                let mut buffer = vec![0; 64 * 1024];
                let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut buffer).await;
            }
        });
        let status = client(&url)
            .call("list_runtimes", map(json!({})))
            .await
            .unwrap_err();
        assert_eq!(
            (status.code, status.origin),
            (Code::Unavailable, Origin::Transport),
            "{status}"
        );
    })
    .await;
}
