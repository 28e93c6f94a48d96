//! The MCP exchange in its three eras.

use serde_json::{Value, json};

use super::lab::{Lab, Stream, limited, shared};

/// What a client of 2026-07-28 sends.
fn modern(lab: &Lab, method: &str, name: Option<&str>) -> (reqwest::RequestBuilder, Value) {
    let mut params = json!({"_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }});
    let mut request = lab
        .request()
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", method);
    if let Some(name) = name {
        request = request.header("Mcp-Name", name);
        params["name"] = name.into();
        params["arguments"] = json!({});
    }
    (
        request,
        json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}),
    )
}

async fn answer(request: reqwest::RequestBuilder, message: &Value) -> (u16, Value) {
    let mut stream = Stream::of(request.json(message).send().await.unwrap());
    (stream.status, stream.response().await)
}

fn plain(method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method})
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }})
}

/// Shakes hands and returns the session id.
async fn shake_hands(lab: &Lab) -> String {
    let response = lab.send(&initialize()).await;
    assert_eq!(response.status(), 200);
    let session = response.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["result"]["protocolVersion"], "2025-11-25");
    assert!(body["result"]["serverInfo"]["name"].is_string());
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let request = lab
        .request()
        .header("mcp-session-id", &session)
        .json(&initialized);
    assert_eq!(request.send().await.unwrap().status(), 202);
    session
}

