//! Cells: what is published when, what they abort, what an interrupt and a shutdown do to them.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use super::scripted::kernel;
use crate::client::{Client, LIMIT, execute};

#[tokio::test(flavor = "multi_thread")]
async fn kernel_info_is_answered_on_shell_and_control_with_busy_and_idle() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let answer = client.ask("kernel_info_request", &json!({})).await;
    assert_eq!(answer.types(), ["status", "status"]);
    let info = &answer.reply.content;
    assert_eq!(info["status"], "ok");
    assert_eq!(info["protocol_version"], "5.5");
    assert_eq!(info["language_info"]["pygments_lexer"], "ipython3");
    assert_eq!(info["language_info"]["nbconvert_exporter"], "python");

    let id = client.send_control("kernel_info_request", &json!({})).await;
    let reply = client.control_reply().await;
    assert_eq!(reply.msg_type(), "kernel_info_reply");
    assert_eq!(reply.parent_id(), id);
    let states: Vec<_> = client.until_idle(&id).await;
    assert_eq!(states.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_publishes_busy_input_output_reply_and_idle_last() {
    let mut fixture = kernel().await;
    let answer = fixture.client.run("print hello\nresult 42").await;
    assert_eq!(
        answer.types(),
        [
            "status",
            "execute_input",
            "stream",
            "execute_result",
            "status"
        ]
    );
    assert_eq!(answer.text("stdout"), "hello\n");
    assert_eq!(answer.iopub[1].content["execution_count"], 1);
    assert_eq!(answer.iopub[3].content["execution_count"], 1);
    assert_eq!(answer.reply.content["status"], "ok");
    assert_eq!(answer.reply.content["execution_count"], 1);
    assert_eq!(
        fixture.client.run("print x").await.reply.content["execution_count"],
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_aborts_what_is_queued_with_error_replies() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let first = client.send("execute_request", &execute("wait")).await;
    client.until(&first, "execute_input").await;
    let second = client.send("execute_request", &execute("print no")).await;
    let third = client.send("execute_request", &execute("print no")).await;
    // kernel_info overtakes the cell, which shows that both cells have been queued before it.
    let info = client.send("kernel_info_request", &json!({})).await;
    assert_eq!(client.reply().await.parent_id(), info);
    client.send_control("interrupt_request", &json!({})).await;
    assert_eq!(client.control_reply().await.content["status"], "ok");

    let answer = client.answer(&first).await;
    assert_eq!(answer.reply.content["ename"], "KeyboardInterrupt");
    for id in [second, third] {
        let answer = client.answer(&id).await;
        assert_eq!(answer.reply.content["status"], "error");
        assert_eq!(answer.reply.content["ename"], "ExecutionAborted");
        assert_eq!(answer.reply.content["execution_count"], 0);
        assert!(answer.outputs().is_empty());
    }
    assert_eq!(*fixture.backend.ran.lock().unwrap(), ["wait"]);
    assert_eq!(fixture.client.run("print on").await.text("stdout"), "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_stop_on_error_the_queue_goes_on_but_a_lost_session_aborts_it() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let going_on = |code: &str| {
        let mut content = execute(code);
        content["stop_on_error"] = false.into();
        content
    };
    let raise = client.send("execute_request", &going_on("raise")).await;
    let print = client.send("execute_request", &going_on("print on")).await;
    assert_eq!(
        client.answer(&raise).await.reply.content["ename"],
        "ValueError"
    );
    assert_eq!(client.answer(&print).await.text("stdout"), "on\n");

    let wait = client
        .send("execute_request", &going_on("wait\nlose"))
        .await;
    client.until(&wait, "execute_input").await;
    let lose = client.send("execute_request", &going_on("lose")).await;
    let behind = client.send("execute_request", &going_on("print no")).await;
    let info = client.send("kernel_info_request", &json!({})).await;
    assert_eq!(client.reply().await.parent_id(), info);
    client.send_control("interrupt_request", &json!({})).await;
    client.control_reply().await;
    client.answer(&wait).await;
    let lost = client.answer(&lose).await;
    assert_eq!(lost.reply.content["ename"], "ColabSessionLost");
    assert_eq!(lost.types(), ["status", "execute_input", "error", "status"]);
    let behind = client.answer(&behind).await;
    assert_eq!(behind.reply.content["ename"], "ExecutionAborted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blank_cell_is_answered_here_and_not_counted() {
    let mut fixture = kernel().await;
    for code in ["", "  \n\t\n"] {
        let answer = fixture.client.run(code).await;
        assert_eq!(answer.reply.content["status"], "ok");
    }
    assert!(fixture.backend.ran.lock().unwrap().is_empty());
    assert_eq!(
        fixture.client.run("print 1").await.reply.content["execution_count"],
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn set_up_code_before_the_session_is_kept_and_answered_at_once() {
    let mut fixture = kernel().await;
    let mut content = execute("%config Completer.use_jedi = False");
    content["store_history"] = false.into();
    let answer = fixture.client.ask("execute_request", &content).await;
    assert_eq!(answer.reply.content["status"], "ok");
    assert!(fixture.backend.ran.lock().unwrap().is_empty());
    assert_eq!(
        *fixture.backend.setup.lock().unwrap(),
        ["%config Completer.use_jedi = False"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_is_gone_when_the_cell_is_submitted() {
    let mut fixture = kernel().await;
    let answer = fixture
        .client
        .run("notice using a machine\nsubmitted\nprint x")
        .await;
    assert_eq!(
        answer.types(),
        [
            "status",
            "execute_input",
            "stream",
            "clear_output",
            "stream",
            "status"
        ]
    );
    assert_eq!(answer.iopub[3].content["wait"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_the_backend_is_an_error_and_the_kernel_goes_on() {
    let mut fixture = kernel().await;
    let answer = fixture.client.run("panic").await;
    assert_eq!(answer.reply.content["ename"], "ColabProtocolError");
    assert_eq!(answer.types().last(), Some(&"status"));
    assert_eq!(fixture.client.run("print on").await.text("stdout"), "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_code_shows_what_the_backend_says_and_neither_its_input_nor_notices() {
    let mut fixture = kernel().await;
    fixture.client.run("print first").await;
    let mut content = execute("notice wait a little\nprint shown");
    content["silent"] = true.into();
    let answer = fixture.client.ask("execute_request", &content).await;
    assert_eq!(answer.types(), ["status", "stream", "status"]);
    assert_eq!(answer.text("stdout"), "shown\n");
    assert_eq!(
        fixture.client.run("print x").await.reply.content["execution_count"],
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn comm_open_is_answered_by_comm_close_and_requests_without_a_remote_side_by_valid_emptiness()
{
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let open = json!({"comm_id": "c1", "target_name": "jupyter.widget", "data": {}});
    let id = client.send("comm_open", &open).await;
    let messages = client.until_idle(&id).await;
    assert_eq!(messages[1].msg_type(), "comm_close");
    assert_eq!(messages[1].content["comm_id"], "c1");

    let complete = client
        .ask("complete_request", &json!({"code": "imp", "cursor_pos": 3}))
        .await;
    assert_eq!(complete.reply.content["matches"], json!([]));
    let inspect = json!({"code": "x", "cursor_pos": 1, "detail_level": 0});
    let inspect = client.ask("inspect_request", &inspect).await;
    assert_eq!(inspect.reply.content["found"], false);
    let comms = client.ask("comm_info_request", &json!({})).await;
    assert_eq!(comms.reply.content["comms"], json!({}));
    let ports = client.ask("connect_request", &json!({})).await;
    assert!(ports.reply.content["shell_port"].is_number());
    let complete = client
        .ask("is_complete_request", &json!({"code": "for i in x:"}))
        .await;
    assert_eq!(complete.reply.content["status"], "incomplete");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_contents_get_an_error_reply_and_unknown_types_are_dropped() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let answer = client.ask("execute_request", &json!({"kode": "x"})).await;
    assert_eq!(answer.reply.content["ename"], "InvalidRequest");
    let answer = client.ask("is_complete_request", &json!({})).await;
    assert_eq!(answer.reply.content["ename"], "InvalidRequest");
    client.send("no_such_request", &json!({})).await;
    assert_eq!(client.run("print on").await.text("stdout"), "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_echoes_restart_is_told_to_everybody_and_ends_the_process_after_the_reply() {
    let mut fixture = kernel().await;
    let mut watcher = Client::connect(&fixture.file).await;
    let client = &mut fixture.client;
    let id = client
        .send_control("shutdown_request", &json!({"restart": true}))
        .await;
    let reply = client.control_reply().await;
    assert_eq!(reply.content, json!({"status": "ok", "restart": true}));
    let told = watcher.until(&id, "shutdown_reply").await;
    assert_eq!(told.content["restart"], true);
    timeout(LIMIT, fixture.kernel).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_a_running_cell_and_answers_it_and_what_waits_behind_it() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let cell = client.send("execute_request", &execute("wait")).await;
    client.until(&cell, "execute_input").await;
    let mut going_on = execute("print no");
    going_on["stop_on_error"] = false.into();
    let behind = client.send("execute_request", &going_on).await;
    // kernel_info overtakes the cells, which shows that both have been queued before it.
    let info = client.send("kernel_info_request", &json!({})).await;
    assert_eq!(client.reply().await.parent_id(), info);
    client
        .send_control("shutdown_request", &json!({"restart": false}))
        .await;
    client.control_reply().await;
    let cell = client.answer(&cell).await;
    assert_eq!(cell.reply.content["ename"], "KeyboardInterrupt");
    let behind = client.answer(&behind).await;
    assert_eq!(behind.reply.content["ename"], "ExecutionAborted");
    timeout(Duration::from_secs(3), fixture.kernel)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_sent_after_the_reply_of_one_that_failed_is_not_aborted() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    for _ in 0..50 {
        let raise = client.send("execute_request", &execute("raise")).await;
        assert_eq!(client.reply().await.parent_id(), raise);
        let answer = client.run("print on").await;
        assert_eq!(answer.text("stdout"), "on\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_seen_busy_can_interrupt_the_cell() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    for _ in 0..20 {
        let cell = client.send("execute_request", &execute("wait")).await;
        client.until(&cell, "status").await;
        client.send_control("interrupt_request", &json!({})).await;
        client.control_reply().await;
        let answer = client.answer(&cell).await;
        assert_eq!(answer.reply.content["ename"], "KeyboardInterrupt");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_null_in_an_execute_request_is_the_default() {
    let mut fixture = kernel().await;
    let content = json!({"code": "result 1", "silent": null, "store_history": null, "user_expressions": null,
                         "allow_stdin": null, "stop_on_error": null});
    let answer = fixture.client.ask("execute_request", &content).await;
    assert_eq!(answer.reply.content["status"], "ok");
    assert_eq!(answer.reply.content["execution_count"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn user_expressions_are_answered_only_for_a_cell_that_succeeded() {
    let mut fixture = kernel().await;
    for (code, expected) in [("print on", json!({"a": "1 + 1"})), ("raise", json!({}))] {
        let mut content = execute(code);
        content["user_expressions"] = json!({"a": "1 + 1"});
        let answer = fixture.client.ask("execute_request", &content).await;
        assert_eq!(answer.reply.content["user_expressions"], expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_on_shell_reaches_a_running_cell() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let cell = client.send("execute_request", &execute("wait")).await;
    client.until(&cell, "execute_input").await;
    let interrupt = client.send("interrupt_request", &json!({})).await;
    let replies = [client.reply().await, client.reply().await];
    for (id, msg_type) in [(&cell, "execute_reply"), (&interrupt, "interrupt_reply")] {
        let reply = replies.iter().find(|reply| reply.parent_id() == id);
        assert_eq!(reply.unwrap().msg_type(), msg_type);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_while_idle_does_not_hit_the_next_cell() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    client.run("print 1").await;
    client.send_control("interrupt_request", &json!({})).await;
    client.control_reply().await;
    assert_eq!(client.run("print 2").await.text("stdout"), "2\n");
}
