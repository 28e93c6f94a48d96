//! Every form in which an answer may come.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use colab_kernel::colab::mcp::CallEvent;
use colab_kernel::colab::mcp::errors::{Code, Origin};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::server::{Part, Reply, Seen, Server, done, event, progress};
use super::{assert_in_order, client, drain, limited, map, texts};

/// Runs one streaming call against a server that answers it like this.
async fn call(
    script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
) -> (
    Vec<String>,
    Result<Value, colab_kernel::colab::mcp::errors::Status>,
) {
    limited(async {
        let server = Server::stateless(json!([]), script).await;
        let call = client(&server.url)
            .start("execute_code", map(json!({"code": "1"})))
            .await
            .unwrap();
        let (progress, result) = drain(call).await;
        (
            texts(&progress)
                .iter()
                .map(|&text| text.to_owned())
                .collect(),
            result,
        )
    })
    .await
}

#[tokio::test]
async fn a_json_answer_is_read_whatever_its_content_type_and_id() {
    for (kind, as_text) in [
        ("application/json; charset=utf-8", false),
        ("text/event-stream", false),
        ("", true),
        ("text/plain", true),
    ] {
        let (_, result) = call(move |seen| {
            let id = if as_text { json!(seen.body["id"].to_string()) } else { seen.body["id"].clone() };
            let body = json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "{\"stdout\":\"ü\"}"}]}});
            Reply::new(200, kind, body.to_string())
        })
        .await;
        assert_eq!(result.unwrap(), json!({"stdout": "ü"}), "{kind}");
    }
}

#[tokio::test]
async fn a_batch_is_read_in_its_order() {
    let (progress, result) = call(|seen| {
        let token = &seen.body["params"]["_meta"]["progressToken"];
        Reply::json(&json!([
            {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "message": "a"}},
            {"method": "notifications/progress", "params": {"progressToken": "another", "progress": 1, "message": "not ours"}},
            {"id": seen.body["id"], "result": {"structuredContent": {"x": 1}}},
        ]))
    })
    .await;
    assert_eq!(progress, ["a"]);
    assert_eq!(result.unwrap(), json!({"x": 1}));
}

#[tokio::test]
async fn an_event_stream_is_read_when_it_comes_byte_by_byte() {
    let (progress, result) = call(|seen| {
        let token = &seen.body["params"]["_meta"]["progressToken"];
        let text = format!(
            "\u{feff}: keep-alive\r\n\r\nid: 0\r\nretry: 5\r\ndata:\r\n\r\n\
             data: {{\"method\":\"notifications/progress\",\r\ndata: \"params\":{{\"progressToken\":{token},\"progress\":1,\"message\":\"🎈\\r\\u001b[1m ü\"}}}}\r\n\r\n\
             : keep-alive\r\n\r\nevent: message\r\ndata: {{\"id\":{},\"result\":{{\"structuredContent\":{{}}}}}}\r\n\r\n",
            seen.body["id"]
        );
        Reply::sse(text.bytes().map(|byte| Part::Bytes(vec![byte])).collect())
    })
    .await;
    assert_eq!(progress, ["🎈\r\u{1b}[1m ü"]);
    assert_eq!(result.unwrap(), json!({}));
}

