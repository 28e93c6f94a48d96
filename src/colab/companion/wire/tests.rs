use serde_json::{Value, json};
use tungstenite::Message as Frame;

use super::*;

const BOTH: [Protocol; 2] = [Protocol::Default, Protocol::V1];

fn message(buffers: &[&'static [u8]]) -> Message {
    Message {
        channel: Channel::IoPub,
        header: Bytes::from_static(
            b"{ \"msg_id\": \"1\", \"msg_type\":\"x\", \"later\":[1.0,1e2] }",
        ),
        parent_header: Bytes::from_static(b"{\"msg_id\":\"0\",\"session\":null}"),
        metadata: Bytes::from_static(b"{\"ck_seq\":7}"),
        content: Bytes::from_static("{\"t\":\"é😀\\ud800\"}".as_bytes()),
        buffers: buffers
            .iter()
            .map(|&buffer| Bytes::from_static(buffer))
            .collect(),
    }
}

/// The bytes of a frame, whatever its kind.
fn bytes(frame: Frame) -> Bytes {
    frame.into_data()
}

#[test]
fn every_part_comes_back_byte_for_byte() {
    let none: &[&[u8]] = &[];
    for buffers in [none, &[b"\x00\xff"], &[b"", b"abc", b""]] {
        for protocol in BOTH {
            for channel in [
                Channel::Shell,
                Channel::IoPub,
                Channel::Control,
                Channel::Stdin,
            ] {
                let message = Message {
                    channel,
                    ..message(buffers)
                };
                let frame = encode(protocol, &message).unwrap();
                let is_text = protocol == Protocol::Default && buffers.is_empty();
                assert_eq!(frame.is_text(), is_text);
                let back = decode(protocol, frame).unwrap();
                assert!(back == message, "{protocol:?} {back:?}");
            }
        }
    }
}

#[test]
fn what_jupyter_server_writes_is_read() {
    // By `serialize_binary_message` of jupyter_server 2.20.
    let binary = b"\x00\x00\x00\x04\x00\x00\x00\x14\x00\x00\x00\x9b\x00\x00\x00\x9d\x00\x00\x00\x9d{\"channel\": \"iopub\", \
        \"header\": {\"msg_id\": \"1\", \"msg_type\": \"x\"}, \"parent_header\": {}, \"metadata\": {\"a\": 1}, \
        \"content\": {\"t\": \"\\u00e9\"}}\x00\xffabc";
    // By its `serialize_msg_to_ws_v1`.
    let v1 = b"\x09\0\0\0\0\0\0\0\x50\0\0\0\0\0\0\0\x55\0\0\0\0\0\0\0\x72\0\0\0\0\0\0\0\x74\0\0\0\0\0\0\0\x7b\0\0\0\0\0\0\0\
        \x84\0\0\0\0\0\0\0\x86\0\0\0\0\0\0\0\x86\0\0\0\0\0\0\0\x89\0\0\0\0\0\0\0iopub{\"msg_id\":\"1\",\"msg_type\":\"x\"}{}\
        {\"a\":1}{\"t\":\"\xff\"}\x00\xffabc";
    for (protocol, frame, text) in [
        (Protocol::Default, &binary[..], "é"),
        (Protocol::V1, &v1[..], "\u{fffd}"),
    ] {
        let message = decode(protocol, Frame::Binary(Bytes::copy_from_slice(frame))).unwrap();
        assert_eq!(message.channel, Channel::IoPub);
        assert_eq!(message.head().unwrap().msg_type, "x");
        assert_eq!(message.parent(), None);
        assert_eq!(message.metadata::<Value>().unwrap(), json!({"a": 1}));
        assert_eq!(message.content::<Value>().unwrap(), json!({"t": text}));
        assert_eq!(message.buffers, [&b"\x00\xff"[..], b"", b"abc"]);
    }
}

#[test]
fn a_text_may_lack_what_is_empty() {
    let text = r#" {"buffers": [], "msg_id": "1", "channel": "io\u0070ub", "parent_header": null, "header": {"msg_id":"1"},
        "content": {"a" : 1}} "#;
    for protocol in BOTH {
        let message = decode(protocol, Frame::Text(text.into())).unwrap();
        assert_eq!(message.channel, Channel::IoPub);
        assert_eq!(message.id().as_deref(), Some("1"));
        assert_eq!(
            (&message.parent_header[..], &message.metadata[..]),
            (&b"{}"[..], &b"{}"[..])
        );
        assert_eq!(message.content, "{\"a\" : 1}");
    }
}

