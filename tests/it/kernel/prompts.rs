//! `input()`: who is asked, what counts as an answer, and what does not.

use serde_json::{Value, json};

use super::scripted::kernel;
use crate::client::execute;

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_goes_to_the_client_of_the_cell_behind_its_text_and_its_answer_to_the_code() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let code = "print before\nask name?\nsecret word?";
    let cell = client.send("execute_request", &execute(code)).await;
    let name = client.prompt().await;
    assert_eq!(name.content, json!({"prompt": "name?", "password": false}));
    assert_eq!(name.parent_id(), cell);
    client.answer_prompt("Ada", &name.header).await;
    let word = client.prompt().await;
    assert_eq!(word.content, json!({"prompt": "word?", "password": true}));
    assert_ne!(word.header["msg_id"], name.header["msg_id"]);
    // jupyter_client's own replies have no parent.
    client.answer_prompt("xyzzy", &json!({})).await;
    let answer = client.answer(&cell).await;
    assert_eq!(answer.reply.content["status"], "ok");
    assert_eq!(answer.text("stdout"), "before\ngot Ada\ngot xyzzy\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_client_is_neither_asked_nor_listened_to() {
    let mut fixture = kernel().await;
    let mut other = crate::client::Client::connect(&fixture.file).await;
    let client = &mut fixture.client;
    let cell = client.send("execute_request", &execute("ask ?")).await;
    let prompt = client.prompt().await;
    other.answer_prompt("theirs", &prompt.header).await;
    // Nothing tells when that has been read, so it must not matter: it is sent first, and control is asked in between.
    other.send_control("kernel_info_request", &json!({})).await;
    other.control_reply().await;
    client.answer_prompt("ours", &prompt.header).await;
    assert_eq!(client.answer(&cell).await.text("stdout"), "got ours\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_d_is_the_end_of_the_file() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let cell = client.send("execute_request", &execute("ask ?")).await;
    let prompt = client.prompt().await;
    client.answer_prompt("\u{4}", &prompt.header).await;
    let answer = client.answer(&cell).await;
    assert_eq!(answer.reply.content["ename"], "EOFError");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_end_that_allows_no_prompt_gets_none() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let mut content = execute("ask ?");
    content["allow_stdin"] = false.into();
    let answer = client.ask("execute_request", &content).await;
    let error = &answer.reply.content;
    assert_eq!(error["ename"], "StdinNotImplementedError");
    assert!(
        error["evalue"]
            .as_str()
            .unwrap()
            .contains("give the value in the code")
    );
    // The next prompt is the first that this client sees.
    let cell = client.send("execute_request", &execute("ask first?")).await;
    let prompt = client.prompt().await;
    assert_eq!(prompt.content["prompt"], "first?");
    client.answer_prompt("1", &prompt.header).await;
    client.answer(&cell).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_withdraws_the_prompt_and_a_late_answer_does_not_reach_the_next_one() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    for late_parent in [true, false] {
        let cell = client.send("execute_request", &execute("ask first?")).await;
        let first = client.prompt().await;
        client.send_control("interrupt_request", &json!({})).await;
        client.control_reply().await;
        let answer = client.answer(&cell).await;
        assert_eq!(answer.reply.content["ename"], "KeyboardInterrupt");
        assert_eq!(answer.types().last(), Some(&"status"));

        let none = json!({});
        let parent: &Value = if late_parent { &first.header } else { &none };
        if !late_parent {
            // Lies in the socket before the next prompt is shown, as a double click leaves it.
            client.answer_prompt("late", parent).await;
            client.answer_prompt("later", parent).await;
            client.send_control("kernel_info_request", &none).await;
            client.control_reply().await;
        }
        let cell = client
            .send("execute_request", &execute("print x\nask second?"))
            .await;
        let second = client.prompt().await;
        assert_eq!(second.content["prompt"], "second?");
        if late_parent {
            client.answer_prompt("late", parent).await;
        }
        client.answer_prompt("right", &second.header).await;
        assert_eq!(client.answer(&cell).await.text("stdout"), "x\ngot right\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_prompt_blocks_neither_control_nor_what_else_comes_on_stdin() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let cell = client.send("execute_request", &execute("ask ?")).await;
    let prompt = client.prompt().await;
    for _ in 0..20 {
        let (_, noise) = client.message("no_reply", &json!({}), &prompt.header, &[]);
        zeromq::SocketSend::send(&mut client.stdin, noise)
            .await
            .unwrap();
    }
    client.send_control("kernel_info_request", &json!({})).await;
    assert_eq!(client.control_reply().await.msg_type(), "kernel_info_reply");
    let info = client.send("kernel_info_request", &json!({})).await;
    assert_eq!(client.reply().await.parent_id(), info);
    client.answer_prompt("1", &prompt.header).await;
    assert_eq!(client.answer(&cell).await.text("stdout"), "got 1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_that_are_open_together_are_shown_one_after_the_other() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let code = "forget first?\nask second?";
    let cell = client.send("execute_request", &execute(code)).await;
    for expected in ["first?", "second?"] {
        let prompt = client.prompt().await;
        assert_eq!(prompt.content["prompt"], expected);
        client.answer_prompt(expected, &prompt.header).await;
    }
    let answer = client.answer(&cell).await;
    assert_eq!(answer.text("stdout"), "got second?\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_without_a_value_is_an_empty_line() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let cell = client.send("execute_request", &execute("ask ?")).await;
    let prompt = client.prompt().await;
    let (_, reply) = client.message("input_reply", &json!({}), &prompt.header, &[]);
    zeromq::SocketSend::send(&mut client.stdin, reply)
        .await
        .unwrap();
    assert_eq!(client.answer(&cell).await.text("stdout"), "got \n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_of_a_widget_cannot_ask() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    client.run("print on").await;
    let content = json!({"comm_id": "c", "data": {"code": "ask ?"}});
    let id = client.send("comm_msg", &content).await;
    let error = client.until(&id, "error").await;
    assert_eq!(error.content["ename"], "StdinNotImplementedError");
    client.until_idle(&id).await;
}
