//! What cells and their threads show: displays, updates, clearing, messages of any type, and the order of it all.

use colab_kernel::backend::{Event, InputAnswer};
use serde_json::json;
use tokio::time::timeout;

use super::scripted::{kernel, stream};
use crate::client::LIMIT;

#[tokio::test(flavor = "multi_thread")]
async fn displays_updates_and_clearing_are_published_in_order_behind_the_text_before_them() {
    let mut fixture = kernel().await;
    let answer = fixture
        .client
        .run("print a\nprint b\ndisplay first\nprint c\nupdate second\nclear wait\nclear now\nresult r")
        .await;
    let outputs = answer.outputs();
    // The first text goes out at once, the second is gathered until the display.
    let types: Vec<_> = outputs.iter().map(|message| message.msg_type()).collect();
    let expected = [
        "stream",
        "stream",
        "display_data",
        "stream",
        "update_display_data",
        "clear_output",
        "clear_output",
        "execute_result",
    ];
    assert_eq!(types, expected);
    assert_eq!(
        outputs[2].content,
        json!({"data": {"text/plain": "first"}, "metadata": {"isolated": true}, "transient": {"display_id": "d"}})
    );
    assert_eq!(outputs[4].content["data"]["text/plain"], "second");
    assert_eq!(outputs[4].content["transient"]["display_id"], "d");
    assert_eq!(outputs[5].content, json!({"wait": true}));
    assert_eq!(outputs[6].content, json!({"wait": false}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_is_cleared_once_before_the_cell_clears_its_own_output() {
    let mut fixture = kernel().await;
    let answer = fixture
        .client
        .run("notice one\nclear wait\nprint x\nnotice two\nprint y")
        .await;
    let outputs = answer.outputs();
    let clears: Vec<_> = outputs
        .iter()
        .filter(|message| message.msg_type() == "clear_output")
        .map(|message| message.content["wait"] == true)
        .collect();
    assert_eq!(clears, [false, true]);
    assert_eq!(answer.text("stderr"), "one\n");
    assert_eq!(answer.text("stdout"), "x\ny\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_any_type_passes_with_its_bytes_metadata_and_buffers() {
    let mut fixture = kernel().await;
    let content = r#"{ "n": 1.00, "big": 123456789012345678901234567890 }"#;
    let answer = fixture
        .client
        .run(&format!("print a\nprint b\nmessage some_type {content}"))
        .await;
    let outputs = answer.outputs();
    let message = outputs.last().unwrap();
    assert_eq!(message.msg_type(), "some_type");
    assert_eq!(message.raw, content);
    assert_eq!(message.metadata, json!({"from": "the kernel"}));
    assert_eq!(message.buffers, [b"\x00\xffraw".as_slice()]);
    assert_eq!(answer.text("stdout"), "a\nb\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_cannot_say_what_only_the_kernel_says() {
    let mut fixture = kernel().await;
    let idle = r#"message status {"execution_state": "idle"}"#;
    let answer = fixture.client.run(&format!("{idle}\nprint on")).await;
    assert_eq!(answer.text("stdout"), "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_cells_thread_prints_appears_there_and_in_its_place() {
    let mut fixture = kernel().await;
    let client = &mut fixture.client;
    let first = client.run("remember\nprint first").await;
    let origin = first.reply.parent_id().to_owned();
    let code = "print a\nprint b\nthread t1\nthread t2\nprint c\nthread t3\nresult r";
    let second = client
        .send("execute_request", &crate::client::execute(code))
        .await;
    let mut text = Vec::new();
    loop {
        let message = client.next_iopub().await;
        let own = message.parent_id() == second;
        assert!(own || message.parent_id() == origin);
        match message.msg_type() {
            "stream" => text.push((own, message.content["text"].as_str().unwrap().to_owned())),
            "execute_result" => break,
            _ => {}
        }
    }
    // As a reader sees it: runs of one cell's text.
    let mut runs: Vec<(bool, String)> = Vec::new();
    for (own, piece) in text {
        match runs.last_mut() {
            Some((last, run)) if *last == own => run.push_str(&piece),
            _ => runs.push((own, piece)),
        }
    }
    let expected = [
        (true, "a\nb\n"),
        (false, "t1\nt2\n"),
        (true, "c\n"),
        (false, "t3\n"),
    ];
    assert_eq!(runs, expected.map(|(own, run)| (own, run.to_owned())));
    assert_eq!(client.reply().await.parent_id(), second);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_threads_do_after_idle_is_published_without_busy_under_their_cell() {
    let mut fixture = kernel().await;
    let first = fixture.client.run("remember\nprint first").await;
    let origin = first.reply.parent_id().to_owned();
    let backend = &fixture.backend;
    backend.background().send(stream("of nobody")).await;
    backend.later(stream("late\n")).await;
    backend
        .later(Event::UpdateDisplayData {
            data: json!({"application/vnd.x": {"a": 1}})
                .as_object()
                .unwrap()
                .clone(),
            metadata: Default::default(),
            transient: json!({"display_id": "d"}).as_object().unwrap().clone(),
        })
        .await;
    let text = fixture.client.next_iopub().await;
    assert_eq!((text.msg_type(), text.parent_id()), ("stream", &*origin));
    assert_eq!(text.content["text"], "late\n");
    let update = fixture.client.next_iopub().await;
    assert_eq!(update.msg_type(), "update_display_data");
    assert_eq!(update.parent_id(), origin);
    assert_eq!(
        update.content["data"],
        json!({"application/vnd.x": {"a": 1}})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn gathered_text_of_threads_is_published_before_a_settled_backend_goes_on() {
    let mut fixture = kernel().await;
    let first = fixture.client.run("remember\nprint first").await;
    let origin = first.reply.parent_id().to_owned();
    for round in 0..20 {
        let client = &mut fixture.client;
        let code = format!("before two{round}\nprint own");
        let second = client
            .send("execute_request", &crate::client::execute(&code))
            .await;
        let mut late = String::new();
        loop {
            let message = client.next_iopub().await;
            if message.msg_type() != "stream" {
                continue;
            }
            if message.parent_id() == second {
                break;
            }
            assert_eq!(message.parent_id(), origin);
            late += message.content["text"].as_str().unwrap();
        }
        assert_eq!(late, format!("one two{round}"));
        client.reply().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_of_a_thread_is_refused_while_no_cell_runs() {
    let mut fixture = kernel().await;
    fixture.client.run("remember").await;
    let (answer, mut answers) = colab_kernel::backend::Answerer::new();
    let prompt = Event::InputRequest {
        prompt: "?".into(),
        password: false,
        answer,
    };
    fixture.backend.later(prompt).await;
    let answer = timeout(LIMIT, answers.recv()).await.unwrap();
    assert!(matches!(answer, Some(InputAnswer::Refused(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_pass_as_they_are() {
    let mut fixture = kernel().await;
    let answer = fixture.client.run("print x").await;
    assert_eq!(
        answer.reply.content["payload"],
        json!([{"source": "page", "data": {"text/plain": "doc"}, "start": 0}])
    );
}
