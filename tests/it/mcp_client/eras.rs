//! Agreeing on an era, and what happens when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use colab_kernel::colab::mcp::errors::{Code, Origin};
use serde_json::{Value, json};

use super::server::{Reply, Seen, Server};
use super::{client, drain, limited, map};

/// A server of the handshake era: it wants a session for everything.
fn session_server(
    seen: &Seen,
    version: &str,
    session: &str,
    call: impl Fn(&Seen) -> Reply,
) -> Reply {
    if seen.method() == "initialize" {
        let result = json!({"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}});
        return Reply::result(seen, &result).header("mcp-session-id", session);
    }
    match seen.header("mcp-session-id") {
        None => Reply::rpc_error(
            400,
            seen,
            &json!({"code": -32600, "message": "Bad Request: Missing session ID"}),
        ),
        Some(id) if id != session => Reply::rpc_error(
            404,
            seen,
            &json!({"code": -32600, "message": "Session not found"}),
        ),
        Some(_) => match seen.method() {
            "tools/list" => Reply::result(seen, &json!({"tools": []})),
            "tools/call" => call(seen),
            _ => Reply::new(202, "", ""),
        },
    }
}

fn ok(seen: &Seen) -> Reply {
    Reply::result(seen, &json!({"structuredContent": {"ok": true}}))
}

#[tokio::test]
async fn the_stateless_era_dresses_every_request() {
    limited(async {
        let tools = json!([{"name": "get_runtime", "inputSchema": {"type": "object", "properties":
            {"name": {"type": "string", "x-mcp-header": "Runtime"}}}}]);
        let server = Server::stateless(tools, ok).await;
        let result = client(&server.url)
            .call("get_runtime", map(json!({"name": "runtimes/ü"})))
            .await;
        assert_eq!(result.unwrap(), json!({"ok": true}));
        let seen = server.seen();
        assert_eq!(server.methods(), ["tools/list", "tools/call"]);
        for request in &seen {
            assert_eq!(request.line, "POST /mcp");
            assert_eq!(request.header("content-type"), Some("application/json"));
            assert_eq!(
                request.header("accept"),
                Some("application/json, text/event-stream")
            );
            assert_eq!(request.header("authorization"), Some("Bearer t0"));
            assert_eq!(request.header("mcp-protocol-version"), Some("2026-07-28"));
            assert_eq!(request.header("mcp-method"), Some(request.method()));
            let meta = &request.body["params"]["_meta"];
            assert_eq!(
                meta["io.modelcontextprotocol/protocolVersion"],
                "2026-07-28"
            );
            assert_eq!(
                meta["io.modelcontextprotocol/clientInfo"]["name"],
                "colab-kernel"
            );
            assert_eq!(
                meta["io.modelcontextprotocol/clientCapabilities"],
                json!({})
            );
        }
        assert_eq!(seen[1].header("mcp-name"), Some("get_runtime"));
        assert_eq!(
            seen[1].header("mcp-param-runtime"),
            Some("=?base64?cnVudGltZXMvw7w=?=")
        );
        assert_ne!(seen[0].body["id"], seen[1].body["id"]);
    })
    .await;
}

#[tokio::test]
async fn a_server_of_the_reference_sample_gets_plain_posts() {
    for refusal in [404, 400, 405, 406] {
        limited(async {
            let server = Server::raw(move |seen| {
                match (seen.header("mcp-protocol-version"), seen.method()) {
                    (Some(_), _) | (_, "initialize") => Reply::new(refusal, "text/plain", "what?"),
                    (None, "tools/list") => Reply::result(seen, &json!({"tools": []})),
                    _ => ok(seen),
                }
            })
            .await;
            let client = client(&server.url);
            client.call("list_runtimes", map(json!({}))).await.unwrap();
            let call = client
                .start("execute_code", map(json!({"code": "1"})))
                .await
                .unwrap();
            drain(call).await.1.unwrap();
            assert_eq!(
                server.methods(),
                ["tools/list", "tools/list", "tools/call", "tools/call"]
            );
            let seen = server.seen();
            assert_eq!(seen[1].body.get("params"), None);
            assert_eq!(
                seen[2].body["params"],
                json!({"name": "list_runtimes", "arguments": {}})
            );
            assert!(seen[3].body["params"]["_meta"]["progressToken"].is_number());
        })
        .await;
    }
}

#[tokio::test]
async fn google_refusing_unknown_members_gets_plain_posts() {
    limited(async {
        let server = Server::raw(|seen| {
            if seen.body["params"]["_meta"].is_object() && seen.method() == "tools/list" {
                let body = json!({"error": {"code": 400, "message": "Unknown name \"_meta\"", "status": "INVALID_ARGUMENT"}});
                return Reply::new(400, "application/json", body.to_string());
            }
            if seen.method() == "tools/list" { Reply::result(seen, &json!({"tools": []})) } else { ok(seen) }
        })
        .await;
        client(&server.url).call("list_runtimes", map(json!({}))).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_server_with_sessions_gets_its_handshake_and_its_version() {
    for version in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        limited(async {
            let server = Server::raw(move |seen| session_server(seen, version, "s-1", ok)).await;
            let client = client(&server.url);
            client.call("list_runtimes", map(json!({}))).await.unwrap();
            client.call("list_runtimes", map(json!({}))).await.unwrap();
            assert_eq!(
                server.methods(),
                [
                    "tools/list",
                    "tools/list",
                    "initialize",
                    "notifications/initialized",
                    "tools/list",
                    "tools/call",
                    "tools/call"
                ]
            );
            let seen = server.seen();
            assert_eq!(seen[2].body["params"]["protocolVersion"], "2025-11-25");
            assert_eq!(seen[2].header("mcp-protocol-version"), None);
            for request in &seen[3..] {
                assert_eq!(request.header("mcp-session-id"), Some("s-1"));
                assert_eq!(request.header("mcp-protocol-version"), Some(version));
                assert_eq!(request.body["params"].get("_meta"), None);
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_lists_its_versions_is_believed() {
    for supported in [json!(["2025-06-18", "2024-11-05"]), json!(["2027-03-01"])] {
        limited(async {
            let listed = supported.clone();
            let server = Server::raw(move |seen| match seen.header("mcp-protocol-version") {
                Some("2027-03-01") if listed[0] == "2027-03-01" => match seen.method() {
                    "tools/list" => Reply::result(seen, &json!({"tools": []})),
                    _ => ok(seen),
                },
                Some("2025-06-18") | None if listed[0] == "2025-06-18" => {
                    session_server(seen, "2025-06-18", "s", ok)
                }
                _ => Reply::rpc_error(
                    400,
                    seen,
                    &json!({"code": -32022, "message": "Unsupported protocol version", "data":
                    {"supported": listed, "requested": "2026-07-28"}}),
                ),
            })
            .await;
            client(&server.url)
                .call("list_runtimes", map(json!({})))
                .await
                .unwrap();
            let methods = server.methods();
            assert_eq!(methods[0], "tools/list");
            // No plain POST in between.
            assert_eq!(
                methods[1],
                if supported[0] == "2027-03-01" {
                    "tools/list"
                } else {
                    "initialize"
                }
            );
        })
        .await;
    }
    limited(async {
        let server = Server::raw(|seen| {
            Reply::rpc_error(
                400,
                seen,
                &json!({"code": -32022, "message": "no", "data": {"supported": ["1999-01-01"]}}),
            )
        })
        .await;
        let status = client(&server.url)
            .call("list_runtimes", map(json!({})))
            .await
            .unwrap_err();
        assert_eq!(status.origin, Origin::Protocol);
        assert!(status.message.contains("1999-01-01"), "{}", status.message);
    })
    .await;
}

#[tokio::test]
async fn a_refusal_of_the_caller_or_an_outage_is_not_the_next_era() {
    for (http, code, requests) in [
        (401, Code::Unauthenticated, 2),
        (403, Code::PermissionDenied, 1),
        (429, Code::ResourceExhausted, 1),
        (500, Code::Internal, 1),
        (503, Code::Unavailable, 1),
    ] {
        limited(async {
            let server = Server::raw(move |_| {
                Reply::new(http, "text/html", "<html><title>No</title></html>")
                    .header("retry-after", "3")
            })
            .await;
            let status = client(&server.url)
                .call("list_runtimes", map(json!({})))
                .await
                .unwrap_err();
            assert_eq!(status.code, code);
            assert_eq!(status.origin, Origin::Service);
            assert_eq!(status.retry_after.unwrap().as_secs(), 3);
            assert_eq!(server.seen().len(), requests, "HTTP {http}");
        })
        .await;
    }
}

#[tokio::test]
async fn an_address_where_no_mcp_server_is_gets_a_protocol_error() {
    limited(async {
        let server =
            Server::raw(|_| Reply::new(404, "text/html", "<html><title>Not here</title></html>"))
                .await;
        let status = client(&server.url)
            .call("get_runtime", map(json!({"name": "r"})))
            .await
            .unwrap_err();
        assert_eq!(status.origin, Origin::Protocol);
        assert!(status.message.contains("Not here"), "{}", status.message);
        assert!(server.methods().iter().all(|method| method != "tools/call"));
    })
    .await;
}

#[tokio::test]
async fn an_expired_session_is_opened_again_and_code_is_not_sent_twice() {
    limited(async {
        let epoch = Arc::new(AtomicUsize::new(1));
        let current = Arc::clone(&epoch);
        let server = Server::raw(move |seen| {
            session_server(
                seen,
                "2025-11-25",
                &format!("s-{}", current.load(Ordering::SeqCst)),
                ok,
            )
        })
        .await;
        let client = client(&server.url);
        client.call("list_runtimes", map(json!({}))).await.unwrap();

        // What only reads is sent again.
        epoch.store(2, Ordering::SeqCst);
        client.call("list_runtimes", map(json!({}))).await.unwrap();

        // What may change something is not: the caller decides.
        epoch.store(3, Ordering::SeqCst);
        let executions = |server: &Server| {
            server
                .seen()
                .iter()
                .filter(|seen| seen.body["params"]["name"] == "execute_code")
                .count()
        };
        let call = client
            .start("execute_code", map(json!({"code": "1"})))
            .await
            .unwrap();
        let status = drain(call).await.1.unwrap_err();
        assert_eq!(
            (status.code, status.origin),
            (Code::Unavailable, Origin::Transport)
        );
        assert_eq!(executions(&server), 1);

        let call = client
            .start("execute_code", map(json!({"code": "1"})))
            .await
            .unwrap();
        drain(call).await.1.unwrap();
        assert_eq!(executions(&server), 2);
        assert_eq!(
            server.seen().last().unwrap().header("mcp-session-id"),
            Some("s-3")
        );
    })
    .await;
}

#[tokio::test]
async fn a_bare_404_under_a_new_session_is_about_the_call() {
    limited(async {
        let server = Server::raw(|seen| {
            session_server(seen, "2025-11-25", "s", |_| {
                Reply::new(404, "text/plain", "no such runtime")
            })
        })
        .await;
        let client = client(&server.url);
        let first = client.start("execute_code", map(json!({}))).await.unwrap();
        drain(first).await.1.unwrap_err();
        let second = client.start("execute_code", map(json!({}))).await.unwrap();
        assert_eq!(drain(second).await.1.unwrap_err().code, Code::NotFound);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_was_upgraded_is_asked_anew() {
    limited(async {
        let upgraded = Arc::new(AtomicBool::new(false));
        let is_new = Arc::clone(&upgraded);
        let server = Server::raw(move |seen| {
            if !is_new.load(Ordering::SeqCst) {
                return session_server(seen, "2025-11-25", "s", ok);
            }
            if seen.header("mcp-protocol-version") != Some("2026-07-28") {
                return Reply::rpc_error(400, seen, &json!({"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}));
            }
            if seen.method() == "tools/list" { Reply::result(seen, &json!({"tools": []})) } else { ok(seen) }
        })
        .await;
        let client = client(&server.url);
        client.call("list_runtimes", map(json!({}))).await.unwrap();
        upgraded.store(true, Ordering::SeqCst);
        // The MCP layer turned it away by its version: nothing ran, so even code may be sent again.
        let call = client.start("execute_code", map(json!({"code": "1"}))).await.unwrap();
        drain(call).await.1.unwrap();
        assert_eq!(server.seen().last().unwrap().header("mcp-protocol-version"), Some("2026-07-28"));
    })
    .await;
}

#[tokio::test]
async fn headers_that_do_not_fit_are_mended_from_a_fresh_list() {
    limited(async {
        let changed = Arc::new(AtomicBool::new(false));
        let is_new = Arc::clone(&changed);
        let server = Server::raw(move |seen| {
            let wants_header = is_new.load(Ordering::SeqCst);
            let mut property = json!({"type": "string"});
            if wants_header {
                property["x-mcp-header"] = json!("Session");
            }
            match seen.method() {
                "tools/list" => Reply::result(
                    seen,
                    &json!({"tools": [{"name": "execute_code", "inputSchema":
                    {"properties": {"session": property, "code": {"type": "string"}}}}]}),
                ),
                _ if wants_header && seen.header("mcp-param-session") != Some("s") => {
                    Reply::rpc_error(
                        400,
                        seen,
                        &json!({"code": -32020, "message": "Mcp-Param-Session is missing"}),
                    )
                }
                _ => ok(seen),
            }
        })
        .await;
        let client = client(&server.url);
        client.input_schema("execute_code").await.unwrap();
        changed.store(true, Ordering::SeqCst);
        let call = client
            .start("execute_code", map(json!({"session": "s", "code": "1"})))
            .await
            .unwrap();
        drain(call).await.1.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_refusal_that_means_the_call_leaves_the_era_alone() {
    limited(async {
        let server = Server::stateless(json!([]), |_| {
            Reply::new(404, "text/plain", "no such runtime")
        })
        .await;
        let call = client(&server.url)
            .start("execute_code", map(json!({})))
            .await
            .unwrap();
        let status = drain(call).await.1.unwrap_err();
        assert_eq!(
            (status.code, status.origin),
            (Code::NotFound, Origin::Service)
        );
        assert_eq!(
            server
                .methods()
                .iter()
                .filter(|method| *method == "tools/call")
                .count(),
            1
        );
    })
    .await;
}

#[tokio::test]
async fn all_pages_of_the_tools_are_read_once() {
    limited(async {
        let server = Server::raw(|seen| match (seen.method(), seen.body["params"]["cursor"].as_str()) {
            ("tools/list", None) => Reply::result(seen, &json!({"tools": [{"name": "a", "inputSchema": {"type": "object"}}], "nextCursor": "2"})),
            ("tools/list", Some("2")) => Reply::result(seen, &json!({"tools": [{"name": "b", "inputSchema": {"x": 1}}], "nextCursor": "2"})),
            _ => ok(seen),
        })
        .await;
        let client = client(&server.url);
        let (a, b, c) = tokio::join!(client.input_schema("a"), client.input_schema("b"), client.input_schema("c"));
        assert_eq!(a.unwrap(), Some(json!({"type": "object"})));
        assert_eq!(b.unwrap(), Some(json!({"x": 1})));
        assert_eq!(c.unwrap(), None::<Value>);
        assert_eq!(server.methods(), ["tools/list", "tools/list"]);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_wants_a_session_for_calls_alone_gets_one() {
    for http in [200, 400] {
        limited(async {
            let server = Server::raw(move |seen| {
                if seen.method() == "tools/call" && seen.header("mcp-session-id").is_none() {
                    return Reply::rpc_error(
                        http,
                        seen,
                        &json!({"code": -32600, "message": "Server not initialized"}),
                    );
                }
                match seen.method() {
                    "tools/list" => Reply::result(seen, &json!({"tools": []})),
                    _ => session_server(seen, "2025-11-25", "s", ok),
                }
            })
            .await;
            let client = client(&server.url);
            assert_eq!(
                client.call("list_runtimes", map(json!({}))).await.unwrap(),
                json!({"ok": true})
            );
        })
        .await;
    }
}
