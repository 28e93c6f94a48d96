use std::sync::Mutex;

use axum::Router;
use axum::extract::ws::{self, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::any;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::super::wire::Channel;
use super::*;

const LIMIT: Duration = Duration::from_secs(60);
const BOTH: [Protocol; 2] = [Protocol::Default, Protocol::V1];
/// Pings that soon go unanswered.
const HASTY: Timing = Timing {
    open: Duration::from_secs(20),
    ping_every: Duration::from_millis(20),
    ping_answer: Duration::from_millis(800),
};

async fn limited(test: impl Future<Output = ()>) {
    timeout(LIMIT, test).await.expect("the test took too long");
}

fn info(url: String) -> ConnectionInfo {
    ConnectionInfo {
        token: "s3cr/t=".into(),
        expire_time: String::new(),
        url,
    }
}

async fn serve(router: Router) -> ConnectionInfo {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    info(format!("http://{address}/base"))
}

/// A server whose every WebSocket this is.
async fn server<F>(
    protocol: Protocol,
    socket: impl Fn(WebSocket) -> F + Clone + Send + Sync + 'static,
) -> ConnectionInfo
where
    F: Future<Output = ()> + Send + 'static,
{
    let accept = move |upgrade: WebSocketUpgrade| async move {
        let upgrade = match protocol {
            Protocol::V1 => upgrade.protocols([V1]),
            Protocol::Default => upgrade,
        };
        upgrade
            .max_message_size(MAX_MESSAGE)
            .max_frame_size(MAX_MESSAGE)
            .on_upgrade(socket)
    };
    let path = "/base/api/kernels/{kernel}/channels";
    serve(Router::new().route(path, any(accept))).await
}

/// A server that takes the request's head and gives this answer, `{accept}` filled in; what it does next is the caller's.
async fn raw_server(answer: &'static str) -> (ConnectionInfo, oneshot::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, stream) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let key = head
            .lines()
            .find_map(|line| line.strip_prefix("sec-websocket-key: "));
        let accept = derive_accept_key(key.unwrap().as_bytes());
        let answer = answer.replace("{accept}", &accept);
        stream.write_all(answer.as_bytes()).await.unwrap();
        let _ = sender.send(stream);
    });
    (info(format!("http://{address}")), stream)
}

const ACCEPTED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n\
                        Sec-WebSocket-Accept: {accept}\r\n\r\n";

async fn open_hasty(info: &ConnectionInfo) -> Result<(Outgoing, Incoming), OpenError> {
    open_with(&RuntimeHttp::new(), info, "k", "ours", HASTY).await
}

async fn open_usual(info: &ConnectionInfo) -> (Outgoing, Incoming) {
    open(&RuntimeHttp::new(), info, "k", "ours").await.unwrap()
}

fn numbered(number: u64, size: usize) -> Message {
    let mut message = Message::new(Channel::IoPub, "theirs", "x", &json!({"number": number}));
    if size > 0 {
        message.buffers.push(Bytes::from(vec![number as u8; size]));
    }
    message
}

fn number(message: &Message) -> u64 {
    message.content::<Value>().unwrap()["number"]
        .as_u64()
        .unwrap()
}

/// The same frame as the server's library has it.
fn frame(protocol: Protocol, message: &Message) -> ws::Message {
    match wire::encode(protocol, message).unwrap() {
        tungstenite::Message::Text(text) => ws::Message::Text(text.as_str().into()),
        frame => ws::Message::Binary(frame.into_data()),
    }
}

fn unframe(protocol: Protocol, frame: ws::Message) -> Message {
    let frame = match frame {
        ws::Message::Text(text) => tungstenite::Message::Text(text.as_str().into()),
        ws::Message::Binary(bytes) => tungstenite::Message::Binary(bytes),
        other => panic!("{other:?}"),
    };
    wire::decode(protocol, frame).unwrap()
}

