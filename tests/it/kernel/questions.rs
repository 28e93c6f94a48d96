//! Completion, inspection, comm_info and usage: what the remote kernel answers, and what happens when it does not.

use std::time::Duration;

use colab_kernel::backend::Question;
use serde_json::json;
use tokio::time::timeout;

use super::scripted::{Fixture, Reply, kernel};
use crate::client::execute;

async fn with_session() -> Fixture {
    let mut fixture = kernel().await;
    fixture.client.run("print on").await;
    fixture
}

const COMPLETE: &str = r#"{"matches": ["print"], "cursor_start": 0, "cursor_end": 3, "status": "ok",
    "metadata": {"_jupyter_types_experimental": [{"start": 0, "end": 3, "text": "print", "type": "function"}]}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_put_to_the_remote_kernel_as_they_came_and_replies_pass_unchanged() {
    let mut fixture = with_session().await;
    let backend = &fixture.backend;
    backend.reply(Question::Complete, Reply::With(COMPLETE));
    backend.reply(
        Question::CommInfo,
        Reply::With(r#"{"status": "ok", "comms": {"c": {"target_name": "t"}}}"#),
    );
    let client = &mut fixture.client;
    // 😀 is one code point and two units of UTF-16.
    let content = json!({"code": "😀; pri", "cursor_pos": 6});
    let answer = client.ask("complete_request", &content).await;
    assert_eq!(answer.reply.raw, COMPLETE);
    assert_eq!(answer.types(), ["status", "status"]);
    let comms = client
        .ask("comm_info_request", &json!({"target_name": "t"}))
        .await;
    assert_eq!(
        comms.reply.content["comms"],
        json!({"c": {"target_name": "t"}})
    );
    let asked = fixture.backend.asked.lock().unwrap();
    assert_eq!(asked[0], (Question::Complete, content.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_session_questions_are_answered_at_once_also_behind_a_waiting_cell() {
    let mut fixture = kernel().await;
    fixture
        .backend
        .reply(Question::Complete, Reply::With(COMPLETE));
    let client = &mut fixture.client;
    let complete = json!({"code": "pri", "cursor_pos": 3});
    let answer = client.ask("complete_request", &complete).await;
    assert_eq!(answer.reply.content["matches"], json!([]));
    // Once the cell runs there is a session, and the question waits behind it.
    let cell = client
        .send("execute_request", &execute("print x\nwait"))
        .await;
    client.until(&cell, "stream").await;
    let complete = client.send("complete_request", &complete).await;
    let info = client.send("kernel_info_request", &json!({})).await;
    assert_eq!(client.reply().await.parent_id(), info);
    assert!(fixture.backend.asked.lock().unwrap().is_empty());
    client.send_control("interrupt_request", &json!({})).await;
    client.control_reply().await;
    client.answer(&cell).await;
    let answer = client.answer(&complete).await;
    assert_eq!(answer.reply.content["matches"], json!(["print"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_reply_becomes_one_with_nothing_in_it() {
    let mut fixture = with_session().await;
    let content = json!({"code": "pri", "cursor_pos": 3});
    let empty =
        json!({"status": "ok", "matches": [], "cursor_start": 3, "cursor_end": 3, "metadata": {}});
    for reply in [
        // google.colab's answer to a completion that raised.
        Reply::With(r#""{\"status\": \"ok\"}""#),
        Reply::With(r#"{"status": "aborted"}"#),
        Reply::With("null"),
        Reply::Panic,
    ] {
        fixture.backend.reply(Question::Complete, reply);
        let answer = fixture.client.ask("complete_request", &content).await;
        assert_eq!(answer.reply.content, empty);
    }
    let reply = Reply::With(r#"{"matches": ["print"], "cursor_start": 0, "cursor_end": 3}"#);
    fixture.backend.reply(Question::Complete, reply);
    let answer = fixture.client.ask("complete_request", &content).await;
    assert_eq!(answer.reply.content["status"], "ok");
    assert_eq!(answer.reply.content["metadata"], json!({}));
    assert_eq!(answer.reply.content["matches"], json!(["print"]));
    let reply = Reply::With(r#"{"status": "error", "ename": "E", "evalue": "", "traceback": []}"#);
    fixture.backend.reply(Question::Complete, reply);
    let answer = fixture.client.ask("complete_request", &content).await;
    assert_eq!(answer.reply.content["ename"], "E");
    let answer = fixture.client.ask("complete_request", &json!({})).await;
    assert_eq!(answer.reply.content["ename"], "InvalidRequest");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inspection_with_data_alone_becomes_text() {
    let mut fixture = with_session().await;
    let reply = r#"{"status": "ok", "found": true, "metadata": {}, "data": {"application/json":
        {"found": true, "type_name": "function", "definition": "f(a)", "docstring": "Doc.", "source": "def f(a):\n    pass\n"}}}"#;
    fixture.backend.reply(Question::Inspect, Reply::With(reply));
    for (detail, expected) in [(0, "Doc."), (1, "def f(a)")] {
        let content = json!({"code": "f", "cursor_pos": 1, "detail_level": detail});
        let answer = fixture.client.ask("inspect_request", &content).await;
        let data = &answer.reply.content["data"];
        let text = data["text/plain"].as_str().unwrap();
        assert!(
            text.contains("Signature:") && text.contains(expected),
            "{text}"
        );
        // JupyterLab would show it as a tree, in the place of the text.
        assert!(data.get("application/json").is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_a_question_that_is_not_answered() {
    let mut fixture = with_session().await;
    fixture.backend.reply(Question::Inspect, Reply::Never);
    let client = &mut fixture.client;
    let content = json!({"code": "x", "cursor_pos": 1});
    let question = client.send("inspect_request", &content).await;
    client.until(&question, "status").await;
    client.send_control("interrupt_request", &json!({})).await;
    client.control_reply().await;
    let answer = client.answer(&question).await;
    assert_eq!(answer.reply.content["found"], false);
    assert_eq!(answer.types(), ["status", "status"]);
    assert_eq!(client.run("print on").await.text("stdout"), "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_is_never_answered_ends_by_itself_and_usage_holds_back_nothing() {
    let mut fixture = with_session().await;
    fixture.backend.reply(Question::Complete, Reply::Never);
    fixture.backend.reply(Question::Usage, Reply::Never);
    let client = &mut fixture.client;
    let content = json!({"code": "x", "cursor_pos": 1});
    let question = client.send("complete_request", &content).await;
    let usage = client.send_control("usage_request", &json!({})).await;
    client.send_control("kernel_info_request", &json!({})).await;
    assert_eq!(client.control_reply().await.msg_type(), "kernel_info_reply");
    let reply = client.control_reply().await;
    assert_eq!(
        (reply.msg_type(), reply.parent_id()),
        ("usage_reply", &*usage)
    );
    assert_eq!(reply.content["status"], "error");
    assert_eq!(reply.content["ename"], "ColabCompanionUnavailable");
    client.until_idle(&usage).await;
    let answer = timeout(Duration::from_secs(20), client.answer(&question)).await;
    assert_eq!(answer.unwrap().reply.content["matches"], json!([]));
    assert_eq!(client.run("print on").await.text("stdout"), "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_told_while_a_cell_runs_on_control_and_on_shell() {
    let mut fixture = kernel().await;
    fixture.backend.reply(
        Question::Usage,
        Reply::With(r#"{"kernel_cpu": 1.5, "pid": 7}"#),
    );
    let client = &mut fixture.client;
    let none = client.ask("usage_request", &json!({})).await;
    assert_eq!(none.reply.content["ename"], "ColabCompanionUnavailable");
    let cell = client
        .send("execute_request", &execute("print x\nwait"))
        .await;
    client.until(&cell, "stream").await;
    client.send_control("usage_request", &json!({})).await;
    let reply = client.control_reply().await;
    assert_eq!(
        reply.content,
        json!({"kernel_cpu": 1.5, "pid": 7, "status": "ok"})
    );
    let usage = client.send("usage_request", &json!({})).await;
    let reply = client.reply().await;
    assert_eq!(
        (reply.msg_type(), reply.parent_id()),
        ("usage_reply", &*usage)
    );
    client.send_control("interrupt_request", &json!({})).await;
    client.answer(&cell).await;
}
