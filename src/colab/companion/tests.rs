//! The journal over a scripted kernel.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::activity::Arrival;
use super::fake_kernel::{FakeKernel, KERNEL};
use super::link::{Health, Loss, NoAddress};
use super::*;
use crate::backend::{Event, EventReceiver, Origin, StreamName, events};

const LIMIT: Duration = Duration::from_secs(30);

async fn companion() -> (FakeKernel, Companion, EventReceiver) {
    companion_at(Ok).await
}

/// A companion whose runtime is asked for its address again with this outcome.
async fn companion_at(
    again: impl Fn(ConnectionInfo) -> Result<ConnectionInfo, NoAddress> + Send + Sync + 'static,
) -> (FakeKernel, Companion, EventReceiver) {
    let (kernel, info) = FakeKernel::serve().await;
    let (background, receiver) = events();
    let known = info.clone();
    let setup = Setup {
        http: RuntimeHttp::new(),
        info,
        address: Arc::new(move || {
            let address = again(known.clone());
            Box::pin(async move { address })
        }),
        kernel: KERNEL.to_owned(),
        background,
        count: 1,
        settings: CompanionSettings {
            journal_bytes: JOURNAL_BYTES,
            forwarded: Page::default(),
        },
    };
    let companion = Companion::start(setup).await.unwrap();
    (kernel, companion, receiver)
}

fn origin(id: &str) -> Origin {
    let header = json!({"msg_id": id, "msg_type": "execute_request", "session": "f"});
    Origin::new(header.to_string().into())
}

/// What an activity is told up to its end, in short; `lost` where that is not told.
async fn told(activity: &mut Activity) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        let arrival = timeout(LIMIT, activity.recv()).await.expect("no end");
        told.push(match arrival {
            None => "lost".to_owned(),
            Some(Arrival::Began { .. }) => "began".to_owned(),
            Some(Arrival::Message(_, message)) => match events::event(&message) {
                Some(Event::Stream { text, .. }) => text,
                other => format!("{other:?}"),
            },
            Some(Arrival::Prompt(prompt)) => format!("? {}", prompt.prompt),
            Some(Arrival::Reply(reply)) => reply.status.unwrap_or_default(),
            Some(Arrival::Hole(missing)) => format!("hole of {missing}"),
            Some(Arrival::Ended(_)) => "ended".to_owned(),
        });
        if matches!(told.last().map(String::as_str), Some("ended" | "lost")) {
            return told;
        }
    }
}

async fn until(condition: impl Fn() -> bool) {
    let waited = async {
        while !condition() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LIMIT, waited).await.expect("it never came");
}

fn ok() -> serde_json::Value {
    json!({"status": "ok"})
}

#[tokio::test]
async fn what_a_server_dropped_is_replayed_in_its_place() {
    let (kernel, companion, _background) = companion().await;
    let mut activity = companion.expect("x".into(), origin("1"));
    let request = kernel.begin("x", "service");
    kernel.print(&request, "a");
    kernel.mute(true);
    kernel.print(&request, "b");
    kernel.print(&request, "c");
    kernel.mute(false);
    kernel.print(&request, "d");
    kernel.end(&request, ok());
    assert_eq!(
        told(&mut activity).await,
        ["began", "a", "b", "c", "d", "ok", "ended"]
    );
    // Another client's run of the same code is left out, and so is what nobody asked for.
    let foreign = kernel.begin("x", "stranger");
    kernel.print(&foreign, "not ours");
    kernel.end(&foreign, ok());
}

