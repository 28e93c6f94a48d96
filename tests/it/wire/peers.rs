//! Requests and replies: with the `zeromq` crate's sockets and with raw clients.

use std::time::Duration;

use bytes::Bytes;
use colab_kernel::jupyter::{OutMessage, Parent, Sockets, Transport};
use serde_json::json;
use zeromq::{DealerSocket, ReqSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use super::client::{Message, Peer, request, request_signed};
use super::parrot::{KEY, Parrot, bytes, until};
use super::within;

fn message(frames: Vec<Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(frames).unwrap()
}

async fn a_session_of(transport: Transport) {
    let parrot = Parrot::start(transport).await;
    let mut iopub = SubSocket::new();
    iopub.connect(&parrot.endpoint("iopub")).await.unwrap();
    iopub.subscribe("").await.unwrap();
    let welcome = Message::read(iopub.recv().await.unwrap().into_vec());
    assert_eq!(welcome.msg_type(), "iopub_welcome");

    for socket in ["shell", "control"] {
        let mut dealer = DealerSocket::new();
        dealer.connect(&parrot.endpoint(socket)).await.unwrap();
        let mut frames = request("execute_request", "{\"code\": \"é\\u0000\"}");
        let header = frames[2].clone();
        frames.push(Bytes::from_static(b"\0\xff"));
        dealer.send(message(frames)).await.unwrap();
        let reply = Message::read(dealer.recv().await.unwrap().into_vec());
        assert_eq!(reply.msg_type(), "execute_reply");
        assert_eq!(
            reply.parent, header,
            "the parent is the header, byte for byte"
        );
        assert_eq!(reply.content["told"]["code"], "é\0");
        assert_eq!(reply.buffers, [Bytes::from_static(b"\0\xff")]);
        for state in ["busy", "idle"] {
            let status = Message::read(iopub.recv().await.unwrap().into_vec());
            assert_eq!(status.content["execution_state"], state);
            assert_eq!(status.parent, header);
        }
    }

    let mut heart = ReqSocket::new();
    heart.connect(&parrot.endpoint("heartbeat")).await.unwrap();
    for beat in 0..100_u8 {
        heart.send(ZmqMessage::from(vec![beat; 3])).await.unwrap();
        assert_eq!(heart.recv().await.unwrap().into_vec(), [vec![beat; 3]]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn zeromq_clients_are_served_over_tcp() {
    within(a_session_of(Transport::Tcp)).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn zeromq_clients_are_served_over_ipc() {
    within(a_session_of(Transport::Ipc)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_messages_are_neither_signed_nor_checked() {
    within(async {
        let mut parrot = Parrot::start_with_key(Transport::Tcp, "").await;
        let mut peer = Peer::connect(&parrot.endpoint("shell"), "DEALER", "").await;
        for _ in 0..2 {
            let mut frames = request_signed(KEY, "x_request", "{}");
            frames[1] = Bytes::new();
            peer.send(&frames).await;
            parrot.heard.recv().await.unwrap();
            let reply = peer.recv().await.unwrap();
            assert!(reply[1].is_empty(), "an empty signature");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_routing_identities_come_back() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        let mut peer = Peer::connect(&parrot.endpoint("shell"), "DEALER", "client").await;
        let mut frames = vec![bytes("via"), Bytes::new()];
        frames.extend(request("x_request", "{}"));
        peer.send(&frames).await;
        let reply = peer.recv().await.unwrap();
        assert_eq!(reply[..3], [bytes("via"), Bytes::new(), bytes("<IDS|MSG>")]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stdin_reaches_a_client_that_has_sent_nothing_there() {
    within(async {
        let mut parrot = Parrot::start(Transport::Tcp).await;
        // Clients use one identity for all their sockets.
        let mut shell = Peer::connect(&parrot.endpoint("shell"), "DEALER", "front-end").await;
        let mut stdin = Peer::connect(&parrot.endpoint("stdin"), "DEALER", "front-end").await;
        shell.send(&request("execute_request", "{}")).await;
        let asked = parrot.heard.recv().await.unwrap();
        let prompt = OutMessage::new("input_request", &asked.parent(), &json!({"prompt": "?"}));
        let asking = parrot.stdin_out.send(asked.identities.clone(), prompt);
        let (_, prompt) = tokio::join!(asking, stdin.message());
        assert_eq!(prompt.unwrap().msg_type(), "input_request");
        stdin
            .send(&request("input_reply", "{\"value\": \"v\"}"))
            .await;
        assert_eq!(parrot.heard.recv().await.unwrap().msg_type(), "input_reply");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_back_takes_its_identity_over() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        let endpoint = parrot.endpoint("shell");
        let mut old = Peer::connect(&endpoint, "DEALER", "same").await;
        old.send(&request("x_request", "{}")).await;
        old.message().await.unwrap();
        for _ in 0..50 {
            let mut new = Peer::connect(&endpoint, "DEALER", "same").await;
            new.send(&request("x_request", "{}")).await;
            assert_eq!(new.message().await.unwrap().msg_type(), "x_reply");
            assert!(old.frame().await.is_none(), "the old connection is closed");
            old = new;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sent_before_it_left_is_still_delivered() {
    within(async {
        let mut parrot = Parrot::start(Transport::Tcp).await;
        for _ in 0..20 {
            let mut peer = Peer::connect(&parrot.endpoint("control"), "DEALER", "brief").await;
            peer.send(&request("shutdown_request", "{}")).await;
            drop(peer);
            let heard = parrot.heard.recv().await.unwrap();
            assert_eq!(heard.identities, ["brief"]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_reply_arrives_whole_though_the_sockets_are_closed_at_once() {
    within(async {
        for size in [10, 20_000_000] {
            let mut parrot = Parrot::start_unsigned().await;
            let mut peer = Peer::connect(&parrot.endpoint("shell"), "DEALER", "").await;
            peer.send(&request("x_request", &format!("{{\"size\": {size}}}")))
                .await;
            let reading = tokio::spawn(async move { peer.message().await });
            parrot.heard.recv().await.unwrap();
            assert!(parrot.shell_out.flush(Duration::from_secs(30)).await);
            parrot.guard.close();
            let reply = reading.await.unwrap().expect("the whole reply");
            assert_eq!(reply.content["filler"].as_str().unwrap().len(), size);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_ends_at_its_limit_when_a_client_does_not_read() {
    within(async {
        let mut parrot = Parrot::start_unsigned().await;
        let mut peer = Peer::connect(&parrot.endpoint("shell"), "DEALER", "").await;
        peer.send(&request("x_request", "{\"size\": 20000000}"))
            .await;
        parrot.heard.recv().await.unwrap();
        assert!(!parrot.shell_out.flush(Duration::from_millis(50)).await);
        drop(peer);
        assert!(
            parrot.shell_out.flush(Duration::from_secs(30)).await,
            "it is gone"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_its_replies_keeps_nobody_waiting() {
    within(async {
        let parrot = Parrot::start_unsigned().await;
        let endpoint = parrot.endpoint("shell");
        let mut deaf = Peer::connect(&endpoint, "DEALER", "deaf").await;
        let mut other = Peer::connect(&endpoint, "DEALER", "other").await;
        for _ in 0..30 {
            deaf.send(&request("x_request", "{\"size\": 4000000}"))
                .await;
        }
        for _ in 0..60 {
            other.send(&request("x_request", "{}")).await;
            assert_eq!(other.message().await.unwrap().msg_type(), "x_reply");
        }
        // With 120 MB waiting for it, it has been disconnected, and nothing is left to wait for.
        while !parrot.shell_out.flush(Duration::from_millis(50)).await {}
        while deaf.frame().await.is_some() {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_nobody_is_no_error() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        let message = OutMessage::new("x_reply", &Parent::none(), &json!({}));
        parrot
            .shell_out
            .send(vec![bytes("nobody")], message.clone())
            .await;
        parrot.shell_out.send(Vec::new(), message).await;
        assert!(parrot.shell_out.flush(Duration::from_secs(5)).await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_binds_the_same_ports_and_a_second_kernel_cannot() {
    within(async {
        for transport in [Transport::Tcp, Transport::Ipc] {
            let parrot = Parrot::start(transport).await;
            let error = Sockets::bind(&parrot.info, parrot.session.clone()).await;
            let text = error.unwrap_err().to_string();
            assert!(text.contains(&parrot.port("iopub").to_string()), "{text}");
            parrot.guard.close();
            // The tasks that hold the listeners end soon, not at once.
            let mut bound = false;
            while !bound {
                bound = Sockets::bind(&parrot.info, parrot.session.clone())
                    .await
                    .is_ok();
                tokio::task::yield_now().await;
            }
        }
    })
    .await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_file_at_which_nobody_listens_is_taken_over_and_none_stays_behind() {
    within(async {
        let parrot = Parrot::start(Transport::Ipc).await;
        let mut info = parrot.info.clone();
        info.ip.push_str("-next");
        let path = format!("{}-{}", info.ip, info.shell_port);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let sockets = Sockets::bind(&info, parrot.session.clone()).await.unwrap();
        Peer::connect(&format!("ipc://{path}"), "DEALER", "").await;
        drop(sockets);
        let path = std::path::Path::new(&path);
        until(|| !path.exists()).await;
    })
    .await;
}
