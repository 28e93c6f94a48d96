//! What the quirks do to a WebSocket and to the session that it belongs to.

use std::time::Duration;

use futures_util::SinkExt as _;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::lab::{Lab, eventually, fresh, limited};
use super::socket::{Opening, V1, attach, kernel_of, printed, refused};

#[tokio::test]
async fn a_blocked_companion_is_refused_and_counted() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["companion=blocked"]).await;
        let kernel = kernel_of(&lab, &fresh(&runtime)).await;
        let connection = lab.connection(&runtime).await;
        let opening = Opening::default();
        assert_eq!(refused(opening.open(&connection, &kernel).await), 403);
        let counters = lab.counters();
        assert_eq!((counters.blocked, counters.websockets), (1, 0));
        // Files are still served.
        lab.put_file(&runtime, "content/a", "b").await;
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_cut_connection_ends_after_its_messages_and_the_next_one_has_as_many() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["companion=cut:20"]).await;
        let (session, first) = attach(&lab, &runtime, None).await;
        let connection = lab.connection(&runtime).await;
        let kernel = kernel_of(&lab, &session).await;
        let second = Opening {
            protocol: Some(V1),
            ..Opening::default()
        };
        let second = second.open(&connection, &kernel).await.unwrap();
        let mut seen = Vec::new();
        for mut socket in [first, second] {
            socket.execute("for i in range(100): display(i)").await;
            let mut heard = Vec::new();
            while let Some(message) = socket.next().await {
                heard.push(message);
            }
            assert!(!socket.closed_properly);
            let iopub = heard.iter().filter(|message| message.channel == "iopub");
            seen.push(iopub.count());
        }
        assert_eq!(seen, [20, 20]);
        assert_eq!(lab.counters().cut, 2);
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn swallowed_messages_are_those_of_iopub_after_the_first_ones() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["companion=swallow:20"]).await;
        for protocol in [None, Some(V1)] {
            let before = lab.counters().swallowed;
            let (_, mut socket) = attach(&lab, &runtime, protocol).await;
            let id = socket.execute("for i in range(100): display(i)").await;
            let (mut iopub, mut replied) = (0, false);
            while iopub < 20 || !replied {
                let message = socket.next().await.unwrap();
                iopub += u32::from(message.channel == "iopub");
                replied |= message.channel == "shell" && message.parent == id;
            }
            eventually("the rest is swallowed", async || {
                lab.counters().swallowed >= before + 80
            })
            .await;
            // Other channels still pass.
            let id = socket
                .request("control", "kernel_info_request", json!({}))
                .await;
            let answer = socket.next().await.unwrap();
            assert_eq!(
                (answer.parent, answer.kind.as_str()),
                (id, "kernel_info_reply")
            );
        }
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_stalled_connection_is_open_and_says_nothing() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["companion=stall:20"]).await;
        let (_, mut socket) = attach(&lab, &runtime, None).await;
        socket.execute("for i in range(100): display(i)").await;
        let mut iopub = 0;
        while iopub < 20 {
            iopub += u32::from(socket.next().await.unwrap().channel == "iopub");
        }
        eventually("it stalls", async || lab.counters().stalled == 1).await;
        socket.stream.send(Message::Ping("?".into())).await.unwrap();
        assert!(socket.is_silent(Duration::from_millis(700)).await);
        // It is the connection that is stuck, not the kernel.
        let result = lab.execute(&fresh(&runtime), "1 + 1").await.unwrap();
        assert_eq!(result["result"], "2");
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn one_protocol_is_spoken_where_the_quirk_says_so() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["channels=default"]).await;
        let kernel = kernel_of(&lab, &fresh(&runtime)).await;
        let connection = lab.connection(&runtime).await;
        // As a client that takes the protocol from the answer.
        let response = lab
            .http
            .get(format!("{}/api/kernels/{kernel}/channels", connection.url))
            .header("X-Colab-Runtime-Proxy-Token", &connection.token)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", V1)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 101);
        assert!(response.headers().get("sec-websocket-protocol").is_none());
        let mut socket = Opening::default().open(&connection, &kernel).await.unwrap();
        assert_eq!(printed(&socket.run("print(1)").await), "1\n");
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn the_servers_limits_hold_for_websockets_unless_lifted_and_never_for_calls() {
    limited(async {
        // More than a MB/s allows, in as few messages as possible.
        let code = "import sys, time\nfor i in range(30): print('x' * 300_000, flush=True)";
        for (quirk, all) in [("limits=on", false), ("limits=off", true)] {
            let (lab, runtime) = Lab::with_runtime(&[quirk]).await;
            let (session, mut socket) = attach(&lab, &runtime, None).await;
            let heard = socket.run(code).await;
            assert_eq!(printed(&heard).matches('x').count() == 9_000_000, all);
            let result = lab.execute(&session, code).await.unwrap();
            let text = result["stdout"].as_str().unwrap();
            assert_eq!(text.matches('x').count(), 9_000_000);
            lab.shutdown().await;
        }
    })
    .await;
}

