//! The ten tools on the wire.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use colab_kernel::colab::api::{ExecuteCode, SpecKey};
use colab_kernel::colab::mcp::errors::Code;
use serde_json::{Value, json};

use super::server::{Reply, Seen, Server};
use super::{client, drain, limited};

fn tool(seen: &Seen) -> &str {
    seen.body["params"]["name"].as_str().unwrap_or_default()
}

fn arguments(seen: &Seen) -> &Value {
    &seen.body["params"]["arguments"]
}

fn answer(seen: &Seen, structured: &Value) -> Reply {
    Reply::result(
        seen,
        &json!({"structuredContent": structured, "content": []}),
    )
}

/// The arguments with which a tool was called.
fn called(server: &Server, name: &str) -> Vec<Value> {
    server
        .seen()
        .iter()
        .filter(|seen| tool(seen) == name)
        .map(|seen| arguments(seen).clone())
        .collect()
}

fn cpu() -> SpecKey {
    SpecKey {
        variant: "VARIANT_CPU".into(),
        accelerator: "NONE".into(),
        shape: "SHAPE_STANDARD".into(),
    }
}

#[tokio::test]
async fn every_tool_has_its_documented_arguments() {
    limited(async {
        let server = Server::stateless(json!([]), |seen| match tool(seen) {
            "list_runtimes" => answer(seen, &json!({"runtimes": [{"name": "runtimes/r", "connectionInfo": {"token": "t", "expireTime": "e", "url": "u"}}]})),
            "list_runtime_specs" => answer(seen, &json!({"runtimeSpecs": [{"key": {"variant": "VARIANT_CPU"}, "eligible": true}, {}]})),
            "get_subscription" => answer(seen, &json!({"name": "subscription", "tier": "PRO"})),
            "get_runtime" => answer(seen, &json!({"name": arguments(seen)["name"]})),
            "create_session" => answer(seen, &json!({"name": "runtimes/r/sessions/ck-1"})),
            "list_sessions" => answer(seen, &json!({})),
            _ => answer(seen, &json!({})),
        })
        .await;
        let client = client(&server.url);
        let runtimes = client.list_runtimes().await.unwrap();
        assert_eq!(runtimes[0].connection_info.as_ref().unwrap().token, "t");
        let specs = client.list_runtime_specs().await.unwrap();
        assert_eq!((specs.len(), specs[0].eligible, specs[1].eligible), (2, true, false));
        assert_eq!(client.get_subscription().await.unwrap().tier, "PRO");
        assert_eq!(client.get_runtime("runtimes/r").await.unwrap().name, "runtimes/r");
        assert_eq!(client.create_session("runtimes/r", "ck-1").await.unwrap().name, "runtimes/r/sessions/ck-1");
        client.create_session("runtimes/r", None).await.unwrap();
        assert!(client.list_sessions("runtimes/r").await.unwrap().is_empty());
        client.delete_session("runtimes/r/sessions/ck-1").await.unwrap();
        client.delete_runtime("runtimes/r", true).await.unwrap();
        let execution = ExecuteCode {
            session: "runtimes/r/sessions/ck-1".into(),
            execution_id: "id".into(),
            code: "1".into(),
        };
        drain(client.execute_code(&execution)).await.1.unwrap();
        let sent: Vec<Value> = server
            .seen()
            .iter()
            .filter(|seen| !tool(seen).is_empty())
            .map(|seen| json!([tool(seen), arguments(seen)]))
            .collect();
        assert_eq!(
            json!(sent),
            json!([
                ["list_runtimes", {}],
                ["list_runtime_specs", {}],
                ["get_subscription", {}],
                ["get_runtime", {"name": "runtimes/r"}],
                ["create_session", {"parent": "runtimes/r", "sessionId": "ck-1"}],
                ["create_session", {"parent": "runtimes/r"}],
                ["list_sessions", {"parent": "runtimes/r"}],
                ["delete_session", {"name": "runtimes/r/sessions/ck-1"}],
                ["delete_runtime", {"name": "runtimes/r", "allowMissing": true}],
                ["execute_code", {"session": "runtimes/r/sessions/ck-1", "code": "1", "executionId": "id"}],
            ])
        );
    })
    .await;
}

#[tokio::test]
async fn arguments_take_the_names_of_the_schema() {
    limited(async {
        let string = json!({"type": "string"});
        let tools = json!([
            {"name": "execute_code", "inputSchema": {"properties": {"source": string, "session": string, "runtime": string, "execution_id": string}, "required": ["source"]}},
            {"name": "create_session", "inputSchema": {"properties": {"parent": string, "session_id": string, "session": {"type": "object"}}, "required": ["parent", "session"]}},
            {"name": "get_subscription", "inputSchema": {"properties": {"name": string}}},
            {"name": "delete_runtime", "inputSchema": {"properties": {"name": string}}},
        ]);
        let server = Server::stateless(tools, |seen| answer(seen, &json!({}))).await;
        let client = client(&server.url);
        let execution = ExecuteCode { session: "s".into(), execution_id: "e".into(), code: "1".into() };
        drain(client.execute_code(&execution)).await.1.unwrap();
        assert_eq!(client.create_session("runtimes/r", "ck-1").await.unwrap().name, "runtimes/r/sessions/ck-1");
        client.get_subscription().await.unwrap();
        client.delete_runtime("runtimes/r", true).await.unwrap();
        assert_eq!(called(&server, "execute_code"), [json!({"session": "s", "source": "1", "execution_id": "e"})]);
        assert_eq!(called(&server, "create_session"), [json!({"parent": "runtimes/r", "session_id": "ck-1", "session": {}})]);
        assert_eq!(called(&server, "get_subscription"), [json!({"name": "subscription"})]);
        assert_eq!(called(&server, "delete_runtime"), [json!({"name": "runtimes/r"})]);
    })
    .await;
}

