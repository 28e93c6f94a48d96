//! Comm messages of the front-end and of the kernel.

use colab_kernel::backend::Event;
use serde_json::{Value, json};
use zeromq::SocketSend;

use super::scripted::kernel;
use crate::client::{Client, execute};

fn open(id: &str, target: &str) -> Value {
    json!({"comm_id": id, "target_name": target, "data": {}})
}

fn update(id: &str, code: &str) -> Value {
    json!({"comm_id": id, "data": {"code": code}})
}

async fn types(client: &mut Client, id: &str) -> Vec<String> {
    let messages = client.until_idle(id).await;
    let types = messages.iter().map(|message| message.msg_type().to_owned());
    types.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comm_message_reaches_the_kernel_with_its_buffers_and_its_callback_shows_what_it_does() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    client.run("print on").await;
    let id = client
        .send("comm_open", &open("c1", "jupyter.widget"))
        .await;
    assert_eq!(types(client, &id).await, ["status", "status"]);

    let content = update(
        "c1",
        "print moved\nmessage comm_msg {\"comm_id\": \"c1\", \"data\": {\"v\": 1.50}}\nraise it",
    );
    let (id, frames) = client.message("comm_msg", &content, &json!({}), &[b"\x00\x01", b""]);
    client.shell.send(frames).await.unwrap();
    let answer = client.until_idle(&id).await;
    let types: Vec<_> = answer.iter().map(|message| message.msg_type()).collect();
    assert_eq!(types, ["status", "stream", "comm_msg", "error", "status"]);
    assert_eq!(
        answer[2].raw,
        "{\"comm_id\": \"c1\", \"data\": {\"v\": 1.50}}"
    );
    assert_eq!(answer[2].buffers, [b"\x00\xffraw".as_slice()]);

    let comms = fixture.backend.comms.lock().unwrap();
    assert_eq!(comms[0].msg_type, "comm_open");
    assert_eq!(comms[1].content.get(), content.to_string());
    assert_eq!(comms[1].buffers, [b"\x00\x01".as_slice(), b""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_cell_runs_comms_wait_behind_it_in_order_with_cells() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    client.run("print on").await;
    let first = client.send("execute_request", &execute("wait")).await;
    client.until(&first, "execute_input").await;
    let comm = client.send("comm_msg", &update("c", "print moved")).await;
    let aborted = client.send("execute_request", &execute("print no")).await;
    let closed = client.send("comm_close", &update("c", "")).await;
    let info = client.send("kernel_info_request", &json!({})).await;
    assert_eq!(client.reply().await.parent_id(), info);
    assert!(fixture.backend.comms.lock().unwrap().is_empty());
    client.send_control("interrupt_request", &json!({})).await;
    client.control_reply().await;
    let first = client.answer(&first).await;
    assert_eq!(first.reply.content["ename"], "KeyboardInterrupt");
    // The failed cell takes only cells out of the queue.
    let aborted = client.answer(&aborted).await;
    assert_eq!(aborted.reply.content["ename"], "ExecutionAborted");
    assert_eq!(types(client, &comm).await, ["status", "stream", "status"]);
    assert_eq!(types(client, &closed).await, ["status", "status"]);
    assert_eq!(fixture.backend.comms.lock().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_reaches_the_callback_of_a_widget() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    client.run("print on").await;
    let comm = client.send("comm_msg", &update("c", "wait")).await;
    client.until(&comm, "status").await;
    client.send_control("interrupt_request", &json!({})).await;
    client.control_reply().await;
    assert_eq!(types(client, &comm).await, ["status", "error", "status"]);
    assert_eq!(client.run("print on").await.text("stdout"), "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comm_that_nobody_takes_is_closed_and_messages_to_it_go_nowhere() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    client.run("print on").await;
    let id = client.send("comm_open", &open("c1", "unknown")).await;
    let messages = client.until_idle(&id).await;
    assert_eq!(messages[1].msg_type(), "comm_close");
    assert_eq!(messages[1].content, json!({"comm_id": "c1", "data": {}}));
    for (msg_type, content) in [("comm_msg", update("c1", "panic")), ("comm_msg", json!({}))] {
        let id = client.send(msg_type, &content).await;
        assert_eq!(types(client, &id).await, ["status", "status"]);
    }
    assert_eq!(client.run("print on").await.text("stdout"), "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_session_no_comm_message_is_sent() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let id = client
        .send("comm_open", &open("c1", "jupyter.widget"))
        .await;
    assert_eq!(types(client, &id).await, ["status", "comm_close", "status"]);
    let id = client.send("comm_msg", &update("c1", "print x")).await;
    assert_eq!(types(client, &id).await, ["status", "status"]);
    assert!(fixture.backend.comms.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_session_closes_every_comm_that_was_open_before_the_reply() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    client
        .run(
            "message comm_open {\"comm_id\": \"kernels\", \"target_name\": \"t\", \"data\": {}}\n\
             message comm_open {\"comm_id\": \"gone\", \"target_name\": \"t\", \"data\": {}}\n\
             message comm_close {\"comm_id\": \"gone\", \"data\": {}}",
        )
        .await;
    for (id, target) in [("ours", "t"), ("refused", "unknown"), ("ended", "t")] {
        let id = client.send("comm_open", &open(id, target)).await;
        client.until_idle(&id).await;
    }
    let id = client.send("comm_close", &update("ended", "")).await;
    client.until_idle(&id).await;

    let lost = client.run("print x\nlose").await;
    let expected = ["stream", "error", "comm_close", "comm_close"];
    let outputs = lost.outputs();
    let types: Vec<_> = outputs.iter().map(|message| message.msg_type()).collect();
    assert_eq!(types, expected);
    let closed: Vec<_> = outputs[2..].iter().map(|m| &m.content["comm_id"]).collect();
    assert_eq!(closed, ["kernels", "ours"]);
    assert!(client.run("lose").await.outputs().len() == 1, "once");
}

/// A slider of ipywidgets 7, as its kernel opens it.
const SLIDER: &str = r#"message comm_open {"comm_id": "w", "target_name": "jupyter.widget", "data": {"state": {"_model_module": "@jupyter-widgets/controls", "_model_module_version": "1.5.0", "_model_name": "IntSliderModel", "_view_module": "@jupyter-widgets/controls", "_view_module_version": "1.5.0", "_view_name": "IntSliderView", "description_tooltip": "tip", "value": 1}}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn widgets_of_version_7_are_translated_from_cells_threads_and_callbacks_and_back() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let opened = client.run(&format!("remember\n{SLIDER}")).await;
    let opened = opened.outputs()[0].clone();
    let state = &opened.content["data"]["state"];
    assert_eq!(state["_model_module_version"], "2.0.0");
    assert_eq!(state["tooltip"], "tip");

    let back = json!({"comm_id": "w", "data": {"method": "update", "state": {"tooltip": "new"}, "buffer_paths": [],
        "code": "message comm_msg {\"comm_id\": \"w\", \"data\": {\"method\": \"update\", \
                 \"state\": {\"description_tooltip\": \"third\"}, \"buffer_paths\": []}}"}});
    let id = client.send("comm_msg", &back).await;
    let callback = client.until(&id, "comm_msg").await;
    assert_eq!(callback.content["data"]["state"]["tooltip"], "third");
    client.until_idle(&id).await;
    let sent = fixture.backend.comms.lock().unwrap()[0].content.to_string();
    let sent: Value = serde_json::from_str(&sent).unwrap();
    assert_eq!(sent["data"]["state"]["description_tooltip"], "new");

    let content = json!({"comm_id": "w", "data": {"method": "update", "state": {"description_tooltip": "late"}, "buffer_paths": []}});
    let late = super::scripted::message("comm_msg", &content.to_string(), Vec::new());
    fixture.backend.later(Event::Message(late)).await;
    let late = fixture.client.until(opened.parent_id(), "comm_msg").await;
    assert_eq!(late.content["data"]["state"]["tooltip"], "late");
}

#[tokio::test(flavor = "multi_thread")]
async fn widgets_pass_untouched_to_vs_code() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let mut start_up = execute("import ipywidgets as _VSCODE_ipywidgets");
    start_up["store_history"] = false.into();
    client.ask("execute_request", &start_up).await;
    let opened = client.run(SLIDER).await;
    let (_, content) = SLIDER.split_once("comm_open ").unwrap();
    assert_eq!(opened.outputs()[0].raw, content);
}