#[tokio::test]
async fn the_upgrade_carries_the_token_twice_and_no_origin() {
    limited(async {
        let seen = Arc::new(Mutex::new(None));
        let saw = Arc::clone(&seen);
        let accept = move |uri: Uri, headers: HeaderMap, upgrade: WebSocketUpgrade| async move {
            *saw.lock().unwrap() = Some((uri, headers));
            upgrade.protocols([V1]).on_upgrade(|_| async {})
        };
        let info = serve(Router::new().fallback(any(accept))).await;
        let (outgoing, _incoming) = open_usual(&info).await;
        assert_eq!(outgoing.protocol(), Protocol::V1);
        let (uri, headers) = seen.lock().unwrap().take().unwrap();
        assert_eq!(uri.path(), "/base/api/kernels/k/channels");
        let query = url::form_urlencoded::parse(uri.query().unwrap().as_bytes());
        let query: Vec<(String, String)> = query.into_owned().collect();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            query,
            [
                pair("session_id", "ours"),
                pair("colab-runtime-proxy-token", "s3cr/t=")
            ]
        );
        assert_eq!(headers["x-colab-runtime-proxy-token"], "s3cr/t=");
        assert_eq!(headers["sec-websocket-protocol"], V1);
        for absent in ["origin", "authorization", "sec-websocket-extensions"] {
            assert!(!headers.contains_key(absent), "{absent}");
        }
    })
    .await;
}

