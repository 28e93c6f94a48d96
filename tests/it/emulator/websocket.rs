//! The proxy in front of a runtime: WebSockets.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::lab::{Lab, fresh, limited, shared};
use super::socket::{Opening, V1, attach, kernel_of, printed, refused};

#[tokio::test]
async fn a_kernel_is_reached_in_both_protocols_with_the_token_in_header_or_query() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        lab.execute(&session, "x = 6").await.unwrap();
        let connection = lab.connection(runtime).await;
        let kernel = kernel_of(lab, &session).await;
        let token = format!("colab-runtime-proxy-token={}", connection.token);
        for protocol in [None, Some(V1)] {
            for query in [None, Some(token.as_str())] {
                let opening = Opening {
                    protocol,
                    query,
                    ..Opening::default()
                };
                let mut socket = opening.open(&connection, &kernel).await.unwrap();
                assert_eq!(socket.protocol.as_deref(), protocol);
                let heard = socket.run("print(x * 7)").await;
                assert_eq!(printed(&heard), "42\n");
                assert!(heard.iter().any(|message| message.kind == "execute_input"));
            }
        }
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn an_upgrade_without_a_good_token_is_404_and_one_from_a_web_page_403() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let connection = lab.connection(runtime).await;
        let kernel = kernel_of(lab, &session).await;
        for query in ["x=y", "colab-runtime-proxy-token=wrong"] {
            let opening = Opening {
                query: Some(query),
                ..Opening::default()
            };
            assert_eq!(refused(opening.open(&connection, &kernel).await), 404);
        }
        let foreign = Opening {
            origin: Some("https://example.org"),
            ..Opening::default()
        };
        assert_eq!(refused(foreign.open(&connection, &kernel).await), 403);
        let colab = Opening {
            origin: Some("https://colab.research.google.com"),
            ..Opening::default()
        };
        colab.open(&connection, &kernel).await.unwrap();
        // What the server itself refuses keeps its status.
        let nobody = Opening::default();
        assert_eq!(
            refused(nobody.open(&connection, "no-such-kernel").await),
            404
        );
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn large_frames_pass_both_ways() {
    limited(async {
        let (lab, runtime) = shared().await;
        let (session, mut socket) = attach(lab, runtime, Some(V1)).await;
        // Through tornado's own limit of 10 MiB on what a client sends no larger frame comes.
        let sent = vec![7_u8; 9 << 20];
        let code = "\
import sys
kernel = get_ipython().kernel
def opened(comm, message):
    comm.send({'sum': sum(message['buffers'][0][::1 << 20])}, buffers=[bytes(80 << 20)])
kernel.comm_manager.register_target('big', opened)";
        socket.run(code).await;
        let content = json!({"comm_id": "c", "target_name": "big", "data": {}});
        socket.send("shell", "comm_open", content, &[&sent]).await;
        let answer = socket.until("comm_msg").await;
        assert_eq!(answer.content["data"]["sum"], 63);
        assert_eq!(answer.buffers[0].len(), 80 << 20);
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn pings_are_answered_by_the_server_and_close_codes_arrive() {
    limited(async {
        let (lab, runtime) = shared().await;
        let (session, mut socket) = attach(lab, runtime, None).await;
        socket
            .stream
            .send(Message::Ping("are you there".into()))
            .await
            .unwrap();
        loop {
            if let Message::Pong(payload) = socket.stream.next().await.unwrap().unwrap() {
                assert_eq!(payload, "are you there");
                break;
            }
        }
        let goodbye = CloseFrame {
            code: CloseCode::Library(4001),
            reason: "enough".into(),
        };
        socket.stream.close(Some(goodbye)).await.unwrap();
        let echoed = loop {
            match socket.stream.next().await.unwrap().unwrap() {
                Message::Close(frame) => break frame.unwrap(),
                _ => continue,
            }
        };
        assert_eq!(echoed.code, CloseCode::Library(4001));
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_runtime_ends_its_sockets() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&[]).await;
        let (_, mut socket) = attach(&lab, &runtime, None).await;
        lab.call("delete_runtime", json!({"name": runtime}))
            .await
            .unwrap();
        while socket.next().await.is_some() {}
        let counters: Value = lab
            .http
            .get(lab.endpoint.replace("/mcp", "/emulator/counters"))
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        assert_eq!(counters["websockets"], 1);
        assert_eq!(lab.counters().websockets, 1);
        lab.shutdown().await;
    })
    .await;
}