#[tokio::test]
async fn a_lost_end_is_found_without_a_live_message() {
    let (kernel, companion, _background) = companion().await;
    let mut activity = companion.expect("x".into(), origin("1"));
    let request = kernel.begin("x", "service");
    kernel.mute(true);
    kernel.print(&request, "a");
    kernel.end(&request, ok());
    let since = Instant::now();
    assert_eq!(told(&mut activity).await, ["began", "a", "ok", "ended"]);
    assert!(since.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_notice_of_dropped_messages_is_followed_at_once() {
    let (kernel, companion, _background) = companion().await;
    let mut activity = companion.expect("x".into(), origin("1"));
    let request = kernel.begin("x", "service");
    kernel.mute(true);
    kernel.print(&request, "a");
    kernel.end(&request, ok());
    kernel.with(|kernel| kernel.notice("stream", json!({"name": "stderr", "text": "limit"})));
    let since = Instant::now();
    assert_eq!(told(&mut activity).await, ["began", "a", "ok", "ended"]);
    assert!(since.elapsed() < Duration::from_millis(1500));
}

#[tokio::test]
async fn an_idle_session_costs_no_requests_when_it_has_been_idle_for_a_while() {
    let (kernel, companion, _background) = companion().await;
    // Right behind an activity, and only then, threads are looked after.
    sleep(Duration::from_secs(9)).await;
    let asked = kernel.with(|kernel| kernel.asked.len());
    sleep(Duration::from_secs(5)).await;
    assert_eq!(kernel.with(|kernel| kernel.asked.len()), asked);
    drop(companion);
}

#[tokio::test]
async fn a_hole_is_told_and_the_cell_ends_by_the_table() {
    let (kernel, companion, _background) = companion().await;
    let mut activity = companion.expect("x".into(), origin("1"));
    kernel.mute(true);
    let request = kernel.begin("x", "service");
    kernel.print(&request, "a");
    kernel.end(&request, json!({"status": "error"}));
    kernel.evict();
    companion.journal().poke();
    let told = told(&mut activity).await;
    assert!(told[0].starts_with("hole of "), "{told:?}");
    assert_eq!(told[1..], ["began", "error", "ended"]);
}

#[tokio::test]
async fn another_journal_is_a_loss_and_ends_what_waits() {
    let (kernel, companion, _background) = companion().await;
    let mut activity = companion.expect("x".into(), origin("1"));
    let request = kernel.begin("x", "service");
    kernel.print(&request, "a");
    kernel.with(|kernel| kernel.journal = "journal-2".into());
    kernel.print(&request, "b");
    assert_eq!(told(&mut activity).await, ["began", "a", "lost"]);
    let health = *companion.health().borrow();
    assert_eq!(health, Health::Lost(Loss::AnotherJournal));
    let mut later = companion.expect("y".into(), origin("2"));
    assert_eq!(self::told(&mut later).await, ["lost"]);
}

#[tokio::test]
async fn a_runtime_that_is_gone_is_not_asked_for_for_ever() {
    let (kernel, companion, _background) = companion_at(|_| Err(NoAddress::Gone)).await;
    let mut activity = companion.expect("x".into(), origin("1"));
    kernel.cut();
    assert_eq!(told(&mut activity).await, ["lost"]);
    assert!(companion.is_without_runtime());
}

#[tokio::test]
async fn requests_that_come_back_without_a_reply_are_a_loss() {
    let (kernel, companion, _background) = companion().await;
    kernel.with(|kernel| kernel.journal = String::new());
    companion.journal().poke();
    until(|| companion.is_lost()).await;
    let health = *companion.health().borrow();
    assert_eq!(health, Health::Lost(Loss::NoBootstrap));
}

#[tokio::test]
async fn the_signs_of_a_restart_come_behind_what_was_printed_before() {
    for numbered in [true, false] {
        let (kernel, companion, _background) = companion().await;
        let mut activity = companion.expect("x".into(), origin("1"));
        let request = kernel.begin("x", "service");
        kernel.print(&request, "a");
        if numbered {
            kernel.publish(&request, "shutdown_reply", json!({"restart": true}));
        } else {
            let restarting = json!({"execution_state": "restarting"});
            kernel.with(|kernel| kernel.notice("status", restarting));
        }
        assert_eq!(told(&mut activity).await, ["began", "a", "lost"]);
        assert!(companion.is_lost());
    }
}

#[tokio::test]
async fn what_came_while_the_connection_was_away_is_read_when_it_is_back() {
    let (kernel, companion, _background) = companion().await;
    let mut activity = companion.expect("x".into(), origin("1"));
    let request = kernel.begin("x", "service");
    kernel.print(&request, "a");
    kernel.cut();
    until(|| companion.is_away_for(Duration::ZERO)).await;
    let (asked, open) = (
        json!({"key": "1", "cell": "c", "prompt": "old", "password": false}),
        "open",
    );
    kernel.publish(&request, "ck_input_request", asked);
    kernel.print(&request, "b");
    let header: serde_json::Value = request_header(&request);
    let prompt = json!({"key": "2", "cell": header["msg_id"], "prompt": open, "password": false});
    kernel.with(|kernel| {
        kernel.inputs = vec![prompt];
        kernel.closed = false;
    });
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "? open") {
        match timeout(LIMIT, activity.recv()).await.unwrap().unwrap() {
            Arrival::Message(_, message) => match events::event(&message) {
                Some(Event::Stream { text, .. }) => seen.push(text),
                other => panic!("{other:?}"),
            },
            Arrival::Prompt(prompt) => seen.push(format!("? {}", prompt.prompt)),
            _ => {}
        }
    }
    assert_eq!(seen, ["a", "b", "? open"]);
    kernel.end(&request, ok());
    assert_eq!(told(&mut activity).await, ["ok", "ended"]);
}

#[tokio::test]
async fn a_poll_is_told_of_when_all_that_it_told_of_has_been_handed_out() {
    let (kernel, companion, _background) = companion().await;
    let mut activity = companion.expect("x".into(), origin("1"));
    let mut telling = companion.journal().told();
    kernel.mute(true);
    let request = kernel.begin("x", "service");
    for _ in 0..20 {
        kernel.print(&request, "a");
    }
    let sent = telling.borrow().sent;
    companion.journal().poke();
    let is_told = telling.wait_for(|told| told.polls > sent && told.caught_up);
    let reads = async {
        let mut printed = 0;
        while printed < 20 {
            let arrival = activity.recv().await.unwrap();
            printed += usize::from(matches!(arrival, Arrival::Message(..)));
        }
        std::future::pending::<()>().await;
    };
    timeout(LIMIT, async {
        tokio::select! {
            told = is_told => { told.unwrap(); }
            () = reads => {}
        }
    })
    .await
    .unwrap();
    assert!(activity.is_adopted());
    assert!(
        activity
            .try_recv()
            .is_none_or(|arrival| matches!(arrival, Arrival::Message(..)))
    );
}

#[tokio::test]
async fn output_between_activities_goes_to_the_background() {
    let (kernel, companion, mut background) = companion().await;
    let mut activity = companion.expect("x".into(), origin("1"));
    let request = kernel.begin("x", "service");
    kernel.end(&request, ok());
    told(&mut activity).await;
    drop(activity);
    kernel.print(&request, "late");
    let event = timeout(LIMIT, background.recv()).await.unwrap();
    let late = Event::Stream {
        name: StreamName::Stdout,
        text: "late".into(),
    };
    assert_eq!(event, Some(Event::Of(origin("1"), Box::new(late))));
}

fn request_header(request: &fake_kernel::Request) -> serde_json::Value {
    serde_json::from_slice(request.header()).unwrap()
}