#[test]
fn half_characters_are_replaced_when_content_is_read() {
    let read = |content: &'static [u8]| {
        let message = Message {
            content: Bytes::from_static(content),
            ..message(&[])
        };
        message.content::<Value>().unwrap()["t"].clone()
    };
    assert_eq!(read(br#"{"t": "a\ud800b"}"#), "a\u{fffd}b");
    assert_eq!(
        read(br#"{"t": "\ude00\ud83d\ude00\\ud800"}"#),
        "\u{fffd}😀\\ud800"
    );
    assert_eq!(read(b"{\"t\": \"a\x80b\"}"), "a\u{fffd}b");
    assert_eq!(read(b"{\"t\": \"\x80\\ud800\"}"), "\u{fffd}\u{fffd}");
}

#[test]
fn bytes_that_are_no_utf8_leave_a_text_that_is() {
    let message = Message {
        content: Bytes::from_static(b"{\"t\":\"\x80\"}"),
        ..message(&[])
    };
    let back = decode(
        Protocol::Default,
        encode(Protocol::Default, &message).unwrap(),
    )
    .unwrap();
    assert_eq!(back.content, "{\"t\":\"\u{fffd}\"}");
    let mut frame = BytesMut::new();
    frame.put_u32(1);
    frame.put_u32(8);
    frame.put_slice(b"{\"channel\":\"shell\",\"header\":{},\"content\":{\"t\":\"\x80\"}}");
    let back = decode(Protocol::Default, Frame::Binary(frame.freeze())).unwrap();
    assert_eq!(back.content, "{\"t\":\"\u{fffd}\"}");
}

#[test]
fn a_request_has_the_specs_fields() {
    let message = Message::new(Channel::Control, "ours", "x_request", &json!({"a": "é"}));
    let header: Value = serde_json::from_slice(&message.header).unwrap();
    for name in [
        "msg_id", "msg_type", "username", "session", "date", "version",
    ] {
        assert!(header[name].is_string(), "{name}");
    }
    let head = message.head().unwrap();
    assert_eq!((&*head.msg_type, &*head.session), ("x_request", "ours"));
    assert_ne!(
        message.id(),
        Message::new(Channel::Control, "ours", "x_request", &()).id()
    );
    let named = Message::with_msg_id(Channel::Shell, "ours", "x_request", "7", &());
    assert_eq!(named.id().as_deref(), Some("7"));
    assert_eq!(
        (&named.parent_header[..], &named.metadata[..]),
        (&b"{}"[..], &b"{}"[..])
    );
}

#[test]
fn a_message_is_made_of_a_kernels_frames() {
    let frames: Vec<Bytes> = ["{}", "{}", "{}", "{}", "x"].map(Bytes::from).to_vec();
    for parts in 0..4 {
        assert_eq!(Message::from_frames(Channel::IoPub, &frames[..parts]), None);
    }
    let message = Message::from_frames(Channel::IoPub, &frames).unwrap();
    assert_eq!(message.buffers, ["x"]);
}

#[test]
fn frames_that_lie_are_refused_and_cost_nothing() {
    let v1 = |words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        decode(Protocol::V1, Frame::Binary(bytes.into())).unwrap_err()
    };
    for words in [
        &[][..],
        &[0],
        &[1],
        &[u64::MAX],
        &[u64::MAX / 8],
        &[6, 0, 0, 0, 0, 0],
        &[6, 0, u64::MAX, 0, 0, 0, 0, 0],
        &[6, 8, 7, 6, 5, 4, 3],
        &[6, 56, 56, 56, 56, 56, 57],
    ] {
        let error = v1(words);
        assert!(
            matches!(error, WireError::Offsets | WireError::TooFewParts),
            "{words:?} {error}"
        );
    }
    assert_eq!(v1(&[6, 56, 56, 56, 56, 56, 56]), WireError::Channel);
    let binary = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        decode(Protocol::Default, Frame::Binary(bytes.into())).unwrap_err()
    };
    for words in [
        &[][..],
        &[0],
        &[0, 0],
        &[1],
        &[u32::MAX, 0],
        &[u32::MAX / 4, 0, 0],
        &[2, 0, u32::MAX],
        &[2, 12, 8],
        &[1, 9],
    ] {
        let error = binary(words);
        assert!(
            matches!(error, WireError::Offsets | WireError::TooFewParts),
            "{words:?} {error}"
        );
    }
    assert_eq!(binary(&[1, 8]), WireError::Json);
    for (text, expected) in [
        ("", WireError::Json),
        ("[]", WireError::Json),
        (r#"{"channel":"iopub","header":{}"#, WireError::Json),
        (r#"{"header":{},"content":{}}"#, WireError::Json),
        (
            r#"{"channel":"hb","header":{},"content":{}}"#,
            WireError::Channel,
        ),
    ] {
        assert_eq!(
            decode(Protocol::Default, Frame::Text(text.into())),
            Err(expected),
            "{text}"
        );
    }
    for protocol in BOTH {
        let ping = Frame::Ping(Bytes::new());
        assert_eq!(decode(protocol, ping), Err(WireError::NoData));
    }
}

#[test]
fn no_damage_to_a_frame_makes_a_panic() {
    for protocol in BOTH {
        let whole = bytes(encode(protocol, &message(&[b"ab", b""])).unwrap());
        for length in 0..whole.len() {
            let _ = decode(protocol, Frame::Binary(whole.slice(..length)));
        }
        for at in 0..whole.len() {
            for damage in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.to_vec();
                bytes[at] = damage;
                if let Ok(message) = decode(protocol, Frame::Binary(bytes.into())) {
                    let _ = (
                        message.head(),
                        message.parent(),
                        message.content::<Value>().is_ok(),
                    );
                }
            }
        }
    }
}

#[test]
fn large_buffers_share_the_frames_memory() {
    let mut large = message(&[]);
    large.buffers = vec![Bytes::from(vec![7; 65 << 20]), Bytes::from_static(b"x")];
    for protocol in BOTH {
        let frame = bytes(encode(protocol, &large).unwrap());
        let back = decode(protocol, Frame::Binary(frame.clone())).unwrap();
        assert!(back == large);
        assert!(frame.as_ptr_range().contains(&back.buffers[0].as_ptr()));
    }
}

#[test]
fn debug_output_shows_no_content() {
    let message = Message::new(
        Channel::Shell,
        "s",
        "execute_request",
        &json!({"code": "secret()"}),
    );
    let shown = format!("{message:?}");
    assert!(
        shown.contains("execute_request") && !shown.contains("secret"),
        "{shown}"
    );
}
