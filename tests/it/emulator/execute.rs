//! What execute_code streams and returns.

use serde_json::{Value, json};

use super::lab::{Lab, fresh, limited, request_id, shared};

#[tokio::test]
async fn text_streams_while_the_code_runs_and_is_returned_in_the_result() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let id = session.rsplit('/').next().unwrap();
        let code = format!(
            "import os, sys, time\nprint('one', flush=True)\nwhile not os.path.exists('go-{id}'): time.sleep(0.01)\nprint('two', file=sys.stderr, flush=True)\nprint('three')\n'last'"
        );
        let mut call = lab.begin(&request_id(), &session, &code, "").await;
        assert!(call.is_stream());
        // The code cannot end before this text has arrived here.
        call.wait_for("one\n").await;
        lab.put_file(runtime, &format!("content/go-{id}"), "").await;
        let response = call.response().await;
        assert_eq!(call.text(), "one\ntwo\nthree\n");
        let numbers: Vec<_> = call.progress.iter().map(|params| params["progress"].as_u64().unwrap()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        let result = &response["result"]["structuredContent"];
        // Only what is not a default: no executionError, no outputTruncated, no richOutputs.
        let expected = json!({
            "session": session, "executionCount": 1, "stdout": "one\nthree\n", "stderr": "two\n", "result": "'last'",
        });
        assert_eq!(result, &expected);
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn an_exception_is_a_result_with_an_execution_error_and_the_next_code_runs() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let result = lab.execute(&session, "print('before')\n1/0").await.unwrap();
        assert_eq!(result["stdout"], "before\n");
        let error = &result["executionError"];
        assert_eq!(
            (error["name"].as_str(), error["value"].as_str()),
            (Some("ZeroDivisionError"), Some("division by zero"))
        );
        assert!(error["traceback"].as_array().unwrap().len() > 1);
        assert_eq!(
            lab.execute(&session, "2 + 2").await.unwrap(),
            json!({"session": session, "executionCount": 2, "result": "4"})
        );
        let result = lab.execute(&session, "input()").await.unwrap();
        assert_eq!(result["executionError"]["name"], "StdinNotImplementedError");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn calls_of_one_session_run_one_at_a_time_in_order_and_sessions_do_not_wait_for_each_other() {
    limited(async {
        let (lab, runtime) = shared().await;
        let (first, second) = (fresh(runtime), fresh(runtime));
        let id = first.rsplit('/').next().unwrap();
        let wait = format!("import os, time\nprint('running', flush=True)\nwhile not os.path.exists('go-{id}'): time.sleep(0.01)\norder = ['a']");
        let mut running = lab.begin(&request_id(), &first, &wait, "").await;
        running.wait_for("running").await;
        let mut queued = lab.begin(&request_id(), &first, "order.append('b')", "").await;
        let mut last = lab.begin(&request_id(), &first, "order.append('c'); order", "").await;
        assert_eq!(lab.execute(&second, "'not waiting'").await.unwrap()["result"], "'not waiting'");
        lab.put_file(runtime, &format!("content/go-{id}"), "").await;
        let counts = [running.response().await, queued.response().await, last.response().await]
            .map(|response| response["result"]["structuredContent"].clone());
        assert_eq!(counts.each_ref().map(|result| result["executionCount"].clone()), [1, 2, 3].map(Value::from));
        assert_eq!(counts[2]["result"], "['a', 'b', 'c']");
        for session in [first, second] {
            lab.close(&session).await;
        }
    })
    .await;
}

#[tokio::test]
async fn two_hundred_thousand_lines_arrive_complete_and_in_order_and_the_result_is_capped() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let code = "for i in range(200_000): print(str(i).ljust(99, '.'))";
        let mut call = lab.begin(&request_id(), &session, code, "").await;
        let response = call.response().await;
        let text = call.text();
        assert_eq!(text.len(), 20_000_000);
        for (i, line) in text.lines().enumerate() {
            assert!(line.starts_with(&format!("{i}.")), "line {i} is {line}");
        }
        let result = &response["result"]["structuredContent"];
        assert_eq!(result["outputTruncated"], true);
        let kept = result["stdout"].as_str().unwrap();
        assert_eq!(kept.len(), 10 * 1024 * 1024);
        assert!(text.starts_with(kept), "the tail is cut off");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn alternating_flushed_lines_keep_their_order_and_none_is_lost() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let code = "import sys\nfor i in range(4000): print(i, file=(sys.stdout, sys.stderr)[i % 2], flush=True)";
        let mut call = lab.begin(&request_id(), &session, code, "").await;
        call.response().await;
        let expected: String = (0..4000).map(|i| format!("{i}\n")).collect();
        assert!(call.text() == expected);
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn every_character_arrives_as_it_was_printed() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let text = "\r\x1b[31mred\x1b[0m\0 añ🦀\u{2028}\t\"\\ \n\n";
        let escaped: String = text
            .encode_utf16()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect();
        let code = format!("import json\nprint(json.loads(r'\"{escaped}\"'), end='')");
        let mut call = lab.begin(&request_id(), &session, &code, "").await;
        let response = call.response().await;
        assert_eq!(call.text(), text);
        assert_eq!(
            response["result"]["structuredContent"]["stdout"], text,
            "{response}"
        );
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn rich_outputs_are_bundles_in_files_that_the_proxy_serves() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let code = "import pandas as pd, matplotlib.pyplot as plt\nfrom IPython.display import display, HTML\ndisplay(HTML('<b>first</b>'))\nplt.plot([1, 2]); plt.show()\ndisplay(5)\npd.DataFrame({'a': [1]})";
        let result = lab.execute(&session, code).await.unwrap();
        assert_eq!(result["executionError"], Value::Null, "{result}");
        assert_eq!(result["result"], "   a\n0  1");
        assert_eq!(result["richOutputsDropped"], true);
        let rich = result["richOutputs"].as_array().unwrap();
        let types: Vec<_> = rich.iter().map(|output| output["mimeTypes"].clone()).collect();
        assert_eq!(types, [json!(["text/html"]), json!(["image/png"]), json!(["text/html"])]);
        let mut bundles = Vec::new();
        for (at, output) in rich.iter().enumerate() {
            assert_eq!(output["index"].as_u64().unwrap_or(0), at as u64);
            let path = output["filePath"].as_str().unwrap();
            assert!(path.starts_with("/content/.dsm_outputs/") && path.ends_with(&format!("/out-00{at}.json")), "{path}");
            let text = lab.read_file(runtime, path.trim_start_matches('/')).await.unwrap();
            assert_eq!(output["sizeBytes"], text.len().to_string());
            bundles.push(serde_json::from_str::<Value>(&text).unwrap());
        }
        assert_eq!(bundles[0]["data"]["text/html"], "<b>first</b>");
        assert!(bundles[1]["data"]["image/png"].as_str().unwrap().starts_with("iVBOR"));
        assert_eq!(bundles[2]["data"]["text/plain"], result["result"]);
        assert_eq!(bundles[2]["output_type"], "execute_result");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn a_kernel_that_dies_ends_the_call_and_the_session_goes_on_with_a_fresh_one() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        lab.execute(&session, "x = 1").await.unwrap();
        let id = session.rsplit('/').next().unwrap();
        let code = format!(
            "import os, time\nprint('last words', flush=True)\nwhile not os.path.exists('go-{id}'): time.sleep(0.01)\nos.kill(os.getpid(), 9)"
        );
        let mut call = lab.begin(&request_id(), &session, &code, "").await;
        call.wait_for("last words\n").await;
        lab.put_file(runtime, &format!("content/go-{id}"), "").await;
        let response = call.response().await;
        assert_eq!(call.text(), "last words\n");
        let refused = super::lab::outcome(call.status, &response).unwrap_err();
        assert_eq!((refused.status.as_str(), refused.reason.as_str()), ("ABORTED", "KERNEL_DIED"));
        let result = lab.execute(&session, "'x' in globals()").await.unwrap();
        assert_eq!(result, json!({"session": session, "executionCount": 1, "result": "False"}));
        // So does one that leaves by itself, and one that interrupts itself.
        let _ = lab.execute(&session, "exit()").await;
        let result = lab.execute(&session, "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(30)").await.unwrap();
        assert_eq!(result["executionError"]["name"], "KeyboardInterrupt");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn deleting_a_session_or_a_runtime_aborts_its_calls() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&[]).await;
        let forever = "print('running', flush=True)\nwhile True: pass";
        let session = fresh(&runtime);
        let mut call = lab.begin(&request_id(), &session, forever, "").await;
        call.wait_for("running").await;
        let mut queued = lab.begin(&request_id(), &session, "1", "").await;
        lab.close(&session).await;
        for call in [&mut call, &mut queued] {
            let response = call.response().await;
            let refused = super::lab::outcome(call.status, &response).unwrap_err();
            assert_eq!(
                (refused.status.as_str(), refused.reason.as_str()),
                ("ABORTED", "SESSION_DELETED")
            );
        }
        let mut call = lab.begin(&request_id(), &session, forever, "").await;
        call.wait_for("running").await;
        lab.call("delete_runtime", json!({"name": runtime}))
            .await
            .unwrap();
        let response = call.response().await;
        let refused = super::lab::outcome(call.status, &response).unwrap_err();
        assert!(
            ["NOT_FOUND", "ABORTED"].contains(&refused.status.as_str()),
            "{refused:?}"
        );
        lab.shutdown().await;
    })
    .await;
}