#[tokio::test]
async fn a_request_without_a_bearer_token_is_refused() {
    limited(async {
        let (lab, _) = shared().await;
        let bare = || {
            lab.http
                .post(&lab.endpoint)
                .header("accept", "application/json, text/event-stream")
        };
        for request in [
            bare(),
            bare().bearer_auth(""),
            bare().header("authorization", "Basic eDp5"),
        ] {
            let response = request.json(&plain("tools/list")).send().await.unwrap();
            assert_eq!(response.status(), 401);
            assert!(response.headers().contains_key("www-authenticate"));
            let body: Value = response.json().await.unwrap();
            assert_eq!(body["error"]["status"], "UNAUTHENTICATED");
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_no_mcp_is_refused() {
    limited(async {
        let (lab, _) = shared().await;
        let status = async |request: reqwest::RequestBuilder| {
            request.send().await.unwrap().status().as_u16()
        };
        assert_eq!(
            status(lab.http.get(&lab.endpoint).bearer_auth("t")).await,
            405
        );
        assert_eq!(
            status(
                lab.request()
                    .header("origin", "https://evil.example")
                    .json(&plain("tools/list"))
            )
            .await,
            403
        );
        assert_eq!(
            status(
                lab.request()
                    .header("origin", "http://localhost:9")
                    .json(&plain("tools/list"))
            )
            .await,
            200
        );
        let html = lab
            .http
            .post(&lab.endpoint)
            .bearer_auth("t")
            .header("accept", "text/html");
        assert_eq!(status(html.json(&plain("tools/list"))).await, 406);
        let (code, body) = answer(lab.request(), &json!([plain("tools/list")])).await;
        assert_eq!((code, body["error"]["code"].as_i64()), (400, Some(-32600)));
        let garbage = Stream::of(lab.request().body("{").send().await.unwrap())
            .response()
            .await;
        assert_eq!(garbage["error"]["code"], -32700);
        let (_, body) = answer(lab.request(), &plain("tools/dance")).await;
        assert_eq!(body["error"]["code"], -32601);
    })
    .await;
}

#[tokio::test]
async fn any_takes_all_three_eras() {
    limited(async {
        let (lab, _) = shared().await;
        let (request, message) = modern(lab, "tools/call", Some("get_subscription"));
        let (status, body) = answer(request, &message).await;
        assert_eq!(
            (status, &body["result"]["resultType"]),
            (200, &json!("complete"))
        );
        let (request, message) = modern(lab, "server/discover", None);
        let (_, body) = answer(request, &message).await;
        assert_eq!(body["result"]["supportedVersions"][0], "2026-07-28");
        let (status, body) = answer(lab.request(), &plain("tools/list")).await;
        assert_eq!(
            (status, body["result"]["resultType"].is_null()),
            (200, true)
        );
        let session = shake_hands(lab).await;
        let request = lab
            .request()
            .header("mcp-session-id", &session)
            .header("mcp-protocol-version", "2025-11-25");
        let (status, body) = answer(request, &plain("tools/list")).await;
        assert_eq!(
            (status, body["result"]["tools"].as_array().unwrap().len()),
            (200, 10)
        );
    })
    .await;
}

#[tokio::test]
async fn only_2026_07_28_checks_what_headers_mirror_and_names_what_it_supports() {
    limited(async {
        let lab = Lab::new(&["era=2026-07-28"]).await;
        let (request, message) = modern(&lab, "tools/call", Some("get_subscription"));
        assert_eq!(answer(request, &message).await.0, 200);

        let mismatch = async |request: reqwest::RequestBuilder, message: &Value| {
            let (status, body) = answer(request, message).await;
            assert_eq!(
                (status, body["error"]["code"].as_i64()),
                (400, Some(-32020)),
                "{body}"
            );
        };
        mismatch(lab.request(), &plain("tools/list")).await;
        mismatch(lab.request(), &initialize()).await;
        let (_, message) = modern(&lab, "tools/call", Some("get_subscription"));
        mismatch(modern(&lab, "tools/call", None).0, &message).await;
        mismatch(
            modern(&lab, "tools/call", Some("list_runtimes")).0,
            &message,
        )
        .await;
        mismatch(
            modern(&lab, "tools/list", Some("get_subscription")).0,
            &message,
        )
        .await;
        mismatch(modern(&lab, "tools/list", None).0, &plain("tools/list")).await;

        let request = lab.request().header("mcp-protocol-version", "2025-11-25");
        let (status, body) = answer(request, &plain("tools/list")).await;
        assert_eq!(
            (status, body["error"]["code"].as_i64()),
            (400, Some(-32022))
        );
        assert_eq!(
            body["error"]["data"],
            json!({"supported": ["2026-07-28"], "requested": "2025-11-25"})
        );
        let (request, message) = modern(&lab, "tools/dance", None);
        let (status, body) = answer(request, &message).await;
        assert_eq!(
            (status, body["error"]["code"].as_i64()),
            (404, Some(-32601))
        );
    })
    .await;
}

#[tokio::test]
async fn only_plain_refuses_every_handshake_and_version() {
    limited(async {
        let lab = Lab::new(&["era=plain"]).await;
        assert_eq!(answer(lab.request(), &plain("tools/list")).await.0, 200);
        let (request, message) = modern(&lab, "tools/list", None);
        let (status, body) = answer(request, &message).await;
        assert_eq!(
            (status, &body["error"]["status"]),
            (400, &json!("INVALID_ARGUMENT"))
        );
        let (status, body) = answer(lab.request(), &initialize()).await;
        assert_eq!(
            (status, body["error"]["code"].as_i64()),
            (404, Some(-32601))
        );
    })
    .await;
}

#[tokio::test]
async fn only_2025_11_25_wants_its_handshake() {
    limited(async {
        let lab = Lab::new(&["era=2025-11-25"]).await;
        let (request, message) = modern(&lab, "tools/list", None);
        let (status, body) = answer(request, &message).await;
        assert_eq!(
            (status, body["error"]["code"].as_i64()),
            (400, Some(-32000))
        );
        assert_eq!(answer(lab.request(), &plain("tools/list")).await.0, 400);
        let with = |session: &str| lab.request().header("mcp-session-id", session);
        assert_eq!(answer(with("unknown"), &plain("tools/list")).await.0, 404);

        let response = lab.send(&initialize()).await;
        let session = response.headers()["mcp-session-id"]
            .to_str()
            .unwrap()
            .to_owned();
        // Not before notifications/initialized.
        assert_eq!(answer(with(&session), &plain("tools/list")).await.0, 400);
        let session = shake_hands(&lab).await;
        assert_eq!(answer(with(&session), &plain("tools/list")).await.0, 200);
        let ended = lab
            .http
            .delete(&lab.endpoint)
            .bearer_auth(lab.token)
            .header("mcp-session-id", &session);
        assert_eq!(ended.send().await.unwrap().status(), 204);
        assert_eq!(answer(with(&session), &plain("tools/list")).await.0, 404);
    })
    .await;
}

#[tokio::test]
async fn a_caller_that_takes_no_stream_gets_one_json_body() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = super::lab::fresh(runtime);
        let message = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {
            "name": "execute_code", "arguments": {"session": session, "code": "print('a')"}, "_meta": {"progressToken": 1},
        }});
        let request = lab.http.post(&lab.endpoint).bearer_auth(lab.token).header("accept", "application/json");
        let response = request.json(&message).send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/json");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["result"]["structuredContent"]["stdout"], "a\n");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn progress_comes_only_with_a_token_and_a_silent_stream_shows_that_it_is_alive() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = super::lab::fresh(runtime);
        let message = json!({"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": {
            "name": "execute_code", "arguments": {"session": session, "code": "import time\nprint('a', flush=True)\ntime.sleep(6)"},
        }});
        let mut stream = Stream::of(lab.send(&message).await);
        let body = stream.response().await;
        assert!(stream.progress.is_empty());
        assert!(stream.comments >= 1);
        assert_eq!(body["result"]["structuredContent"]["stdout"], "a\n");
        lab.close(&session).await;
    })
    .await;
}