#[tokio::test]
async fn all_pages_of_a_list_are_read() {
    limited(async {
        let server = Server::stateless(json!([]), |seen| {
            match arguments(seen)["pageToken"].as_str() {
                None => answer(
                    seen,
                    &json!({"sessions": [{"name": "a"}], "nextPageToken": "2"}),
                ),
                Some(_) => answer(seen, &json!({"sessions": [{"name": "b"}]})),
            }
        })
        .await;
        let sessions = client(&server.url)
            .list_sessions("runtimes/r")
            .await
            .unwrap();
        assert_eq!(
            sessions
                .iter()
                .map(|session| session.name.as_str())
                .collect::<Vec<_>>(),
            ["a", "b"]
        );
    })
    .await;
}

#[tokio::test]
async fn a_session_that_is_open_already_is_the_session() {
    limited(async {
        let server = Server::stateless(json!([]), |seen| {
            Reply::rpc_error(200, seen, &json!({"code": 6, "message": "open"}))
        })
        .await;
        let client = client(&server.url);
        assert_eq!(
            client
                .create_session("runtimes/r", "ck-1")
                .await
                .unwrap()
                .name,
            "runtimes/r/sessions/ck-1"
        );
        assert_eq!(
            client
                .create_session("runtimes/r", None)
                .await
                .unwrap_err()
                .code,
            Code::AlreadyExists
        );
    })
    .await;
}

#[tokio::test]
async fn a_runtime_is_found_whatever_its_creation_answers() {
    let runtime = json!({"name": "runtimes/new", "runtimeSpec": {"variant": "VARIANT_CPU", "accelerator": "NONE"}});
    for form in ["runtime", "operation", "done", "nothing"] {
        limited(async {
            let lists = Arc::new(AtomicUsize::new(0));
            let runtime = runtime.clone();
            let server = Server::raw(move |seen| {
                if seen.line.starts_with("GET") {
                    assert_eq!(seen.line, "GET /v1/operations/o1");
                    assert!(seen.header("authorization").is_some());
                    return Reply::json(
                        &json!({"name": "operations/o1", "done": true, "response": runtime}),
                    );
                }
                match tool(seen) {
                    "" => Reply::result(seen, &json!({"tools": []})),
                    "list_runtimes" => {
                        let is_first = lists.fetch_add(1, Ordering::SeqCst) == 0;
                        let old = json!({"name": "runtimes/old"});
                        answer(
                            seen,
                            &if is_first {
                                json!({"runtimes": [old]})
                            } else {
                                json!({"runtimes": [old, runtime]})
                            },
                        )
                    }
                    _ => answer(
                        seen,
                        &match form {
                            "runtime" => runtime.clone(),
                            "operation" => json!({"name": "operations/o1", "done": false}),
                            "done" => {
                                json!({"name": "operations/o1", "done": true, "response": runtime})
                            }
                            _ => json!({}),
                        },
                    ),
                }
            })
            .await;
            let made = client(&server.url)
                .create_runtime(&cpu(), "0f8fad5b-d9cb-469f-a165-70867728950e")
                .await
                .unwrap();
            assert_eq!(made.name, "runtimes/new", "{form}");
            assert_eq!(
                called(&server, "create_runtime"),
                [json!({"runtime": {"runtimeSpec": cpu()}})]
            );
        })
        .await;
    }
}

#[tokio::test]
async fn a_runtime_whose_creation_was_lost_is_not_made_twice() {
    limited(async {
        let runtimes = Arc::new(std::sync::Mutex::new(vec![json!({"name": "runtimes/old"})]));
        let made = Arc::clone(&runtimes);
        let server = Server::stateless(json!([]), move |seen| {
            let mut runtimes = made.lock().unwrap();
            if tool(seen) == "list_runtimes" {
                return answer(seen, &json!({"runtimes": *runtimes}));
            }
            runtimes.push(json!({"name": "runtimes/new", "runtimeSpec": cpu()}));
            Reply::new(503, "text/plain", "the answer is lost")
        })
        .await;
        let client = client(&server.url);
        let before = client.list_runtimes().await.unwrap();
        assert_eq!(
            client.create_runtime(&cpu(), "id").await.unwrap_err().code,
            Code::Unavailable
        );
        let found = client
            .create_runtime_again(&cpu(), "id", &before)
            .await
            .unwrap();
        assert_eq!(found.name, "runtimes/new");
        assert_eq!(called(&server, "create_runtime").len(), 1);
    })
    .await;
}