/// What a WebSocket hears of a call's request: its code and its parent's session.
async fn heard_of(lab: &Lab, runtime: &str, session: &str, codes: &[&str]) -> Vec<(Value, Value)> {
    let kernel = kernel_of(lab, session).await;
    let connection = lab.connection(runtime).await;
    let mut socket = Opening::default().open(&connection, &kernel).await.unwrap();
    // The server answers when it has heard the kernel on iopub itself: nothing is missed from then on.
    let asked = socket
        .request("shell", "kernel_info_request", json!({}))
        .await;
    socket.until_done(&asked).await;
    let mut heard = Vec::new();
    for code in codes {
        lab.execute(session, code).await.unwrap();
        let input = socket.until("execute_input").await;
        heard.push((input.content["code"].clone(), input.session));
    }
    heard
}

#[tokio::test]
async fn rewritten_code_contains_the_callers_and_means_the_same() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["code=rewritten"]).await;
        let session = fresh(&runtime);
        let codes = ["x = 20\nx + 1", "  y = 1\n  y;", "%%bash\necho hi"];
        for (code, (shown, _)) in codes
            .iter()
            .zip(heard_of(&lab, &runtime, &session, &codes).await)
        {
            let shown = shown.as_str().unwrap();
            assert!(shown != *code && shown.contains(code), "{shown}");
        }
        let result = async |code| lab.execute(&session, code).await.unwrap();
        assert_eq!(result(codes[0]).await["result"], "21");
        assert!(result(codes[1]).await.get("result").is_none());
        assert_eq!(result(codes[2]).await["stdout"], "hi\n");
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn the_services_session_is_one_for_all_calls_or_another_for_each() {
    limited(async {
        for (quirk, same) in [
            ("service-session=constant", true),
            ("service-session=fresh", false),
        ] {
            let (lab, runtime) = Lab::with_runtime(&[quirk]).await;
            let session = fresh(&runtime);
            let heard = heard_of(&lab, &runtime, &session, &["1", "2"]).await;
            assert_eq!(heard[0].1 == heard[1].1, same);
            lab.shutdown().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_unknown_message_under_a_call_fails_it_where_the_quirk_says_so() {
    limited(async {
        let send = |parent: &str| {
            format!(
                "k = get_ipython().kernel\nk.session.send(k.iopub_socket, 'mine', {{}}, parent={parent}, metadata={{'ck': {{'n': 1}}}})\n1"
            )
        };
        let (own, other) = (send("k.get_parent('shell')"), send("{}"));
        let (lab, runtime) = Lab::with_runtime(&[]).await;
        let result = lab.execute(&fresh(&runtime), &own).await.unwrap();
        assert_eq!(result["result"], "1");
        lab.shutdown().await;
        let (lab, runtime) = Lab::with_runtime(&["unknown-iopub=fail"]).await;
        let session = fresh(&runtime);
        let result = lab.execute(&session, &other).await.unwrap();
        assert_eq!(result["result"], "1");
        let failure = lab.execute(&session, &own).await.unwrap_err();
        assert_eq!(failure.status, "INTERNAL");
        let known = "display(1, display_id='d').update(2)\n!echo hi";
        let result = lab.execute(&session, known).await.unwrap();
        assert_eq!(result["stdout"], "hi\n");
        assert_eq!(lab.counters().unknown_iopub, 1);
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_session_shows_in_the_servers_listing_where_the_quirk_says() {
    limited(async {
        for (quirk, shown) in [
            ("sessions=both", (true, true)),
            ("sessions=name", (true, false)),
            ("sessions=path", (false, true)),
            ("sessions=hidden", (false, false)),
        ] {
            let (lab, runtime) = Lab::with_runtime(&[quirk]).await;
            for session in ["ck-one", "ck-two"] {
                let name = format!("{runtime}/sessions/{session}");
                let result = lab.execute(&name, "import os; os.getcwd()").await.unwrap();
                assert!(
                    result["result"]
                        .as_str()
                        .unwrap()
                        .ends_with("/root/content'")
                );
                let connection = lab.connection(&runtime).await;
                let listed: Value = lab
                    .http
                    .get(format!("{}/api/sessions", connection.url))
                    .header("X-Colab-Runtime-Proxy-Token", &connection.token)
                    .send()
                    .await
                    .unwrap()
                    .json()
                    .await
                    .unwrap();
                let listed = listed.as_array().unwrap();
                let has = |field: &str| {
                    let mut texts = listed.iter().map(|entry| entry[field].as_str().unwrap());
                    texts.any(|text| text.contains(session))
                };
                assert_eq!((has("name"), has("path")), shown, "{quirk}");
                lab.close(&name).await;
            }
            lab.shutdown().await;
        }
    })
    .await;
}
