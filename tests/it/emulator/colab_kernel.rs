//! What Colab's own kernel does differently from IPython's, as a client of its channels sees it.

use serde_json::{Value, json};

use super::lab::{Lab, limited, shared};
use super::socket::{Heard, Socket, attach, printed};

/// The question that a helper asks the web page.
async fn asked(socket: &mut Socket, kind: &str) -> Heard {
    loop {
        let question = socket.until("colab_request").await;
        assert_eq!(question.channel, "iopub");
        if question.metadata["colab_request_type"] == kind {
            return question;
        }
    }
}

async fn answer(socket: &mut Socket, question: &Heard, key: &str, value: Value) {
    let mut reply =
        json!({"type": "colab_reply", "colab_msg_id": question.metadata["colab_msg_id"]});
    assert!(reply["colab_msg_id"].is_i64());
    reply[key] = value;
    let content = json!({"value": reply});
    socket.request("stdin", "input_reply", content).await;
}

/// How a cell ended.
async fn ended(socket: &mut Socket, id: &str) -> Vec<Heard> {
    let mut heard = socket.until_done(id).await;
    heard.retain(|message| message.parent == id);
    heard
}

fn reply(heard: &[Heard]) -> &Value {
    let reply = heard.iter().find(|message| message.kind == "execute_reply");
    &reply.unwrap().content
}

