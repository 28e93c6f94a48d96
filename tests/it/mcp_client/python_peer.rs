//! The official Python SDK as the server.

use std::process::Stdio;

use colab_kernel::colab::mcp::errors::Code;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::{assert_in_order, client, drain, limited, map};
use crate::python_env::python_env;

const MANY: usize = 10_000;

/// A running server; it ends with the test.
struct Peer {
    url: String,
    output: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

async fn serve(options: &[&str]) -> Peer {
    let python = tokio::task::spawn_blocking(|| {
        python_env("mcp", include_str!("../../python/requirements-mcp.txt"))
    })
    .await
    .unwrap();
    let mut process = Command::new(python)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/python/mcp_server.py"
        ))
        .args(options)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    let url = output
        .next_line()
        .await
        .unwrap()
        .expect("the server's address");
    Peer {
        url,
        output,
        _process: process,
    }
}

/// The server as it is, as one that does not know the stateless era, and as one that wants a handshake; with and without sessions.
const STREAMING: [&[&str]; 5] = [
    &[],
    &["--stateless"],
    &["--refuse", "modern"],
    &["--stateless", "--refuse", "modern"],
    &["--stateless", "--refuse", "modern", "--refuse", "plain"],
];

#[tokio::test]
async fn ten_thousand_notifications_come_in_order_in_every_era() {
    for options in STREAMING {
        // The other two differ only in how they agree.
        let is_repetition = matches!(
            options,
            ["--stateless"] | ["--stateless", "--refuse", "modern"]
        );
        let n = if is_repetition { 100 } else { MANY };
        let peer = serve(options).await;
        limited(async {
            let client = client(&peer.url);
            assert!(
                client.input_schema("count").await.unwrap().is_some(),
                "{options:?}"
            );
            let call = client.start("count", map(json!({"n": n}))).await.unwrap();
            let (progress, result) = drain(call).await;
            assert_eq!(result.unwrap(), json!({"n": n}), "{options:?}");
            assert_in_order(&progress, n);
            assert_eq!(
                client.call("count", map(json!({"n": 0}))).await.unwrap(),
                json!({"n": 0})
            );
            let failed = client.call("fail", map(json!({}))).await.unwrap_err();
            assert_eq!(failed.code, Code::NotFound, "{options:?}: {failed}");
        })
        .await;
    }
}

#[tokio::test]
async fn json_answers_are_read_in_every_era() {
    for options in STREAMING {
        let peer = serve(&[options, &["--json"]].concat()).await;
        limited(async {
            let call = client(&peer.url)
                .start("count", map(json!({"n": 3})))
                .await
                .unwrap();
            let (_, result) = drain(call).await;
            assert_eq!(result.unwrap(), json!({"n": 3}), "{options:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_call_is_stopped_by_the_notification_in_a_session_and_by_closing_without() {
    for options in [&[][..], &["--refuse", "modern"]] {
        let mut peer = serve(options).await;
        limited(async {
            let mut call = client(&peer.url)
                .start("hang", map(json!({})))
                .await
                .unwrap();
            call.next().await.unwrap();
            call.canceller().cancel("test").await.unwrap();
            if options.is_empty() {
                drop(call);
            }
            assert_eq!(
                peer.output.next_line().await.unwrap().as_deref(),
                Some("cancelled"),
                "{options:?}"
            );
        })
        .await;
    }
}
