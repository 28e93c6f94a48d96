//! What interrupts a call, and what does not.

use serde_json::Value;

use super::lab::{Lab, Stream, eventually, fresh, limited, outcome, request_id, shared};

const FOREVER: &str = "print('running', flush=True)\nwhile True: pass";

#[tokio::test]
async fn a_notification_interrupts_the_kernel_and_the_call_ends_with_its_result() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        lab.execute(&session, "x = 1").await.unwrap();
        let id = request_id();
        let mut call = lab.begin(&id, &session, FOREVER, "").await;
        call.wait_for("running").await;
        // What does not name it leaves it alone.
        lab.cancel("another").await;
        lab.cancel(&id).await;
        lab.cancel(&id).await;
        assert_interrupted(&mut call).await;
        assert_eq!(lab.execute(&session, "x").await.unwrap()["result"], "1");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn cancelling_aborts_the_calls_that_wait() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let id = request_id();
        let mut call = lab.begin(&id, &session, FOREVER, "").await;
        call.wait_for("running").await;
        let mut queued = lab.begin(&request_id(), &session, "ran = True", "").await;
        let mut cancelled = lab
            .begin("the queued one", &session, "ran = True", "")
            .await;
        // A queued call that is cancelled stops what runs as well: the kernel is what is interrupted.
        lab.cancel("the queued one").await;
        assert_interrupted(&mut call).await;
        assert_eq!(refusal(&mut queued).await, "ABORTED");
        assert_eq!(refusal(&mut cancelled).await, "CANCELLED");
        assert_eq!(
            lab.execute(&session, "'ran' in globals()").await.unwrap()["result"],
            "False"
        );
        lab.close(&session).await;
    })
    .await;
}

/// The next call runs: it would wait for ever behind an endless loop. Where it is queued before the closing of the loop's stream
/// is seen, it is aborted with the loop.
async fn assert_next_runs(lab: &Lab, session: &str) {
    let next = match lab.execute(session, "'next'").await {
        Err(refused) if refused.reason == "SESSION_INTERRUPTED" => {
            lab.execute(session, "'next'").await
        }
        next => next,
    };
    assert_eq!(next.unwrap()["result"], "'next'");
}

#[tokio::test]
async fn closing_the_stream_interrupts_the_kernel() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let mut call = lab.begin(&request_id(), &session, FOREVER, "").await;
        call.wait_for("running").await;
        drop(call);
        assert_next_runs(lab, &session).await;
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn closing_the_stream_of_a_cancelled_call_is_no_second_interrupt() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let id = request_id();
        let code = "import time\nhits = 0\nprint('running', flush=True)\nend = time.time() + 2\nwhile time.time() < end:\n    try: time.sleep(0.05)\n    except KeyboardInterrupt: hits += 1; print('hit', flush=True)";
        let mut call = lab.begin(&id, &session, code, "").await;
        call.wait_for("running").await;
        lab.cancel(&id).await;
        call.wait_for("hit").await;
        drop(call);
        assert_eq!(lab.execute(&session, "hits").await.unwrap()["result"], "1");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn where_only_notifications_cancel_a_closed_stream_leaves_the_code_running() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["cancel=notification"]).await;
        let session = fresh(&runtime);
        let id = request_id();
        let mut call = lab
            .begin(
                &id,
                &session,
                "import time\nprint('running', flush=True)\ntime.sleep(1)\nfinished = True",
                "",
            )
            .await;
        call.wait_for("running").await;
        drop(call);
        assert_eq!(
            lab.execute(&session, "finished").await.unwrap()["result"],
            "True"
        );
        let mut call = lab.begin(&id, &session, FOREVER, "").await;
        call.wait_for("running").await;
        lab.cancel(&id).await;
        assert_interrupted(&mut call).await;
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn where_only_a_closed_stream_cancels_a_notification_is_dropped() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["cancel=disconnect"]).await;
        let session = fresh(&runtime);
        let id = request_id();
        let mut call = lab
            .begin(
                &id,
                &session,
                "import time\nprint('running', flush=True)\ntime.sleep(1)\n'whole'",
                "",
            )
            .await;
        call.wait_for("running").await;
        lab.cancel(&id).await;
        let response = call.response().await;
        assert_eq!(response["result"]["structuredContent"]["result"], "'whole'");
        let mut call = lab.begin(&id, &session, FOREVER, "").await;
        call.wait_for("running").await;
        drop(call);
        assert_next_runs(&lab, &session).await;
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_cancelled_call_may_end_with_an_error_or_with_nothing() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["cancelled=error"]).await;
        let session = fresh(&runtime);
        let mut call = lab.begin("it", &session, FOREVER, "").await;
        call.wait_for("running").await;
        lab.cancel("it").await;
        assert_eq!(refusal(&mut call).await, "CANCELLED");
        assert_next_runs(&lab, &session).await;
        lab.shutdown().await;

        let (lab, runtime) = Lab::with_runtime(&["cancelled=none"]).await;
        let session = fresh(&runtime);
        let mut call = lab.begin("it", &session, FOREVER, "").await;
        call.wait_for("running").await;
        lab.cancel("it").await;
        assert_eq!(
            lab.execute(&session, "'next'").await.unwrap()["result"],
            "'next'"
        );
        let silence = tokio::time::timeout(std::time::Duration::from_millis(300), call.response());
        assert!(silence.await.is_err(), "no response to what was cancelled");
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn an_input_that_hangs_can_be_cancelled() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["stdin=hang"]).await;
        let session = fresh(&runtime);
        let mut call = lab
            .begin(
                "it",
                &session,
                "open('asking', 'w').close()\ninput('? ')",
                "",
            )
            .await;
        eventually("the code runs", async || {
            lab.read_file(&runtime, "content/asking").await.is_some()
        })
        .await;
        lab.cancel("it").await;
        let response = call.response().await;
        assert_eq!(
            response["result"]["structuredContent"]["executionError"]["name"],
            "KeyboardInterrupt"
        );
        lab.shutdown().await;
    })
    .await;
}

async fn assert_interrupted(call: &mut Stream) {
    let response = call.response().await;
    let result: &Value = &response["result"]["structuredContent"];
    assert_eq!(
        result["executionError"]["name"], "KeyboardInterrupt",
        "{response}"
    );
}

async fn refusal(call: &mut Stream) -> String {
    let response = call.response().await;
    outcome(call.status, &response).unwrap_err().status
}