#[tokio::test]
async fn inspection_answers_only_json() {
    limited(async {
        let (lab, runtime) = shared().await;
        let (session, mut socket) = attach(lab, runtime, None).await;
        socket.run("def f(x, y=object()):\n    'Says f.'").await;
        let content = json!({"code": "f", "cursor_pos": 1, "detail_level": 0});
        let id = socket.request("shell", "inspect_request", content).await;
        let heard = socket.until_done(&id).await;
        let found = &heard
            .iter()
            .find(|message| message.kind == "inspect_reply")
            .unwrap()
            .content;
        assert_eq!(found["found"], true);
        let data = found["data"].as_object().unwrap();
        assert_eq!(data.keys().collect::<Vec<_>>(), ["application/json"]);
        let info = &data["application/json"];
        assert_eq!(
            (&info["docstring"], &info["type_name"]),
            (&json!("Says f."), &json!("function"))
        );
        let content = json!({"code": "nothing", "cursor_pos": 3, "detail_level": 0});
        let id = socket.request("shell", "inspect_request", content).await;
        let heard = socket.until_done(&id).await;
        let missing = &heard
            .iter()
            .find(|message| message.kind == "inspect_reply")
            .unwrap()
            .content;
        assert_eq!(
            (&missing["found"], &missing["data"]),
            (&json!(false), &json!({}))
        );
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn a_completion_that_fails_answers_with_a_string() {
    limited(async {
        let (lab, runtime) = shared().await;
        let (session, mut socket) = attach(lab, runtime, None).await;
        let complete = async |socket: &mut Socket| {
            let content = json!({"code": "pri", "cursor_pos": 3});
            let id = socket.request("shell", "complete_request", content).await;
            let mut heard = socket.until_done(&id).await;
            heard.retain(|message| message.kind == "complete_reply");
            heard.pop().unwrap().content
        };
        let good = complete(&mut socket).await;
        assert!(
            good["matches"]
                .as_array()
                .unwrap()
                .contains(&json!("print"))
        );
        assert!(good["metadata"]["_jupyter_types_experimental"].is_array());
        socket
            .run("def broken(*a): raise ValueError\nget_ipython().kernel.do_complete = broken")
            .await;
        assert_eq!(complete(&mut socket).await, json!(r#"{"status":"ok"}"#));
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn secrets_are_asked_of_the_page() {
    limited(async {
        let (lab, runtime) = shared().await;
        let (session, mut socket) = attach(lab, runtime, None).await;
        let code = "from google.colab import userdata\nprint(userdata.get('HF_TOKEN'))";
        for (key, value, outcome) in [
            (
                "data",
                json!({"exists": true, "access": true, "payload": "hf"}),
                "",
            ),
            (
                "data",
                json!({"exists": false, "access": false, "payload": ""}),
                "SecretNotFoundError",
            ),
            (
                "data",
                json!({"exists": true, "access": false, "payload": ""}),
                "NotebookAccessError",
            ),
            ("error", json!("nobody is here"), "MessageError"),
        ] {
            let id = socket.execute(code).await;
            let question = asked(&mut socket, "GetSecret").await;
            assert_eq!(
                (&question.parent, &question.content),
                (&id, &json!({"request": {"key": "HF_TOKEN"}}))
            );
            // What is no answer to it does not count.
            let stray = json!({"value": {"type": "colab_reply", "colab_msg_id": 0, "data": {}}});
            socket.request("stdin", "input_reply", stray).await;
            answer(&mut socket, &question, key, value.clone()).await;
            let heard = ended(&mut socket, &id).await;
            if outcome.is_empty() {
                assert_eq!(printed(&heard), "hf\n");
            } else {
                assert_eq!(reply(&heard)["ename"], outcome);
            }
            if key == "error" {
                assert_eq!(reply(&heard)["evalue"], value);
            }
        }
        let began = std::time::Instant::now();
        let heard = socket.run(code).await;
        assert_eq!(reply(&heard)["ename"], "TimeoutException");
        assert!((9..15).contains(&began.elapsed().as_secs()));
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn javascript_uploads_and_credentials_are_asked_of_the_page_and_a_drive_is_not() {
    limited(async {
        let (lab, runtime) = shared().await;
        let (session, mut socket) = attach(lab, runtime, None).await;
        for (code, kind, request) in [
            (
                "from google.colab import output\noutput.eval_js('1 + 1')",
                "cell_javascript_eval",
                json!({"script": "1 + 1"}),
            ),
            (
                "from google.colab import auth\nauth.authenticate_user()",
                "request_auth",
                json!({"authType": "auth_user_ephemeral"}),
            ),
        ] {
            let id = socket.execute(code).await;
            let question = asked(&mut socket, kind).await;
            assert_eq!(question.content["request"], request);
            answer(&mut socket, &question, "data", json!(2)).await;
            assert_eq!(reply(&ended(&mut socket, &id).await)["status"], "ok");
            let id = socket.execute(code).await;
            let question = asked(&mut socket, kind).await;
            answer(&mut socket, &question, "error", json!("use something else")).await;
            let heard = ended(&mut socket, &id).await;
            assert_eq!(reply(&heard)["evalue"], "use something else");
        }

        let id = socket
            .execute("from google.colab import files\nfiles.upload()")
            .await;
        let shown = socket.until("display_data").await;
        assert!(shown.content["data"]["text/html"].is_string());
        let question = asked(&mut socket, "cell_javascript_eval").await;
        answer(
            &mut socket,
            &question,
            "data",
            json!({"action": "append", "file": "x", "data": "aGk="}),
        )
        .await;
        let question = asked(&mut socket, "cell_javascript_eval").await;
        answer(
            &mut socket,
            &question,
            "data",
            json!({"action": "complete"}),
        )
        .await;
        let heard = ended(&mut socket, &id).await;
        assert_eq!(reply(&heard)["status"], "ok");
        let heard = socket.run("files.download('x')").await;
        let shown = heard
            .iter()
            .filter(|message| message.kind == "display_data");
        assert_eq!(shown.count(), 2);

        let heard = socket
            .run("from google.colab import drive\ndrive.mount('/content/drive')")
            .await;
        assert_eq!(reply(&heard)["ename"], "NotImplementedError");
        // An endless question can be interrupted.
        let id = socket.execute("output.eval_js('never')").await;
        asked(&mut socket, "cell_javascript_eval").await;
        socket
            .request("control", "interrupt_request", json!({}))
            .await;
        assert_eq!(
            reply(&ended(&mut socket, &id).await)["ename"],
            "KeyboardInterrupt"
        );
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn shell_commands_announce_their_input_and_take_it() {
    limited(async {
        let (lab, runtime) = shared().await;
        let (session, mut socket) = attach(lab, runtime, None).await;
        let heard = socket
            .run("!echo one; echo two >&2; exit 3\nprint(_exit_code)")
            .await;
        assert_eq!(printed(&heard), "one\ntwo\n3\n");
        let questions: Vec<_> = heard
            .iter()
            .filter(|message| message.kind == "colab_request")
            .collect();
        let kinds: Vec<_> = questions
            .iter()
            .map(|message| message.metadata["colab_request_type"].as_str().unwrap())
            .collect();
        assert_eq!(
            kinds,
            [
                "cell_display_stdin",
                "cell_update_stdin",
                "cell_remove_stdin"
            ]
        );
        assert!(
            questions
                .iter()
                .all(|message| message.metadata.get("colab_msg_id").is_none())
        );
        assert_eq!(
            printed(&socket.run("x = !echo a; echo b\nprint(x)").await),
            "['a', 'b']\n"
        );

        let id = socket
            .execute("!stty -echo; read line; echo got $line")
            .await;
        asked(&mut socket, "cell_update_stdin").await;
        socket
            .request("stdin", "input_reply", json!({"value": "it\n"}))
            .await;
        assert!(printed(&ended(&mut socket, &id).await).ends_with("got it\n"));
        let id = socket.execute("!sleep 100").await;
        asked(&mut socket, "cell_update_stdin").await;
        socket
            .request("control", "interrupt_request", json!({}))
            .await;
        assert!(printed(&ended(&mut socket, &id).await).contains("^C"));

        // The service is not disturbed.
        let result = lab.execute(&session, "!echo hi").await.unwrap();
        assert_eq!(result["stdout"], "hi\n");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn input_works_for_a_client_of_the_channels_and_not_for_a_call() {
    limited(async {
        let (lab, runtime) = shared().await;
        let (session, mut socket) = attach(lab, runtime, None).await;
        let id = socket.execute("print(input('who? '))").await;
        let prompt = socket.until("input_request").await;
        assert_eq!(
            (prompt.channel.as_str(), &prompt.content["prompt"]),
            ("stdin", &json!("who? "))
        );
        socket
            .request("stdin", "input_reply", json!({"value": "me"}))
            .await;
        assert_eq!(printed(&ended(&mut socket, &id).await), "me\n");
        let result = lab.execute(&session, "input()").await.unwrap();
        assert_eq!(result["executionError"]["name"], "StdinNotImplementedError");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn the_newest_environment_has_a_plain_kernel() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["kernels=newest"]).await;
        let (session, mut socket) = attach(&lab, &runtime, None).await;
        let heard = socket.run("import google.colab").await;
        assert_eq!(reply(&heard)["ename"], "ModuleNotFoundError");
        let content = json!({"code": "print", "cursor_pos": 3, "detail_level": 0});
        let id = socket.request("shell", "inspect_request", content).await;
        let heard = socket.until_done(&id).await;
        let found = heard
            .iter()
            .find(|message| message.kind == "inspect_reply")
            .unwrap();
        assert!(found.content["data"]["text/plain"].is_string());
        lab.close(&session).await;
        lab.shutdown().await;
    })
    .await;
}
