//! What strangers send changes nothing: the kernel goes on serving on every port.

use std::time::Duration;

use bytes::Bytes;
use colab_kernel::jupyter::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{Peer, connect, encoded, frame, greeting, ready_body, request, request_signed};
use super::parrot::{Parrot, SOCKETS};
use super::within;

/// Everything works: a request on shell and control, the heartbeat, and iopub.
async fn assert_serving(parrot: &Parrot) {
    let mut iopub = Peer::subscriber(parrot).await;
    for socket in ["shell", "control"] {
        let mut peer = Peer::connect(&parrot.endpoint(socket), "DEALER", "").await;
        peer.send(&request("ping_request", "{}")).await;
        assert_eq!(peer.message().await.unwrap().msg_type(), "ping_reply");
        for state in ["busy", "idle"] {
            let status = iopub.message().await.unwrap();
            assert_eq!(status.content["execution_state"], state);
        }
    }
    let mut heart = Peer::connect(&parrot.endpoint("heartbeat"), "REQ", "").await;
    heart.send(&[b"".as_slice(), b"\0beat\xff"]).await;
    assert_eq!(
        heart.recv().await.unwrap(),
        ["".into(), Bytes::from_static(b"\0beat\xff")]
    );
}

/// What may be written to a port, greeting included.
fn inputs() -> Vec<(&'static str, Vec<u8>)> {
    let hello = greeting().to_vec();
    let with = |more: &[u8]| [hello.as_slice(), more].concat();
    let announced = |flags: u8, len: u64| [&[flags][..], &len.to_be_bytes()].concat();
    let ready = frame(4, &ready_body("DEALER", "stranger"));
    let sub = frame(4, &ready_body("SUB", ""));
    let heart = frame(4, &ready_body("REQ", ""));
    let mut inputs = vec![
        ("nothing", Vec::new()),
        ("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("zeros", vec![0; 1000]),
        ("half a greeting", hello[..20].to_vec()),
        ("zmtp 2", b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05\0\0".to_vec()),
        (
            "another mechanism",
            [&hello[..12], b"CURVE", &[0; 47]].concat(),
        ),
        ("a giant before READY", with(&announced(2, 1 << 35))),
        ("a giant command before READY", with(&announced(6, 1 << 35))),
        ("a message before READY", with(&encoded(&["x", "y"]))),
        (
            "an unknown socket type",
            with(&frame(4, &ready_body("STREAMER", ""))),
        ),
        ("a READY cut short", with(&ready[..ready.len() - 4])),
        (
            "a READY with a wild length",
            with(&frame(4, b"\x05READY\x01a\xff\xff\xff\xff")),
        ),
        (
            "random",
            (0..=255_u8)
                .cycle()
                .map(|byte| byte.wrapping_mul(151))
                .take(5000)
                .collect(),
        ),
    ];
    for ready in [ready, sub, heart] {
        let with = |more: &[u8]| [hello.as_slice(), &ready, more].concat();
        inputs.extend([
            ("a giant", with(&announced(2, 1 << 35))),
            ("a giant part", with(&announced(3, u64::MAX))),
            ("a giant command", with(&announced(6, 1 << 40))),
            ("reserved bits", with(&[0xf8, 1, 0])),
            ("an empty message", with(&[0, 0])),
            ("an unknown command", with(&frame(4, b"\x03FOO"))),
            ("an empty command", with(&[4, 0])),
            ("a ping", with(&frame(4, b"\x04PING\0\x01ctx"))),
            ("twenty thousand frames", with(&[1, 0].repeat(20_000))),
            ("part of a message", with(&[1, 5, b'a'])),
            ("a message of others", with(&encoded(&["", "a", "", "b"]))),
        ]);
    }
    inputs
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_any_port_changes_nothing() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        let mut open = Vec::new();
        for socket in SOCKETS {
            for (_, input) in inputs() {
                // Once closed in order, once with a reset, once left open.
                for ending in 0..3 {
                    let address = ("127.0.0.1", parrot.port(socket));
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    // It may be closed on us while we write.
                    let _ = stream.write_all(&input).await;
                    match ending {
                        0 => drop(stream),
                        1 => {
                            stream.set_zero_linger().unwrap();
                            drop(stream);
                        }
                        _ => open.push(stream),
                    }
                }
            }
            assert_serving(&parrot).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announced_giant_closes_only_its_own_connection() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        for (socket, socket_type) in [("shell", "DEALER"), ("heartbeat", "REQ"), ("iopub", "SUB")] {
            let mut peer = Peer::connect(&parrot.endpoint(socket), socket_type, "").await;
            let header = [&[2][..], &(1_u64 << 35).to_be_bytes()].concat();
            peer.stream.write_all(&header).await.unwrap();
            assert_eq!(peer.frame().await, None, "{socket} is closed");
        }
        assert_serving(&parrot).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_closed() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        let mut silent = Vec::new();
        for socket in SOCKETS {
            silent.push(connect(&parrot.endpoint(socket)).await);
            let mut greeted = connect(&parrot.endpoint(socket)).await;
            greeted.write_all(&greeting()).await.unwrap();
            silent.push(greeted);
        }
        for mut stream in silent {
            // Ends at the kernel's close; what it says before is its greeting and READY.
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said).await;
            assert!(said.len() >= 64);
        }
        assert_serving(&parrot).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_shook_hands_may_stay_silent() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        let mut peer = Peer::connect(&parrot.endpoint("shell"), "DEALER", "").await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        peer.send(&request("late_request", "{}")).await;
        assert_eq!(peer.message().await.unwrap().msg_type(), "late_reply");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zmtp_heartbeats_are_answered_on_every_port() {
    within(async {
        let parrot = Parrot::start(Transport::Tcp).await;
        for socket in SOCKETS {
            let socket_type = match socket {
                "iopub" => "SUB",
                "heartbeat" => "REQ",
                _ => "DEALER",
            };
            let mut peer = Peer::connect(&parrot.endpoint(socket), socket_type, "").await;
            for context in ["", "context", "sixteen bytes :)"] {
                peer.command(format!("\x04PING\0\x05{context}").as_bytes())
                    .await;
                let pong = peer.frame().await.unwrap();
                assert_eq!(pong.flags & 4, 4, "{socket}");
                assert_eq!(pong.body, format!("\x04PONG{context}").as_bytes());
            }
            if socket == "shell" {
                peer.send(&request("x_request", "{}")).await;
                assert_eq!(peer.message().await.unwrap().msg_type(), "x_reply");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_messages_are_dropped_and_the_next_good_one_is_served() {
    within(async {
        let mut parrot = Parrot::start(Transport::Tcp).await;
        for socket in ["shell", "control", "stdin"] {
            let mut peer = Peer::connect(&parrot.endpoint(socket), "DEALER", "same").await;
            let good = request("first_request", "{}");
            peer.send(&good).await;
            assert_eq!(
                parrot.heard.recv().await.unwrap().msg_type(),
                "first_request"
            );

            let change = |at: usize, with: &'static [u8]| {
                let mut frames = request("bad_request", "{}");
                frames[at] = Bytes::from_static(with);
                frames
            };
            let bad = [
                ("replayed", good.clone()),
                (
                    "signed with another key",
                    request_signed("another", "bad_request", "{}"),
                ),
                ("unsigned", change(1, b"")),
                ("not hex", change(1, b"zz")),
                ("content changed", change(5, b"{\"code\":\"evil\"}")),
                ("no delimiter", good[1..].to_vec()),
                ("too few frames", good[..5].to_vec()),
                ("delimiter only", good[..1].to_vec()),
                (
                    "content that is no JSON",
                    request("bad_request", "{\"broken\""),
                ),
                (
                    "a header without a type",
                    request("bad_request\", \"msg_type\": 1, \"x\": \"", "{}"),
                ),
            ];
            for (what, frames) in bad {
                peer.send(&frames).await;
                peer.send(&request("good_request", "{}")).await;
                let heard = parrot.heard.recv().await.unwrap();
                assert_eq!(heard.msg_type(), "good_request", "{socket}: {what}");
            }
            peer.send(&request("never_heard_of", "[1, null]")).await;
            let heard = parrot.heard.recv().await.unwrap();
            assert_eq!(heard.msg_type(), "never_heard_of", "left to the kernel");
        }
        assert_serving(&parrot).await;
    })
    .await;
}
