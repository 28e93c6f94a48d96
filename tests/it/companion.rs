//! The companion against the Jupyter Servers of the emulator, and through a proxy.

mod tunnel;

use bytes::Bytes;
use colab_kernel::colab::api::ConnectionInfo;
use colab_kernel::colab::companion::channels::{self, Incoming, OpenError, Outgoing};
use colab_kernel::colab::companion::wire::{Channel, Message, Protocol};
use colab_kernel::colab::companion::{find, rest};
use colab_kernel::colab::runtime_http::RuntimeHttp;
use serde_json::{Value, json};

use crate::emulator::lab::{Lab, fresh, limited, shared};

const OURS: &str = "11111111-2222-3333-4444-555555555555";

async fn connection(lab: &Lab, runtime: &str) -> ConnectionInfo {
    let connection = lab.connection(runtime).await;
    ConnectionInfo {
        token: connection.token,
        expire_time: String::new(),
        url: connection.url,
    }
}

/// The session's kernel, as the listing tells it.
async fn listed(http: &RuntimeHttp, info: &ConnectionInfo, session: &str) -> Option<String> {
    let sessions = rest::sessions(http, info).await.unwrap();
    find::kernel_of(&sessions, session.rsplit('/').next().unwrap())
}

async fn send(
    outgoing: &mut Outgoing,
    channel: Channel,
    msg_type: &str,
    content: Value,
    buffers: Vec<Bytes>,
) -> String {
    let mut message = Message::new(channel, OURS, msg_type, &content);
    message.buffers = buffers;
    outgoing.send(&message).await.unwrap();
    message.id().unwrap()
}

async fn execute(outgoing: &mut Outgoing, code: &str) -> String {
    let content =
        json!({"code": code, "silent": false, "store_history": false, "allow_stdin": false});
    send(
        outgoing,
        Channel::Shell,
        "execute_request",
        content,
        Vec::new(),
    )
    .await
}

/// The next message of this type that answers this request, and those that answered it before.
async fn until(incoming: &mut Incoming, id: &str, msg_type: &str) -> (Message, Vec<Message>) {
    let mut before = Vec::new();
    loop {
        let message = incoming.recv().await.unwrap();
        if message.parent().is_none_or(|parent| parent.msg_id != id) {
            continue;
        }
        assert_eq!(message.parent().unwrap().session, OURS);
        if message.head().unwrap().msg_type == msg_type {
            return (message, before);
        }
        before.push(message);
    }
}

#[tokio::test]
async fn the_sessions_kernel_is_found_by_its_name_and_from_inside() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let probed = lab.execute(&session, &find::probe()).await.unwrap();
        let probed = find::probed(probed["stdout"].as_str().unwrap()).unwrap();
        let http = RuntimeHttp::new();
        let info = connection(lab, runtime).await;
        assert_eq!(listed(&http, &info, &session).await, Some(probed));
        assert_eq!(listed(&http, &info, "ck-nobody").await, None);
        let names = lab
            .execute(&session, "[n for n in dir() if n[0] != '_']")
            .await;
        let names = names.unwrap()["result"].as_str().unwrap().to_owned();
        for name in ["MARK", "file"] {
            assert!(!names.contains(name), "{names}");
        }
        lab.close(&session).await;
    })
    .await;
}

