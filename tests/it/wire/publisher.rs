//! The iopub publisher.

use std::time::Duration;

use bytes::Bytes;
use colab_kernel::jupyter::{OutMessage, Parent, Transport};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::client::{Peer, request};
use super::parrot::Parrot;
use super::within;

/// One large stream message; a number, then filler.
fn numbered(number: usize) -> OutMessage {
    let text = format!("{number:08}{}", "x".repeat(100_000));
    OutMessage::new(
        "stream",
        &Parent::none(),
        &json!({"name": "stdout", "text": text}),
    )
}

fn status(state: &str) -> OutMessage {
    OutMessage::new(
        "status",
        &Parent::none(),
        &json!({"execution_state": state}),
    )
}

/// Reads until idle and returns the numbers of the stream messages.
async fn numbers(peer: &mut Peer) -> Vec<usize> {
    let mut numbers = Vec::new();
    while let Some(message) = peer.message().await {
        match message.msg_type() {
            "stream" => {
                let text = message.content["text"].as_str().unwrap();
                numbers.extend(
                    text.get(..8)
                        .and_then(|number| number.parse::<usize>().ok()),
                );
            }
            _ if message.content["execution_state"] == "idle" => return numbers,
            _ => {}
        }
    }
    panic!("the connection was closed before idle");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_welcome_comes_first_for_both_forms_of_subscribing() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        for topic in ["", "kernel."] {
            for command in [false, true] {
                let mut peer = Peer::connect(&parrot.endpoint("iopub"), "SUB", "").await;
                parrot.iopub.send(status("before")).await;
                if command {
                    peer.command(format!("\x09SUBSCRIBE{topic}").as_bytes())
                        .await;
                } else {
                    peer.send(&[format!("\x01{topic}")]).await;
                }
                let welcome = peer.message().await.unwrap();
                assert_eq!(welcome.msg_type(), "iopub_welcome");
                assert_eq!(welcome.content, json!({"subscription": topic}));
                assert_eq!(welcome.topic, topic);
                assert_eq!(welcome.parent, "{}");
                parrot.iopub.send(status("after")).await;
                let next = peer.message().await.unwrap();
                assert_eq!(next.content["execution_state"], "after");
                assert!(next.topic.starts_with(b"kernel.") && next.topic.ends_with(b".status"));
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_matched_and_cancelled_and_pings_answered() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        for command in [false, true] {
            let mut peer = Peer::connect(&parrot.endpoint("iopub"), "XSUB", "").await;
            peer.send(&["\x01elsewhere"]).await;
            peer.message().await.unwrap();
            parrot.iopub.send(status("unwanted")).await;
            peer.send(&["\x01"]).await;
            assert_eq!(peer.message().await.unwrap().msg_type(), "iopub_welcome");
            if command {
                peer.command(b"\x06CANCEL").await;
            } else {
                peer.send(&["\x00"]).await;
            }
            // The answer to the ping says that the cancel has been read.
            peer.command(b"\x04PING\0\x05context").await;
            let pong = peer.frame().await.unwrap();
            assert_eq!(
                (pong.flags & 4, &pong.body[..]),
                (4, &b"\x04PONGcontext"[..])
            );
            parrot.iopub.send(status("unwanted")).await;
            peer.command(b"\x04PING\0\x05").await;
            assert_eq!(peer.frame().await.unwrap().body, b"\x04PONG");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_several_frames_subscribe_to_nothing() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        let mut peer = Peer::connect(&parrot.endpoint("iopub"), "SUB", "").await;
        peer.send(&["\x01", "\x01"]).await;
        peer.send(&["\x01kernel"]).await;
        assert_eq!(peer.message().await.unwrap().topic, "kernel");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_and_buffers_are_published() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        let mut peer = Peer::subscriber(&parrot).await;
        let mut message = OutMessage::new("comm_msg", &Parent::none(), &json!({"comm_id": "1"}));
        message.metadata.insert("k".into(), 1.into());
        message.buffers = vec![Bytes::from_static(b"\0\x01"), Bytes::new()];
        parrot.iopub.send(message).await;
        let frames = peer.recv().await.unwrap();
        assert_eq!(frames[5], "{\"k\":1}");
        assert_eq!(frames[7..], [Bytes::from_static(b"\0\x01"), Bytes::new()]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_subscriber_gets_everything_in_order_though_others_leave() {
    within(async {
        let parrot = Parrot::start_unsigned().await;
        let mut readers = Vec::new();
        for _ in 0..2 {
            let mut peer = Peer::subscriber(&parrot).await;
            readers.push(tokio::spawn(async move { numbers(&mut peer).await }));
        }
        let mut leaving = Vec::new();
        for _ in 0..5 {
            leaving.push(Peer::subscriber(&parrot).await);
        }
        for number in 0..500 {
            if number % 100 == 50 {
                leaving.pop();
            }
            parrot.iopub.send(numbered(number)).await;
        }
        parrot.iopub.send(status("idle")).await;
        for reader in readers {
            assert_eq!(reader.await.unwrap(), (0..500).collect::<Vec<_>>());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_subscriber_keeps_nobody_waiting_and_loses_text_only() {
    within(async {
        let parrot = Parrot::start_unsigned().await;
        let mut stalled = Peer::subscriber(&parrot).await;
        let mut healthy = Peer::subscriber(&parrot).await;
        let healthy = tokio::spawn(async move { numbers(&mut healthy).await });
        parrot.iopub.send(status("busy")).await;
        for number in 0..500 {
            parrot.iopub.send(numbered(number)).await;
        }
        let error = json!({"ename": "E", "evalue": "", "traceback": []});
        parrot.iopub.publish(&Parent::none(), "error", &error).await;
        parrot.iopub.send(status("idle")).await;
        assert_eq!(healthy.await.unwrap(), (0..500).collect::<Vec<_>>());
        assert!(
            parrot.iopub.flush(Duration::from_secs(5)).await,
            "nobody waits for it"
        );

        // It reads again: the beginning of the text, then all that is no text.
        let mut seen = Vec::new();
        let mut text = 0;
        while seen.last().is_none_or(|last| last != "idle") {
            let message = stalled.message().await.unwrap();
            if message.msg_type() == "stream" {
                let number = message.content["text"].as_str().unwrap()[..8].parse();
                assert_eq!(number, Ok(text), "without a hole before the end");
                text += 1;
            } else {
                let state = message.content["execution_state"].as_str();
                seen.push(state.unwrap_or(message.msg_type()).to_owned());
            }
        }
        assert_eq!(seen, ["busy", "error", "idle"]);
        assert!(text > 10 && text < 500, "{text}");

        parrot.iopub.send(status("next")).await;
        let notice = stalled.message().await.unwrap();
        let told = notice.content["text"].as_str().unwrap();
        assert!(told.contains("not delivered to this client"), "{told}");
        let next = stalled.message().await.unwrap();
        assert_eq!(next.content["execution_state"], "next");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_subscriber_gets_every_byte() {
    within(async {
        let parrot = Parrot::start_unsigned().await;
        let mut slow = Peer::subscriber(&parrot).await;
        let reader = tokio::spawn(async move {
            let mut numbers = Vec::new();
            while numbers.len() < 300 {
                let message = slow.message().await.unwrap();
                let text = message.content["text"].as_str().unwrap();
                numbers.push(text[..8].parse::<usize>().unwrap());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            numbers
        });
        for number in 0..300 {
            parrot.iopub.send(numbered(number)).await;
        }
        assert!(parrot.iopub.flush(Duration::from_secs(30)).await);
        parrot.guard.close();
        assert_eq!(reader.await.unwrap(), (0..300).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_never_reads_is_disconnected_when_displays_pile_up() {
    within(async {
        let parrot = Parrot::start_unsigned().await;
        let mut stalled = Peer::subscriber(&parrot).await;
        let mut healthy = Peer::subscriber(&parrot).await;
        let healthy = tokio::spawn(async move {
            for _ in 0..30 {
                healthy.recv().await.unwrap();
            }
        });
        let data =
            json!({"data": {"image/png": "x".repeat(4_000_000)}, "metadata": {}, "transient": {}});
        for _ in 0..30 {
            parrot
                .iopub
                .publish(&Parent::none(), "display_data", &data)
                .await;
        }
        assert!(parrot.iopub.flush(Duration::from_secs(5)).await);
        while stalled.frame().await.is_some() {}
        healthy.await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_ends_at_its_limit_when_a_subscriber_does_not_read() {
    within(async {
        let parrot = Parrot::start_unsigned().await;
        let mut peer = Peer::subscriber(&parrot).await;
        let data = json!({"data": {"text/plain": "x".repeat(20_000_000)}, "metadata": {}});
        parrot
            .iopub
            .publish(&Parent::none(), "display_data", &data)
            .await;
        assert!(!parrot.iopub.flush(Duration::from_millis(50)).await);
        let (flushed, message) =
            tokio::join!(parrot.iopub.flush(Duration::from_secs(30)), peer.message());
        assert!(flushed && message.is_some());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_pings_from_one_that_does_not_read_ends_its_connection_only() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        let mut peer = Peer::subscriber(&parrot).await;
        let pings = super::client::frame(4, &[b"\x04PING\0\0".as_slice(), &[b'x'; 200]].concat());
        let burst = pings.repeat(1000);
        while peer.stream.write_all(&burst).await.is_ok() {}
        let mut other = Peer::subscriber(&parrot).await;
        let mut shell = Peer::connect(&parrot.endpoint("shell"), "DEALER", "").await;
        shell.send(&request("x_request", "{}")).await;
        assert_eq!(other.message().await.unwrap().msg_type(), "status");
    })
    .await;
}
