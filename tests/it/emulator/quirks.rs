//! Each quirk changes what it says, and nothing else.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::lab::{Lab, Stream, cpu, fresh, limited, outcome, refused, request_id};

#[tokio::test]
async fn progress_takes_another_shape() {
    limited(async {
        let code =
            "import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)";
        let (lab, runtime) = Lab::with_runtime(&["progress=json"]).await;
        let mut call = lab.begin(&request_id(), &fresh(&runtime), code, "").await;
        let response = call.response().await;
        let shown: Vec<_> = call
            .progress
            .iter()
            .map(|params| params["message"].as_str().unwrap())
            .collect();
        assert_eq!(
            shown,
            [
                r#"{"stream":"stdout","text":"out\n"}"#,
                r#"{"stream":"stderr","text":"err\n"}"#
            ]
        );
        assert_eq!(response["result"]["structuredContent"]["stderr"], "err\n");
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn errors_show_on_every_surface_before_the_stream_began() {
    limited(async {
        for surface in ["http", "jsonrpc", "tool", "text"] {
            let lab = Lab::new(&[&format!("errors={surface}")]).await;
            let mut call = lab
                .start("a", "get_runtime", json!({"name": "runtimes/none"}))
                .await;
            let body = call.response().await;
            if surface == "http" {
                assert_eq!((call.status, &body["error"]["code"]), (404, &json!(404)));
                assert_eq!(refused(&body["error"]).status, "NOT_FOUND");
            } else {
                assert_eq!(call.status, 200);
                assert_shown(surface, &body, "NOT_FOUND");
            }
            lab.shutdown().await;
        }
    })
    .await;
}

#[tokio::test]
async fn errors_show_on_their_surface_after_the_stream_began() {
    limited(async {
        // Where no HTTP status can be given any more, a JSON-RPC error stands for it.
        for (surface, shown_as) in [("http", "jsonrpc"), ("text", "text")] {
            let (lab, runtime) =
                Lab::with_runtime(&[&format!("errors={surface}"), "deadline=0.5"]).await;
            let code = "import time; time.sleep(20)";
            let mut call = lab.begin("b", &fresh(&runtime), code, "").await;
            let body = call.response().await;
            assert_eq!(call.status, 200);
            assert_shown(shown_as, &body, "DEADLINE_EXCEEDED");
            lab.shutdown().await;
        }
    })
    .await;
}

/// Checks an error with the status 200.
fn assert_shown(surface: &str, body: &Value, name: &str) {
    assert!(body["id"].is_string());
    if surface == "jsonrpc" {
        assert_eq!(refused(&body["error"]["data"]).status, name);
        return;
    }
    assert_eq!(body["result"]["isError"], true);
    let text = body["result"]["content"][0]["text"].as_str().unwrap();
    if surface == "tool" {
        let inner: Value = serde_json::from_str(text).unwrap();
        assert_eq!(refused(&inner["error"]).status, name);
    } else {
        assert!(text.starts_with(name), "{text}");
    }
}

#[tokio::test]
async fn results_come_as_text_or_both_and_ints_as_strings() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&[
            "result=text",
            "ints=string",
            "is-error=yes",
            "rich=off",
            "answers=sse",
            "code-argument=source",
        ])
        .await;
        let session = fresh(&runtime);
        let mut call = lab
            .begin(
                &request_id(),
                &session,
                "from IPython.display import *\ndisplay(HTML('x'))\n1/0",
                "",
            )
            .await;
        let response = call.response().await;
        let result = &response["result"];
        assert_eq!(
            (result.get("structuredContent"), &result["isError"]),
            (None, &json!(true))
        );
        let inner: Value =
            serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(inner["executionCount"], "1");
        assert_eq!(
            (&inner["richOutputsDropped"], inner.get("richOutputs")),
            (&json!(true), None)
        );
        let mut short = lab.start("a", "get_subscription", json!({})).await;
        assert!(short.is_stream());
        short.response().await;
        let tools = lab.rpc("tools/list", json!({})).await;
        let schemas = tools["result"]["tools"].as_array().unwrap();
        let execute = schemas
            .iter()
            .find(|tool| tool["name"] == "execute_code")
            .unwrap();
        assert_eq!(execute["inputSchema"]["required"], json!(["source"]));
        lab.shutdown().await;

        let (lab, runtime) = Lab::with_runtime(&["result=both"]).await;
        let mut call = lab.begin(&request_id(), &fresh(&runtime), "1/0", "").await;
        let response = call.response().await;
        let result = &response["result"];
        assert!(result.get("isError").is_none());
        let inner: Value =
            serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(inner, result["structuredContent"]);
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn create_runtime_answers_with_an_operation_or_nothing_and_takes_flat_arguments() {
    limited(async {
        let lab = Lab::new(&["create=operation", "boot=300"]).await;
        let began = Instant::now();
        let operation = lab.call("create_runtime", cpu()).await.unwrap();
        let name = operation["name"].as_str().unwrap();
        assert!(
            name.starts_with("operations/") && operation.get("done").is_none(),
            "{operation}"
        );
        let base = lab.endpoint.trim_end_matches("/mcp");
        let poll = lab
            .http
            .get(format!("{base}/v1/{name}"))
            .bearer_auth(lab.token);
        let pending: Value = poll.send().await.unwrap().json().await.unwrap();
        assert!(pending.get("done").is_none());
        let wait = lab
            .http
            .get(format!("{base}/v1/{name}:wait"))
            .bearer_auth(lab.token);
        let done: Value = wait.send().await.unwrap().json().await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(300));
        assert_eq!(done["done"], true);
        let listed = lab.call("list_runtimes", json!({})).await.unwrap();
        assert_eq!(listed["runtimes"][0]["name"], done["response"]["name"]);
        lab.shutdown().await;

        let lab = Lab::new(&["create=empty", "create-arguments=flat"]).await;
        assert_eq!(
            lab.call("create_runtime", cpu()).await.unwrap_err().status,
            "INVALID_ARGUMENT"
        );
        let flat = cpu()["runtime"].clone();
        assert_eq!(lab.call("create_runtime", flat).await.unwrap(), json!({}));
        let listed = lab.call("list_runtimes", json!({})).await.unwrap();
        assert_eq!(listed["runtimes"].as_array().unwrap().len(), 1);
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn text_is_cut_into_chunks_and_results_at_their_cap() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["chunk=3", "truncate=4:head"]).await;
        let code = "print('añ\\nb\\nc', end='')";
        let mut call = lab.begin(&request_id(), &fresh(&runtime), code, "").await;
        let response = call.response().await;
        let pieces: Vec<_> = call
            .progress
            .iter()
            .map(|params| params["message"].as_str().unwrap())
            .collect();
        assert_eq!(pieces, ["añ", "\nb\n", "c"]);
        let result = &response["result"]["structuredContent"];
        assert_eq!(
            (&result["stdout"], &result["outputTruncated"]),
            (&json!("\nb\nc"), &json!(true))
        );
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_rate_refuses_calls_that_did_not_run_and_says_when_to_come_back() {
    limited(async {
        let lab = Lab::new(&["rate=2"]).await;
        let mut last: Option<Stream> = None;
        for _ in 0..3 {
            let mut stream = lab
                .start(&request_id(), "get_subscription", json!({}))
                .await;
            if stream.status != 200 {
                let body = stream.response().await;
                assert_eq!(
                    outcome(stream.status, &body).unwrap_err().status,
                    "RESOURCE_EXHAUSTED"
                );
                assert_eq!(
                    body["error"]["details"][1]["@type"],
                    "type.googleapis.com/google.rpc.RetryInfo"
                );
            }
            last = Some(stream);
        }
        let last = last.unwrap();
        assert_eq!(
            (last.status, last.headers["retry-after"].to_str().unwrap()),
            (429, "1")
        );
        // tools/list is no tool call.
        assert!(lab.rpc("tools/list", json!({})).await["result"].is_object());
    })
    .await;
}

#[tokio::test]
async fn a_dead_kernel_is_unavailable_or_a_result() {
    limited(async {
        let code = "import os; os.kill(os.getpid(), 9)";
        let (lab, runtime) = Lab::with_runtime(&["kernel-death=unavailable"]).await;
        let refused = lab.execute(&fresh(&runtime), code).await.unwrap_err();
        assert_eq!(
            (refused.status.as_str(), refused.reason.as_str()),
            ("UNAVAILABLE", "KERNEL_DIED")
        );
        lab.shutdown().await;
        let (lab, runtime) = Lab::with_runtime(&["kernel-death=result"]).await;
        let result = lab.execute(&fresh(&runtime), code).await.unwrap();
        assert_eq!(result["executionError"]["name"], "DeadKernelError");
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn the_newest_kernels_run_as_well() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["kernels=newest"]).await;
        let session = fresh(&runtime);
        let result = lab.execute(&session, "import ipykernel, pandas as pd\nprint(ipykernel.__version__)\npd.DataFrame({'a': [1]})").await.unwrap();
        assert!(!result["stdout"].as_str().unwrap().starts_with("6."), "{result}");
        assert_eq!(result["richOutputs"][0]["mimeTypes"], json!(["text/html"]));
        let mut call = lab.begin("it", &session, "print('running', flush=True)\nwhile True: pass", "").await;
        call.wait_for("running").await;
        lab.cancel("it").await;
        let response = call.response().await;
        assert_eq!(response["result"]["structuredContent"]["executionError"]["name"], "KeyboardInterrupt");
        lab.shutdown().await;
    })
    .await;
}