/// What a cell's texts and figures look like from a connection.
async fn see_a_cell(lab: &Lab, runtime: &str, expected: Protocol) {
    let session = fresh(runtime);
    lab.execute(&session, "pass").await.unwrap();
    let http = RuntimeHttp::new();
    let info = connection(lab, runtime).await;
    let kernel = listed(&http, &info, &session).await.unwrap();
    let (mut outgoing, mut incoming) = channels::open(&http, &info, &kernel, OURS).await.unwrap();
    assert_eq!(outgoing.protocol(), expected);

    let id = execute(&mut outgoing, "print('é😀'); display({'a/b': 7}, raw=True)").await;
    let (reply, mut heard) = until(&mut incoming, &id, "execute_reply").await;
    assert_eq!(reply.channel, Channel::Shell);
    assert_eq!(reply.content::<Value>().unwrap()["status"], "ok");
    let is_idle =
        |message: &Message| message.content::<Value>().unwrap()["execution_state"] == "idle";
    while !heard.iter().any(is_idle) {
        let (status, before) = until(&mut incoming, &id, "status").await;
        heard.extend(before);
        heard.push(status);
    }
    let of_type = |msg_type: &str| -> Value {
        let message = heard
            .iter()
            .find(|message| message.head().unwrap().msg_type == msg_type)
            .unwrap_or_else(|| panic!("no {msg_type} in {heard:?}"));
        assert_eq!(message.channel, Channel::IoPub);
        message.content().unwrap()
    };
    assert_eq!(of_type("stream")["text"], "é😀\n");
    assert_eq!(of_type("display_data")["data"]["a/b"], 7);

    // Half a character, which not every kernel can send: the cell ends and the connection goes on.
    let id = execute(&mut outgoing, "print('a\\ud800b')").await;
    let (_, heard) = until(&mut incoming, &id, "execute_reply").await;
    for message in &heard {
        message.content::<Value>().unwrap();
    }

    // Buffers both ways. Tornado takes no more than 10 MiB from a client.
    let code = "\
def opened(comm, message):
    comm.send({'sum': sum(message['buffers'][0][::1 << 20])}, buffers=[b'x', bytes(80 << 20)])
get_ipython().kernel.comm_manager.register_target('big', opened)";
    let id = execute(&mut outgoing, code).await;
    until(&mut incoming, &id, "execute_reply").await;
    let content = json!({"comm_id": "c", "target_name": "big", "data": {}});
    let buffer = Bytes::from(vec![7; 9 << 20]);
    let id = send(
        &mut outgoing,
        Channel::Shell,
        "comm_open",
        content,
        vec![buffer],
    )
    .await;
    let (answer, _) = until(&mut incoming, &id, "comm_msg").await;
    assert_eq!(answer.content::<Value>().unwrap()["data"]["sum"], 63);
    assert_eq!(answer.buffers[0], "x");
    assert_eq!(answer.buffers[1].len(), 80 << 20);

    // Control answers while shell is busy, and the server's interrupt ends the cell.
    let busy = execute(&mut outgoing, "import time\nprint('on')\ntime.sleep(600)").await;
    until(&mut incoming, &busy, "stream").await;
    let asked = send(
        &mut outgoing,
        Channel::Control,
        "kernel_info_request",
        json!({}),
        Vec::new(),
    )
    .await;
    let (info_reply, _) = until(&mut incoming, &asked, "kernel_info_reply").await;
    assert_eq!(info_reply.channel, Channel::Control);
    rest::interrupt(&http, &info, &kernel).await.unwrap();
    let (error, _) = until(&mut incoming, &busy, "error").await;
    assert_eq!(
        error.content::<Value>().unwrap()["ename"],
        "KeyboardInterrupt"
    );
    lab.close(&session).await;
}

#[tokio::test]
async fn a_cell_is_seen_in_the_binary_encoding() {
    limited(async {
        let (lab, runtime) = shared().await;
        see_a_cell(lab, runtime, Protocol::V1).await;
    })
    .await;
}

#[tokio::test]
async fn a_cell_is_seen_in_the_default_encoding() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["channels=default"]).await;
        see_a_cell(&lab, &runtime, Protocol::Default).await;
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_real_servers_refusals_are_told_apart() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&[]).await;
        let session = fresh(&runtime);
        lab.execute(&session, "pass").await.unwrap();
        let http = RuntimeHttp::new();
        let info = connection(&lab, &runtime).await;
        let kernel = listed(&http, &info, &session).await.unwrap();
        let nobody = "00000000-0000-0000-0000-000000000000";
        let error = channels::open(&http, &info, nobody, OURS)
            .await
            .unwrap_err();
        assert_eq!(error, OpenError::NoKernel);
        assert_eq!(
            rest::interrupt(&http, &info, nobody).await,
            Err(rest::RestError::Refused(404))
        );
        let stale = ConnectionInfo {
            token: "stale".into(),
            ..info.clone()
        };
        let error = channels::open(&http, &stale, &kernel, OURS)
            .await
            .unwrap_err();
        assert_eq!(error, OpenError::Token(404));
        assert_eq!(
            rest::sessions(&http, &stale).await,
            Err(rest::RestError::Refused(404))
        );

        let (_outgoing, mut incoming) = channels::open(&http, &info, &kernel, OURS).await.unwrap();
        lab.call("delete_runtime", json!({"name": runtime}))
            .await
            .unwrap();
        while incoming.recv().await.is_ok() {}
        lab.shutdown().await;
    })
    .await;
}