#[tokio::test]
async fn a_stream_that_ends_early_is_a_lost_answer() {
    for cut in [true, false] {
        let (progress, result) = call(move |seen| {
            let mut parts = vec![progress(seen, 1, "begun")];
            if cut {
                parts.push(Part::Cut);
            }
            Reply::sse(parts)
        })
        .await;
        assert_eq!(progress, ["begun"]);
        let status = result.unwrap_err();
        assert_eq!(
            (status.code, status.origin),
            (Code::Unavailable, Origin::Transport),
            "cut: {cut}"
        );
    }
    let (_, result) = call(|_| Reply::new(200, "application/json", "")).await;
    assert_eq!(result.unwrap_err().origin, Origin::Transport);
    let (_, result) =
        call(|_| Reply::new(200, "application/json", r#"{"jsonrpc":"2.0","id":"#)).await;
    assert_eq!(result.unwrap_err().origin, Origin::Transport);
}

#[tokio::test]
async fn code_that_raised_is_a_result_and_a_failed_tool_is_a_status() {
    let raised = json!({"executionError": {"name": "ValueError"}, "stdout": "x"});
    let answer = raised.clone();
    let (_, result) = call(move |seen| {
        Reply::result(seen, &json!({"isError": true, "structuredContent": answer}))
    })
    .await;
    assert_eq!(result.unwrap(), raised);
    let (_, result) = call(|seen| Reply::result(seen, &json!({"isError": true, "content": [{"type": "text", "text": "NOT_FOUND: no runtime"}]}))).await;
    assert_eq!(result.unwrap_err().code, Code::NotFound);
    let (_, result) = call(|seen| {
        Reply::result(
            seen,
            &json!({"resultType": "input_required", "inputRequests": {}}),
        )
    })
    .await;
    assert_eq!(result.unwrap_err().origin, Origin::Protocol);
}

#[tokio::test]
async fn a_server_that_asks_is_answered() {
    limited(async {
        let server = Server::stateless(json!([]), move |seen| {
            Reply::sse(vec![
                event(&json!({"jsonrpc": "2.0", "id": "p1", "method": "ping"})),
                event(&json!({"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {}})),
                done(seen, &json!({})),
            ])
        })
        .await;
        let call = client(&server.url).start("execute_code", map(json!({}))).await.unwrap();
        assert!(drain(call).await.1.is_ok());
        let pong = server.until(|seen| seen.body["id"] == "p1").await;
        assert_eq!(pong.body["result"], json!({}));
        let refusal = server.until(|seen| seen.body["id"] == 7).await;
        assert_eq!(refusal.body["error"]["code"], -32601);
    })
    .await;
}

#[tokio::test]
async fn ten_thousand_notifications_come_in_order_before_the_result() {
    const N: usize = 10_000;
    limited(async {
        let server = Server::stateless(json!([]), |seen| {
            let mut parts: Vec<Part> = (0..N).map(|i| progress(seen, i, &format!("line {i}\n"))).collect();
            parts.push(done(seen, &json!({"n": N})));
            Reply::sse(parts)
        })
        .await;
        let client = client(&server.url);
        client.input_schema("x").await.unwrap();
        let started = Instant::now();
        let call = client.start("execute_code", map(json!({}))).await.unwrap();
        let (progress, result) = drain(call).await;
        let through = started.elapsed();
        assert_in_order(&progress, N);
        assert_eq!(result.unwrap()["n"], N);

        // The same bytes, unread.
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"_meta": {"progressToken": 1}}});
        let started = Instant::now();
        let raw = reqwest::Client::new()
            .post(&server.url)
            .header("mcp-protocol-version", "2026-07-28")
            .body(body.to_string())
            .send()
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        println!("{N} notifications: client {through:?}, raw read of {} bytes {:?}", raw.len(), started.elapsed());
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_stops_holds_the_server_back() {
    let (taken, blocked) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counter, told) = (Arc::clone(&taken), Arc::clone(&blocked));
    limited(async move {
        let server = Server::stateless(json!([]), move |seen| {
            let Part::Bytes(bytes) = progress(seen, 1, &"x".repeat(64 * 1024)) else {
                unreachable!()
            };
            Reply::sse(vec![Part::Flood {
                bytes,
                taken: Arc::clone(&counter),
                blocked: Arc::clone(&told),
            }])
        })
        .await;
        let mut call = client(&server.url)
            .start("execute_code", map(json!({})))
            .await
            .unwrap();
        assert!(matches!(call.next().await, Some(CallEvent::Progress(_))));
        blocked.notified().await;
        let taken = taken.load(Ordering::SeqCst);
        assert!(taken < 32 * 1024 * 1024, "{taken} bytes were read ahead");
    })
    .await;
}

#[tokio::test]
async fn a_call_can_be_cancelled_before_its_headers_come() {
    limited(async {
        let go = Arc::new(Notify::new());
        let hold = Arc::clone(&go);
        let server = Server::stateless(json!([]), move |seen| {
            Reply::sse(vec![done(seen, &json!({"stopped": true}))]).hold(&hold)
        })
        .await;
        let mut call = client(&server.url)
            .start("execute_code", map(json!({})))
            .await
            .unwrap();
        let canceller = call.canceller();
        let (end, ()) = tokio::join!(call.next(), async {
            let sent = server.until(|seen| seen.method() == "tools/call").await;
            canceller.cancel("interrupt").await.unwrap();
            let cancel = server
                .until(|seen| seen.method() == "notifications/cancelled")
                .await;
            assert_eq!(cancel.body["params"]["requestId"], sent.body["id"]);
            assert_eq!(cancel.body["params"]["reason"], "interrupt");
            assert_eq!(cancel.body.get("id"), None);
            assert_eq!(cancel.header("mcp-method"), Some("notifications/cancelled"));
            go.notify_one();
        });
        assert_eq!(end, Some(CallEvent::Finished(Ok(json!({"stopped": true})))));
    })
    .await;
}

#[tokio::test]
async fn a_cancel_that_fails_says_why() {
    limited(async {
        let server = Server::raw(|seen| match seen.method() {
            "tools/list" => Reply::result(seen, &json!({"tools": []})),
            "tools/call" => Reply::sse(vec![
                progress(seen, 1, "a"),
                Part::UntilClosed(Arc::new(Notify::new())),
            ]),
            _ => Reply::new(503, "text/plain", "busy"),
        })
        .await;
        let mut call = client(&server.url)
            .start("execute_code", map(json!({})))
            .await
            .unwrap();
        let canceller = call.canceller();
        assert!(canceller.cancel("too early").await.is_ok());
        call.next().await.unwrap();
        assert_eq!(
            canceller.cancel("x").await.unwrap_err().code,
            Code::Unavailable
        );
    })
    .await;
}

#[tokio::test]
async fn dropping_a_call_closes_its_stream() {
    limited(async {
        let closed = Arc::new(Notify::new());
        let told = Arc::clone(&closed);
        let server = Server::stateless(json!([]), move |seen| {
            Reply::sse(vec![
                progress(seen, 1, "a"),
                Part::UntilClosed(Arc::clone(&told)),
            ])
        })
        .await;
        let mut call = client(&server.url)
            .start("execute_code", map(json!({})))
            .await
            .unwrap();
        call.next().await.unwrap();
        drop(call);
        closed.notified().await;
    })
    .await;
}

#[tokio::test]
async fn next_can_be_dropped_and_called_again() {
    limited(async {
        let server = Server::stateless(json!([]), |seen| {
            let mut parts = Vec::new();
            for i in 0..200 {
                let Part::Bytes(bytes) = progress(seen, i, &format!("line {i}")) else {
                    unreachable!()
                };
                parts.extend(bytes.chunks(11).map(|chunk| Part::Bytes(chunk.to_vec())));
            }
            parts.push(done(seen, &json!({})));
            Reply::sse(parts)
        })
        .await;
        let mut call = client(&server.url)
            .start("execute_code", map(json!({})))
            .await
            .unwrap();
        let mut progress = Vec::new();
        loop {
            tokio::select! {
                biased;
                event = call.next() => match event.unwrap() {
                    CallEvent::Progress(one) => progress.push(one),
                    CallEvent::Finished(result) => break assert!(result.is_ok()),
                },
                // Drops the other branch at whatever it awaits.
                () = tokio::task::yield_now() => {}
            }
        }
        assert_in_order(&progress, 200);
    })
    .await;
}

#[tokio::test]
async fn a_notification_is_there_before_the_stream_goes_on() {
    limited(async {
        let go = Arc::new(Notify::new());
        let wait = Arc::clone(&go);
        let server = Server::stateless(json!([]), move |seen| {
            Reply::sse(vec![
                progress(seen, 1, "first"),
                Part::Wait(Arc::clone(&wait)),
                done(seen, &json!({})),
            ])
        })
        .await;
        let mut call = client(&server.url)
            .start("execute_code", map(json!({})))
            .await
            .unwrap();
        let Some(CallEvent::Progress(first)) = call.next().await else {
            panic!("no progress");
        };
        assert_eq!(first.message.as_deref(), Some("first"));
        go.notify_one();
        assert!(matches!(
            call.next().await,
            Some(CallEvent::Finished(Ok(_)))
        ));
    })
    .await;
}