#[tokio::test]
async fn messages_pass_both_ways_in_both_encodings() {
    limited(async {
        for protocol in BOTH {
            let info = server(protocol, |mut socket| async move {
                while let Some(Ok(frame @ (ws::Message::Text(_) | ws::Message::Binary(_)))) =
                    socket.recv().await
                {
                    socket.send(frame).await.unwrap();
                }
            })
            .await;
            let (mut outgoing, mut incoming) = open_usual(&info).await;
            assert_eq!(outgoing.protocol(), protocol);
            for size in [0, 1, 3 << 20] {
                let message = numbered(7, size);
                outgoing.send(&message).await.unwrap();
                assert!(incoming.recv().await.unwrap() == message);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn refusals_are_told_apart_and_name_neither_address_nor_token() {
    limited(async {
        for (status, body, expected) in [
            (401, "", OpenError::Token(401)),
            (403, "Kernel does not exist", OpenError::Token(403)),
            (404, "Not found", OpenError::Token(404)),
            (404, "Kernel does not exist: k", OpenError::NoKernel),
            (200, "a page", OpenError::Blocked(200)),
            (426, "", OpenError::Blocked(426)),
            (502, "", OpenError::Blocked(502)),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let answer = move || async move { (status, body).into_response() };
            let info = serve(Router::new().fallback(answer)).await;
            let error = open_hasty(&info).await.unwrap_err();
            assert_eq!(error, expected, "{status} {body}");
            let shown = format!("{error} {error:?}");
            assert!(
                !shown.contains("127.0.0.1") && !shown.contains("s3cr"),
                "{shown}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    limited(async {
        let info = serve(Router::new().fallback(|uri: Uri| async move {
            assert_ne!(uri.path(), "/other", "it was followed");
            Redirect::temporary("/other")
        }))
        .await;
        let error = open_hasty(&info).await.unwrap_err();
        assert_eq!(error, OpenError::Blocked(307));
    })
    .await;
}

#[tokio::test]
async fn what_is_no_websocket_is_not_taken_for_one() {
    limited(async {
        for answer in [
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            "SSH-2.0-x {accept}\r\n\r\n",
        ] {
            let (info, _stream) = raw_server(answer).await;
            let error = open_hasty(&info).await.unwrap_err();
            assert!(matches!(error, OpenError::Unreachable(_)), "{error:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_without_its_address() {
    limited(async {
        let gone = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            info(format!("http://{}", listener.local_addr().unwrap()))
        };
        let open_text = info("http://192.0.2.1/".into());
        for info in [gone, open_text] {
            let error = open_hasty(&info).await.unwrap_err();
            assert!(matches!(error, OpenError::Unreachable(_)), "{error:?}");
            let shown = format!("{error} {error:?}");
            assert!(
                !shown.contains("s3cr") && !shown.contains("http:"),
                "{shown}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    limited(async {
        let (info, _stream) = raw_server("").await;
        let timing = Timing {
            open: Duration::from_millis(100),
            ..HASTY
        };
        let opened = open_with(&RuntimeHttp::new(), &info, "k", "ours", timing).await;
        let why = "the runtime's server did not answer in time".to_owned();
        assert_eq!(opened.unwrap_err(), OpenError::Unreachable(why));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_falls_silent_is_noticed() {
    limited(async {
        let (info, stream) = raw_server(ACCEPTED).await;
        let (mut outgoing, mut incoming) = open_hasty(&info).await.unwrap();
        let _stream = stream.await.unwrap();
        assert_eq!(incoming.recv().await, Err(Closed::Silent));
        let error = outgoing.send(&numbered(1, 0)).await;
        assert_eq!(error, Err(SendError::Closed(Closed::Silent)));
    })
    .await;
}

#[tokio::test]
async fn a_pong_behind_a_large_frame_may_take_its_time() {
    limited(async {
        let (info, stream) = raw_server(ACCEPTED).await;
        let (_outgoing, mut incoming) = open_hasty(&info).await.unwrap();
        let mut stream = stream.await.unwrap();
        let tungstenite::Message::Text(text) =
            wire::encode(Protocol::Default, &numbered(7, 0)).unwrap()
        else {
            panic!("it has no buffers");
        };
        // A final text frame with two bytes of length, which takes several times as long as a pong may.
        let size = u16::try_from(text.len()).unwrap();
        stream.write_all(&[0x81, 126]).await.unwrap();
        stream.write_u16(size).await.unwrap();
        for piece in text.as_bytes().chunks(text.len() / 7) {
            tokio::time::sleep(HASTY.ping_answer / 2).await;
            stream.write_all(piece).await.unwrap();
        }
        assert_eq!(number(&incoming.recv().await.unwrap()), 7);
    })
    .await;
}

#[tokio::test]
async fn pings_of_the_server_are_answered_while_nobody_sends() {
    limited(async {
        let (sender, mut answered) = mpsc::unbounded_channel();
        let info = server(Protocol::V1, move |mut socket| {
            let sender = sender.clone();
            async move {
                for round in 0..3_u8 {
                    let ping = ws::Message::Ping(vec![round].into());
                    socket.send(ping).await.unwrap();
                    let Some(Ok(ws::Message::Pong(payload))) = socket.recv().await else {
                        panic!("no pong");
                    };
                    sender.send(payload).unwrap();
                }
            }
        })
        .await;
        let (_outgoing, _incoming) = open_usual(&info).await;
        for round in 0..3_u8 {
            assert_eq!(answered.recv().await.unwrap(), [round].as_slice());
        }
    })
    .await;
}

#[tokio::test]
async fn our_pings_keep_a_quiet_connection() {
    limited(async {
        let info = server(Protocol::V1, |mut socket| async move {
            // The library answers pings; after some of them the server speaks.
            let mut pings = 0;
            while let Some(Ok(ws::Message::Ping(_))) = socket.recv().await {
                pings += 1;
                if pings == 20 {
                    let message = frame(Protocol::V1, &numbered(pings, 0));
                    socket.send(message).await.unwrap();
                }
            }
        })
        .await;
        let (_outgoing, mut incoming) = open_hasty(&info).await.unwrap();
        assert_eq!(number(&incoming.recv().await.unwrap()), 20);
    })
    .await;
}

#[tokio::test]
async fn large_messages_pass_in_both_directions_at_once() {
    const SIZE: usize = 64 << 20;
    limited(async {
        for protocol in BOTH {
            let info = server(protocol, move |mut socket| async move {
                // Nothing is read before all is sent.
                socket
                    .send(frame(protocol, &numbered(1, SIZE)))
                    .await
                    .unwrap();
                loop {
                    match socket.recv().await.unwrap().unwrap() {
                        ws::Message::Ping(_) | ws::Message::Pong(_) => {}
                        received => {
                            let received = unframe(protocol, received);
                            assert_eq!(received.buffers[0].len(), SIZE);
                            let answer = numbered(number(&received), 0);
                            socket.send(frame(protocol, &answer)).await.unwrap();
                        }
                    }
                }
            })
            .await;
            let (mut outgoing, mut incoming) = open_usual(&info).await;
            outgoing.send(&numbered(2, SIZE)).await.unwrap();
            let first = incoming.recv().await.unwrap();
            assert_eq!((number(&first), first.buffers[0].len()), (1, SIZE));
            assert_eq!(number(&incoming.recv().await.unwrap()), 2);
        }
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_stops_holds_the_server_back_and_loses_nothing() {
    const COUNT: u64 = 60;
    limited(async {
        let sent = Arc::new(Mutex::new(0));
        let count = Arc::clone(&sent);
        let info = server(Protocol::V1, move |mut socket| {
            let count = Arc::clone(&count);
            async move {
                for number in 0..COUNT {
                    let message = frame(Protocol::V1, &numbered(number, 2 << 20));
                    socket.send(message).await.unwrap();
                    *count.lock().unwrap() = number + 1;
                }
                while socket.recv().await.is_some() {}
            }
        })
        .await;
        let (_outgoing, mut incoming) = open_hasty(&info).await.unwrap();
        assert_eq!(number(&incoming.recv().await.unwrap()), 0);
        // The queue is full when the server has stood still for longer than a ping may go unanswered.
        let mut before = 0;
        loop {
            tokio::time::sleep(HASTY.ping_answer * 2).await;
            let now = *sent.lock().unwrap();
            if now == before {
                break;
            }
            before = now;
        }
        assert!(before < COUNT, "everything was taken");
        for expected in 1..COUNT {
            assert_eq!(number(&incoming.recv().await.unwrap()), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn frames_that_are_no_messages_are_skipped() {
    limited(async {
        for protocol in BOTH {
            let info = server(protocol, move |mut socket| async move {
                for noise in ["", "{}", "hello"] {
                    socket.send(ws::Message::Text(noise.into())).await.unwrap();
                    let noise = ws::Message::Binary(noise.as_bytes().to_vec().into());
                    socket.send(noise).await.unwrap();
                }
                socket.send(frame(protocol, &numbered(3, 0))).await.unwrap();
                while socket.recv().await.is_some() {}
            })
            .await;
            let (_outgoing, mut incoming) = open_usual(&info).await;
            assert_eq!(number(&incoming.recv().await.unwrap()), 3);
        }
    })
    .await;
}

#[tokio::test]
async fn what_came_before_the_end_is_read_and_then_the_reason() {
    limited(async {
        let info = server(Protocol::V1, |mut socket| async move {
            for number in 0..3 {
                let message = frame(Protocol::V1, &numbered(number, 0));
                socket.send(message).await.unwrap();
            }
            let close = ws::CloseFrame {
                code: 1009,
                reason: "too big".into(),
            };
            let close = ws::Message::Close(Some(close));
            socket.send(close).await.unwrap();
            // Our answer to it.
            assert!(matches!(
                socket.recv().await,
                Some(Ok(ws::Message::Close(_)))
            ));
        })
        .await;
        let (mut outgoing, mut incoming) = open_usual(&info).await;
        for expected in 0..3 {
            assert_eq!(number(&incoming.recv().await.unwrap()), expected);
        }
        let closed = Closed::ByServer(Some(1009));
        assert_eq!(incoming.recv().await, Err(closed.clone()));
        assert_eq!(incoming.recv().await, Err(closed.clone()));
        let error = outgoing.send(&numbered(1, 0)).await.unwrap_err();
        assert_eq!(error, SendError::Closed(closed));
        assert_eq!(
            error.to_string(),
            "the runtime's server closed the connection (code 1009)"
        );
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_breaks_says_so() {
    limited(async {
        let (info, stream) = raw_server(ACCEPTED).await;
        let (_outgoing, mut incoming) = open_usual(&info).await;
        drop(stream.await.unwrap());
        let closed = incoming.recv().await.unwrap_err();
        assert!(matches!(closed, Closed::Broken(_)), "{closed:?}");
    })
    .await;
}

#[tokio::test]
async fn without_a_reader_the_connection_closes_after_what_was_sent() {
    limited(async {
        let (sender, mut received) = mpsc::unbounded_channel();
        let info = server(Protocol::V1, move |mut socket| {
            let sender = sender.clone();
            async move {
                while let Some(Ok(frame)) = socket.recv().await {
                    sender.send(frame).unwrap();
                }
            }
        })
        .await;
        let (mut outgoing, incoming) = open_usual(&info).await;
        for number in 0..10 {
            outgoing.send(&numbered(number, 1 << 20)).await.unwrap();
        }
        drop((outgoing, incoming));
        for expected in 0..10 {
            let frame = received.recv().await.unwrap();
            assert_eq!(number(&unframe(Protocol::V1, frame)), expected);
        }
        let close = received.recv().await.unwrap();
        assert!(matches!(close, ws::Message::Close(_)), "{close:?}");
    })
    .await;
}

#[tokio::test]
async fn without_a_writer_the_connection_is_read_on() {
    limited(async {
        let info = server(Protocol::V1, |mut socket| async move {
            // The writer is gone when the third ping comes.
            for number in 0..3 {
                assert!(matches!(
                    socket.recv().await,
                    Some(Ok(ws::Message::Ping(_)))
                ));
                let message = frame(Protocol::V1, &numbered(number, 0));
                socket.send(message).await.unwrap();
            }
            while socket.recv().await.is_some() {}
        })
        .await;
        let (outgoing, mut incoming) = open_hasty(&info).await.unwrap();
        drop(outgoing);
        for expected in 0..3 {
            assert_eq!(number(&incoming.recv().await.unwrap()), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn nothing_is_sent_to_an_address_that_is_not_https() {
    limited(async {
        let error = open_hasty(&info("http://runtime.example/".into()))
            .await
            .unwrap_err();
        let why = "the runtime's address is not https".to_owned();
        assert_eq!(error, OpenError::Unreachable(why));
    })
    .await;
}
