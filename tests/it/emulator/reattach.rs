//! Execution ids: calling again is looking again, until the result was returned.

use serde_json::{Value, json};

use super::lab::{Lab, Stream, eventually, fresh, limited, outcome, request_id, shared, uuid};

/// Counts how often it ran, prints, waits for a file, prints again.
fn counted(session: &str) -> String {
    let id = session.rsplit('/').next().unwrap();
    format!(
        "import os, time\nwith open('runs-{id}', 'a') as f: f.write('x')\nprint('one', flush=True)\nwhile not os.path.exists('go-{id}'): time.sleep(0.01)\nprint('two')\n'done'"
    )
}

async fn go(lab: &Lab, runtime: &str, session: &str) {
    let id = session.rsplit('/').next().unwrap();
    lab.put_file(runtime, &format!("content/go-{id}"), "").await;
}

async fn runs(lab: &Lab, runtime: &str, session: &str) -> usize {
    let id = session.rsplit('/').next().unwrap();
    let path = format!("content/runs-{id}");
    lab.read_file(runtime, &path)
        .await
        .unwrap_or_default()
        .len()
}

async fn result(call: &mut Stream) -> Value {
    let response = call.response().await;
    outcome(call.status, &response).unwrap()
}

#[tokio::test]
async fn the_identical_call_reattaches_until_the_result_was_returned_and_then_runs_again() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["cancel=notification"]).await;
        let session = fresh(&runtime);
        let (code, execution) = (counted(&session), uuid());
        let mut first = lab.begin(&request_id(), &session, &code, &execution).await;
        first.wait_for("one\n").await;
        drop(first);
        // Other code under the same id is not the identical call.
        let mut other = lab.begin(&request_id(), &session, "1", &execution).await;
        let response = other.response().await;
        assert_eq!(outcome(other.status, &response).unwrap_err().status, "INVALID_ARGUMENT");

        let mut second = lab.begin(&request_id(), &session, &code, &execution).await;
        go(&lab, &runtime, &session).await;
        let returned = result(&mut second).await;
        assert_eq!(second.text(), "two\n", "what was streamed is not streamed again");
        let expected = json!({
            "executionId": execution, "session": session, "executionCount": 1, "stdout": "one\ntwo\n", "result": "'done'",
        });
        assert_eq!(returned, expected);
        assert_eq!(runs(&lab, &runtime, &session).await, 1);

        let mut third = lab.begin(&request_id(), &session, &code, &execution).await;
        assert_eq!(result(&mut third).await["executionCount"], 2);
        assert_eq!(third.text(), "one\ntwo\n");
        assert_eq!(runs(&lab, &runtime, &session).await, 2);
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_reattached_call_may_replay_from_the_start() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["cancel=notification", "reattach=replay"]).await;
        let session = fresh(&runtime);
        let (code, execution) = (counted(&session), uuid());
        let mut first = lab.begin(&request_id(), &session, &code, &execution).await;
        first.wait_for("one\n").await;
        drop(first);
        go(&lab, &runtime, &session).await;
        let mut second = lab.begin(&request_id(), &session, &code, &execution).await;
        assert_eq!(result(&mut second).await["stdout"], "one\ntwo\n");
        assert_eq!(second.text(), "one\ntwo\n");
        assert_eq!(runs(&lab, &runtime, &session).await, 1);
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_outlives_its_deadline_ends_and_the_code_runs_on() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["deadline=3"]).await;
        let session = fresh(&runtime);
        let (code, execution) = (counted(&session), uuid());
        // Its start may outlive the deadline as well.
        eventually("the kernel has started", async || {
            lab.execute(&session, "'warm'").await.is_ok()
        })
        .await;
        let mut call = lab.begin(&request_id(), &session, &code, &execution).await;
        call.wait_for("one\n").await;
        // Queued behind it for longer than the deadline: it has not run, and runs when it is called again.
        let (queued_id, queued_code) = (uuid(), "ran = globals().get('ran', 0) + 1; ran");
        let mut queued = lab
            .begin(&request_id(), &session, queued_code, &queued_id)
            .await;
        for call in [&mut call, &mut queued] {
            let response = call.response().await;
            assert_eq!(
                outcome(call.status, &response).unwrap_err().status,
                "DEADLINE_EXCEEDED"
            );
        }
        go(&lab, &runtime, &session).await;
        let mut again = lab.begin(&request_id(), &session, &code, &execution).await;
        assert_eq!(result(&mut again).await["stdout"], "one\ntwo\n");
        assert_eq!(runs(&lab, &runtime, &session).await, 1);
        let mut queued = lab
            .begin(&request_id(), &session, queued_code, &queued_id)
            .await;
        assert_eq!(result(&mut queued).await["result"], "1");
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn cancelling_a_reattached_call_interrupts_the_original_execution() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["cancel=notification"]).await;
        let session = fresh(&runtime);
        let (code, execution) = (counted(&session), uuid());
        let mut first = lab.begin(&request_id(), &session, &code, &execution).await;
        first.wait_for("one\n").await;
        drop(first);
        let id = request_id();
        let mut second = lab.begin(&id, &session, &code, &execution).await;
        lab.cancel(&id).await;
        assert_eq!(
            result(&mut second).await["executionError"]["name"],
            "KeyboardInterrupt"
        );
        assert_eq!(runs(&lab, &runtime, &session).await, 1);
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn two_identical_calls_at_once_follow_one_execution() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let (code, execution) = (counted(&session), uuid());
        let mut first = lab.begin(&request_id(), &session, &code, &execution).await;
        first.wait_for("one\n").await;
        let mut second = lab.begin(&request_id(), &session, &code, &execution).await;
        go(lab, runtime, &session).await;
        assert_eq!(result(&mut first).await, result(&mut second).await);
        assert_eq!(runs(lab, runtime, &session).await, 1);
        lab.close(&session).await;
    })
    .await;
}
