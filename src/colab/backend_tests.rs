//! The backend over a scripted service.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::api::{ErrorInfo, RuntimeSpec, SpecKey};
use super::fake::{Fake, Step, result, runtime, status};
use super::mcp::errors::{Code, Origin, Status};
use super::runtime::{BackendSettings, RuntimeChoice};
use super::session::ColabBackend;
use crate::backend::{
    Backend, BackendError, Cell, ErrorName, Event, EventReceiver, Outcome, StreamName, events,
};

/// Above every wait of the code under test.
const LIMIT: Duration = Duration::from_secs(3600);

fn backend(fake: &Fake) -> Arc<ColabBackend<Fake>> {
    with_settings(fake, BackendSettings::default())
}

fn with_settings(fake: &Fake, settings: BackendSettings) -> Arc<ColabBackend<Fake>> {
    Arc::new(ColabBackend::new(fake.clone(), settings))
}

/// A fake with one plain runtime and these executions.
fn scripted(executions: Vec<Vec<Step>>) -> Fake {
    Fake::new(|script| {
        script.runtimes.push(runtime("a", "NONE"));
        script.executions.extend(executions);
    })
}

fn cell(code: &str) -> Cell {
    Cell {
        code: code.to_owned(),
        store_history: true,
        ..Cell::default()
    }
}

struct Ran {
    outcome: Result<Outcome, BackendError>,
    events: Vec<Event>,
}

impl Ran {
    fn text(&self, wanted: StreamName) -> String {
        self.events
            .iter()
            .filter_map(|event| match event {
                Event::Stream { name, text } if *name == wanted => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    fn stdout(&self) -> String {
        self.text(StreamName::Stdout)
    }

    fn stderr(&self) -> String {
        self.text(StreamName::Stderr)
    }

    fn notices(&self) -> Vec<&str> {
        self.events
            .iter()
            .filter_map(|event| match event {
                Event::Notice(line) => Some(line.as_str()),
                _ => None,
            })
            .collect()
    }

    fn error(&self) -> &BackendError {
        self.outcome.as_ref().unwrap_err()
    }

    fn count(&self) -> Option<u32> {
        self.outcome.as_ref().unwrap().execution_count
    }
}

fn drain(receiver: &mut EventReceiver) -> Vec<Event> {
    std::iter::from_fn(|| receiver.try_recv()).collect()
}

async fn run(backend: &ColabBackend<Fake>, cell: Cell) -> Ran {
    let (sender, mut receiver) = events();
    let outcome = timeout(LIMIT, backend.execute(cell, sender)).await.unwrap();
    Ran {
        outcome,
        events: drain(&mut receiver),
    }
}

/// Runs a cell and interrupts it when the fake's log has this entry, and `after` that.
async fn interrupted(
    fake: &Fake,
    backend: &Arc<ColabBackend<Fake>>,
    entry: &str,
    after: Duration,
) -> (Ran, Duration) {
    let runner = {
        let backend = backend.clone();
        tokio::spawn(async move { run(&backend, cell("while True: pass")).await })
    };
    while fake.count_of(entry) == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(after).await;
    let since = Instant::now();
    backend.interrupt();
    let ran = runner.await.unwrap();
    (ran, since.elapsed())
}

#[tokio::test(start_paused = true)]
async fn nothing_is_contacted_before_the_first_counted_cell() {
    let fake = scripted(Vec::new());
    let backend = backend(&fake);
    let uncounted = Cell {
        code: "import os".into(),
        ..Cell::default()
    };
    assert_eq!(
        run(&backend, uncounted).await.outcome,
        Ok(Outcome::default())
    );
    let silent = Cell {
        silent: true,
        ..cell("1")
    };
    assert!(run(&backend, silent).await.outcome.is_ok());
    backend.interrupt();
    assert!(!backend.has_session());
    assert_eq!(backend.next_execution_count(), 1);
    assert!(fake.log().is_empty());

    let ran = run(&backend, cell("1")).await;
    assert_eq!(ran.count(), Some(1));
    assert!(backend.has_session());
    assert_eq!(backend.next_execution_count(), 2);
    assert_eq!(
        fake.log(),
        ["list_runtimes", "create_session runtimes/a", "execute_code"]
    );
}

#[tokio::test(start_paused = true)]
async fn the_call_is_strict_and_the_session_is_ours() {
    let fake = scripted(Vec::new());
    let backend = backend(&fake);
    for _ in 0..2 {
        run(&backend, cell("print('𝄞\\n')\n")).await;
    }
    let calls = fake.with(|script| script.calls.clone());
    assert_eq!(calls[0].session, calls[1].session);
    assert_ne!(calls[0].execution_id, calls[1].execution_id);
    assert!(uuid::Uuid::parse_str(&calls[0].execution_id).is_ok());
    assert_eq!(calls[0].code, "print('𝄞\\n')\n");
    let id = calls[0]
        .session
        .strip_prefix("runtimes/a/sessions/ck-")
        .unwrap();
    assert!(id.len() <= 60 && id.bytes().all(|b| b.is_ascii_hexdigit()));
    backend.shutdown().await;
    assert_eq!(
        fake.log().last().unwrap(),
        &format!("delete_session {}", calls[0].session)
    );
    assert!(!backend.has_session());
}

#[tokio::test(start_paused = true)]
async fn events_come_in_the_documented_order() {
    let fake = scripted(vec![vec![
        Step::Say("a\n"),
        Step::End(Ok(json!({
            "executionCount": "1",
            "stdout": "a\nb\n",
            "stderr": "w\n",
            "result": "42",
            "executionError": {"name": "ValueError", "value": "v", "traceback": ["t1", "t2"]},
        }))),
    ]]);
    let ran = run(&backend(&fake), cell("x")).await;
    let kinds: Vec<String> = ran
        .events
        .iter()
        .map(|event| match event {
            Event::Notice(_) => "notice".into(),
            Event::Submitted => "submitted".into(),
            Event::Stream { name, text } => format!("{} {text:?}", name.as_str()),
            Event::DisplayData { .. } => "display".into(),
            Event::ExecuteResult { data, .. } => format!("result {}", data["text/plain"]),
            Event::Error(error) => format!("error {} {}", error.ename, error.traceback.len()),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "notice",
            "submitted",
            "stdout \"a\\n\"",
            "stdout \"b\\n\"",
            "stderr \"w\\n\"",
            "result \"42\"",
            "error ValueError 2"
        ]
    );
    let outcome = ran.outcome.unwrap();
    assert_eq!(outcome.execution_count, Some(1));
    assert_eq!(outcome.exception.unwrap().evalue, "v");
}

#[tokio::test(start_paused = true)]
async fn the_newest_running_runtime_of_the_wanted_kind_is_used() {
    let fake = Fake::new(|script| {
        for (id, accelerator) in [("a", "T4"), ("b", "NONE"), ("c", "T4"), ("d", "NONE")] {
            script.runtimes.push(runtime(id, accelerator));
        }
    });
    for (accelerator, expected) in [(None, "runtimes/d"), (Some("t4"), "runtimes/c")] {
        let settings = BackendSettings {
            accelerator: accelerator.map(str::to_owned),
            ..BackendSettings::default()
        };
        let ran = run(&with_settings(&fake, settings), cell("1")).await;
        assert!(
            ran.notices().iter().any(|line| line.contains(expected)),
            "{:?}",
            ran.notices()
        );
        assert_eq!(fake.count_of("create_runtime"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_named_runtime_is_used_or_the_running_ones_are_listed() {
    let fake = scripted(Vec::new());
    for (name, found) in [("a", true), ("runtimes/a", true), ("zz", false)] {
        let settings = BackendSettings {
            runtime: RuntimeChoice::Named(name.into()),
            ..BackendSettings::default()
        };
        let ran = run(&with_settings(&fake, settings), cell("1")).await;
        assert_eq!(ran.outcome.is_ok(), found, "{name}");
        if !found {
            assert_eq!(ran.error().name, ErrorName::ColabRuntimeLost);
            assert!(ran.error().message.contains("runtimes/a (CPU)"));
            assert!(ran.error().message.contains("--runtime"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_runtime_is_created_once_and_kept() {
    let fake = scripted(Vec::new());
    fake.with(|script| {
        let failures = [status(Code::Unavailable), status(Code::ResourceExhausted)];
        script.failures.insert("create_runtime", failures.into());
    });
    let settings = BackendSettings {
        runtime: RuntimeChoice::New,
        ..BackendSettings::default()
    };
    let backend = with_settings(&fake, settings);
    assert!(run(&backend, cell("1")).await.outcome.is_ok());
    let requests: Vec<String> = fake
        .log()
        .into_iter()
        .filter(|line| line.starts_with("create_runtime"))
        .collect();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| *request == requests[0]));
    assert!(run(&backend, cell("2")).await.outcome.is_ok());
    assert_eq!(fake.count_of("create_runtime"), 3);
}

#[tokio::test(start_paused = true)]
async fn refusals_to_create_are_named_with_what_can_be_done() {
    let reasons = [
        (
            "TOO_MANY_ACTIVE_RUNTIMES",
            ErrorName::ColabQuotaExceeded,
            "runtimes/g (L4)",
        ),
        (
            "QUOTA_EXCEEDED_USAGE_TIME",
            ErrorName::ColabQuotaExceeded,
            "usage time",
        ),
        ("DENYLISTED", ErrorName::ColabQuotaExceeded, "barred"),
        ("OUT_OF_STOCK", ErrorName::ColabAcceleratorUnavailable, "T4"),
    ];
    for (reason, name, words) in reasons {
        let fake = Fake::new(|script| {
            script.runtimes.push(runtime("g", "L4"));
            script.specs.push(RuntimeSpec {
                key: SpecKey {
                    variant: "VARIANT_GPU".into(),
                    accelerator: "T4".into(),
                    shape: "SHAPE_STANDARD".into(),
                },
                eligible: true,
            });
            let refusal = Status {
                reason: Some(reason.into()),
                ..status(Code::FailedPrecondition)
            };
            script.failures.insert("create_runtime", [refusal].into());
        });
        let settings = BackendSettings {
            accelerator: Some("t4".into()),
            ..BackendSettings::default()
        };
        let ran = run(&with_settings(&fake, settings), cell("1")).await;
        assert_eq!(ran.error().name, name, "{reason}");
        assert!(ran.error().message.contains(words), "{}", ran.error());
    }
}

#[tokio::test(start_paused = true)]
async fn a_listed_runtime_that_is_not_there_is_passed_over_once() {
    for tool in ["create_session", "execute_code"] {
        let fake = scripted(Vec::new());
        fake.with(|script| {
            script.runtimes.push(runtime("b", "NONE"));
            script
                .failures
                .insert(tool, [status(Code::NotFound)].into());
        });
        let ran = run(&backend(&fake), cell("1")).await;
        assert!(ran.outcome.is_ok(), "{tool}: {:?}", ran.outcome);
        let session = fake.with(|script| script.calls[0].session.clone());
        assert!(session.starts_with("runtimes/a/"), "{tool}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_fetched_by_the_identical_call() {
    for code in [Code::Unavailable, Code::DeadlineExceeded] {
        let fake = scripted(vec![
            vec![Step::Say("one\n"), Step::End(Err(status(code)))],
            vec![Step::Refuse(Status::new(code, Origin::Connect, "away"))],
            vec![
                Step::Say("one\n"),
                Step::Say("two\n"),
                result(1, "one\ntwo\n"),
            ],
        ]);
        let ran = run(&backend(&fake), cell("x")).await;
        assert_eq!(ran.stdout(), "one\ntwo\n");
        assert_eq!(ran.stderr(), "");
        let calls = fake.with(|script| script.calls.clone());
        assert_eq!(calls.len(), 3);
        assert!(calls.iter().all(|call| *call == calls[0]));
        assert_eq!(fake.count_of("list_sessions"), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_run_by_the_service_is_told() {
    let fake = scripted(vec![
        vec![
            Step::Say("one\n"),
            Step::End(Err(status(Code::Unavailable))),
        ],
        vec![result(2, "one\n")],
    ]);
    let ran = run(&backend(&fake), cell("x")).await;
    assert_eq!(ran.count(), Some(2));
    assert!(ran.stderr().contains("ran this cell again"));
    assert_eq!(ran.stdout(), "one\n");
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_the_service_stopped_by_itself_is_told_apart() {
    let fake = scripted(vec![
        vec![
            Step::Say("one\n"),
            Step::End(Err(status(Code::Unavailable))),
        ],
        vec![Step::End(Ok(json!({
            "executionCount": 1, "stdout": "one\n",
            "executionError": {"name": "KeyboardInterrupt", "value": "", "traceback": []},
        })))],
    ]);
    let ran = run(&backend(&fake), cell("x")).await;
    assert_eq!(ran.error().name, ErrorName::ColabCellStopped);
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_ends_the_cell_and_the_next_one_opens_another() {
    let fake = scripted(vec![vec![
        Step::Say("one\n"),
        Step::End(Err(status(Code::Unavailable))),
    ]]);
    let backend = backend(&fake);
    let runner = {
        let backend = backend.clone();
        tokio::spawn(async move { run(&backend, cell("x")).await })
    };
    while fake.count_of("closed") + fake.with(|script| script.calls.len()) == 0 {
        tokio::task::yield_now().await;
    }
    fake.with(|script| script.sessions.clear());
    let ran = runner.await.unwrap();
    assert_eq!(ran.error().name, ErrorName::ColabSessionLost);
    assert_eq!(fake.count_of("execute_code"), 1);

    backend.keep_setup("setup".into());
    let ran = run(&backend, cell("y")).await;
    assert!(ran.stderr().contains("variables of earlier cells are gone"));
    assert_eq!(fake.count_of("create_session"), 2);
    let calls = fake.with(|script| script.calls.clone());
    assert!(calls[1].code.contains("setup") && calls[1].code.starts_with("exec("));
    assert_ne!(calls[0].session, calls[1].session);
    assert!(!run(&backend, cell("z")).await.stderr().contains("gone"));
}

#[tokio::test(start_paused = true)]
async fn a_silently_replaced_session_ends_the_cell_that_shows_it() {
    let fake = scripted(vec![
        vec![result(5, "")],
        vec![Step::Say("hi\n"), result(1, "hi\n")],
    ]);
    let backend = backend(&fake);
    assert_eq!(run(&backend, cell("x")).await.count(), Some(5));
    let ran = run(&backend, cell("y")).await;
    assert_eq!(ran.stdout(), "hi\n");
    assert_eq!(ran.error().name, ErrorName::ColabSessionLost);
    assert!(!backend.has_session());
    let ran = run(&backend, cell("z")).await;
    assert!(ran.outcome.is_ok());
    assert!(ran.stderr().contains("gone"));
}

#[tokio::test(start_paused = true)]
async fn a_lost_runtime_ends_the_cell() {
    let fake = scripted(vec![
        vec![result(1, "")],
        vec![Step::End(Err(status(Code::NotFound)))],
    ]);
    let backend = backend(&fake);
    run(&backend, cell("x")).await;
    let ran = run(&backend, cell("y")).await;
    assert_eq!(ran.error().name, ErrorName::ColabRuntimeLost);
    assert_eq!(fake.count_of("execute_code"), 2);
    assert!(!backend.has_session());
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_waited_for_told_and_in_the_end_named() {
    let limit = || Step::Refuse(status(Code::ResourceExhausted));
    let fake = scripted(vec![vec![limit()], vec![limit()], vec![result(1, "")]]);
    let ran = run(&backend(&fake), cell("x")).await;
    assert!(ran.outcome.is_ok());
    assert!(
        ran.notices()
            .iter()
            .any(|line| line.contains("limits the rate"))
    );
    assert_eq!(fake.count_of("list_sessions"), 0);

    let fake = scripted((0..100).map(|_| vec![limit()]).collect());
    let ran = run(&backend(&fake), cell("x")).await;
    assert_eq!(ran.error().name, ErrorName::ColabRateLimited);
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_service_is_named_in_the_end() {
    let away = Status::new(Code::Unavailable, Origin::Connect, "connection refused");
    let fake = Fake::new(|script| {
        script
            .failures
            .insert("list_runtimes", vec![away; 1000].into());
    });
    let since = Instant::now();
    let ran = run(&backend(&fake), cell("x")).await;
    assert_eq!(ran.error().name, ErrorName::ColabUnreachable);
    assert!(!ran.notices().is_empty());
    assert!(since.elapsed() <= Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn an_outage_after_the_code_began_has_no_end_but_its_own() {
    let mut executions = vec![vec![
        Step::Say("one\n"),
        Step::End(Err(status(Code::DeadlineExceeded))),
    ]];
    executions.extend((0..50).map(|_| vec![Step::Refuse(status(Code::Unavailable))]));
    executions.push(vec![result(1, "one\ntwo\n")]);
    let fake = scripted(executions);
    let since = Instant::now();
    let ran = run(&backend(&fake), cell("x")).await;
    assert_eq!(ran.stdout(), "one\ntwo\n");
    assert!(since.elapsed() > Duration::from_secs(600));
}

#[tokio::test(start_paused = true)]
async fn missing_credentials_are_named_with_their_remedy() {
    let fake = scripted(Vec::new());
    let none = Status::new(Code::Unauthenticated, Origin::Credentials, "run gcloud …");
    fake.with(|script| script.failures.insert("list_runtimes", [none].into()));
    let ran = run(&backend(&fake), cell("x")).await;
    assert_eq!(ran.error().name, ErrorName::ColabAuthRequired);
    assert_eq!(ran.error().message, "run gcloud …");
}

fn keyboard_interrupt() -> Step {
    Step::End(Ok(json!({
        "executionCount": 1,
        "executionError": {"name": "KeyboardInterrupt", "value": "", "traceback": ["real"]},
    })))
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_takes_the_real_traceback_where_the_service_sends_it() {
    let fake = scripted(vec![vec![
        Step::UntilCancelled(Duration::from_millis(20)),
        keyboard_interrupt(),
    ]]);
    let backend = backend(&fake);
    let (ran, took) = interrupted(&fake, &backend, "execute_code", Duration::ZERO).await;
    let exception = ran.outcome.unwrap().exception.unwrap();
    assert_eq!(exception.ename, "KeyboardInterrupt");
    assert_eq!(exception.traceback, ["real"]);
    assert!(took < Duration::from_millis(100), "{took:?}");
    assert_eq!(fake.count_of("cancelled"), 1);
    assert_eq!(fake.count_of("closed"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_closes_the_stream_of_a_service_that_ignores_notifications() {
    for delay in [None, Some(Duration::from_millis(600))] {
        let steps = match delay {
            None => vec![Step::Hang],
            Some(delay) => vec![Step::UntilCancelled(delay), keyboard_interrupt()],
        };
        let fake = scripted(vec![steps]);
        let backend = backend(&fake);
        let (ran, took) = interrupted(&fake, &backend, "execute_code", Duration::ZERO).await;
        assert_eq!(ran.error().name, ErrorName::KeyboardInterrupt);
        assert!(ran.error().message.contains("has not confirmed"));
        assert!(took < Duration::from_millis(500), "{took:?}");
        assert_eq!(fake.count_of("cancelled"), 1);
        assert_eq!(fake.count_of("closed"), 1);
        let used = fake.with(|script| script.calls[0].execution_id.clone());
        assert!(run(&backend, cell("y")).await.outcome.is_ok());
        let next = fake.with(|script| script.calls[1].execution_id.clone());
        assert_ne!(used, next);
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_that_ends_the_stream_counts_as_confirmed() {
    for status in [
        status(Code::Cancelled),
        Status::new(Code::Unavailable, Origin::Transport, "closed"),
    ] {
        let fake = scripted(vec![vec![
            Step::UntilCancelled(Duration::ZERO),
            Step::End(Err(status)),
        ]]);
        let backend = backend(&fake);
        let (ran, _) = interrupted(&fake, &backend, "execute_code", Duration::ZERO).await;
        let exception = ran.outcome.unwrap().exception.unwrap();
        assert_eq!(exception.ename, "KeyboardInterrupt");
        assert!(
            ran.events
                .iter()
                .any(|event| matches!(event, Event::Error(_)))
        );
        assert_eq!(fake.count_of("execute_code"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_every_wait_at_once_and_does_not_leak() {
    let away = Status::new(Code::Unavailable, Origin::Service, "busy");
    for tool in ["list_runtimes", "create_session", "execute_code"] {
        let fake = scripted(Vec::new());
        fake.with(|script| {
            script
                .failures
                .insert(tool, vec![away.clone(), away.clone()].into())
        });
        if tool == "execute_code" {
            fake.with(|script| {
                let limit = status(Code::ResourceExhausted);
                script
                    .failures
                    .insert(tool, vec![limit.clone(), limit].into())
            });
        }
        let backend = backend(&fake);
        let (ran, took) = interrupted(&fake, &backend, tool, Duration::from_millis(100)).await;
        assert_eq!(ran.error().name, ErrorName::KeyboardInterrupt, "{tool}");
        assert!(
            ran.error()
                .message
                .contains("before the cell was submitted")
        );
        assert!(took < Duration::from_millis(50), "{tool}: {took:?}");
        backend.interrupt();
        assert!(run(&backend, cell("y")).await.outcome.is_ok(), "{tool}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_before_the_answer_to_the_request_ends_the_cell() {
    let fake = scripted(vec![vec![Step::Slow(Duration::from_secs(60)), Step::Hang]]);
    let backend = backend(&fake);
    let (ran, took) = interrupted(&fake, &backend, "execute_code", Duration::from_secs(5)).await;
    assert_eq!(ran.error().name, ErrorName::KeyboardInterrupt);
    assert!(ran.events.contains(&Event::Submitted));
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn set_up_code_is_replayed_before_the_first_cell_and_shows_nothing() {
    let fake = scripted(vec![
        vec![Step::Say("noise\n"), result(1, "noise\n")],
        vec![result(2, "x\n")],
    ]);
    let backend = backend(&fake);
    backend.keep_setup("%matplotlib inline".into());
    backend.keep_setup("import os".into());
    assert_eq!(backend.next_execution_count(), 2);
    let ran = run(&backend, cell("x")).await;
    assert_eq!(ran.stdout(), "x\n");
    assert_eq!(ran.stderr(), "");
    assert_eq!(ran.count(), Some(2));
    let calls = fake.with(|script| script.calls.clone());
    assert_eq!(calls.len(), 2);
    assert!(calls[0].code.contains("%matplotlib inline"));
    assert_eq!(calls[1].code, "x");
    assert_eq!(backend.next_execution_count(), 3);
}

#[tokio::test(start_paused = true)]
async fn prompts_are_refused_before_the_first_cell_that_may_ask() {
    let fake = scripted(Vec::new());
    let backend = backend(&fake);
    run(&backend, cell("1")).await;
    assert_eq!(fake.count_of("execute_code"), 1);
    let ran = run(&backend, cell("input()")).await;
    assert_eq!(ran.count(), Some(3));
    run(&backend, cell("input()")).await;
    assert_eq!(fake.count_of("execute_code"), 4);
}

#[tokio::test(start_paused = true)]
async fn uncounted_code_is_wrapped_and_expressions_are_refused() {
    let fake = scripted(Vec::new());
    let backend = backend(&fake);
    run(&backend, cell("1")).await;
    let mut uncounted = Cell {
        code: "a = \"b\"".into(),
        ..Cell::default()
    };
    uncounted.user_expressions.insert("e".into(), "1+1".into());
    let outcome = run(&backend, uncounted).await.outcome.unwrap();
    assert_eq!(outcome.execution_count, None);
    let refused = &outcome.user_expressions["e"];
    assert_eq!(refused["status"], "error");
    assert_eq!(refused["ename"], "ColabCompanionUnavailable");
    let code = fake.with(|script| script.calls[1].code.clone());
    assert!(code.starts_with("exec(") && code.contains("store_history=False"));
    assert_eq!(backend.next_execution_count(), 3);
}

#[tokio::test(start_paused = true)]
async fn outputs_that_are_not_handed_over_are_told() {
    let dropped = json!({
        "executionCount": 1, "richOutputsDropped": true,
        "richOutputs": [{"index": 0, "mimeTypes": ["image/png"], "errorInfo": ErrorInfo {
            reason: "TOO_LARGE".into(), ..ErrorInfo::default()
        }}],
    });
    let fake = scripted(vec![
        vec![Step::End(Ok(dropped))],
        vec![Step::End(Ok(
            json!({"executionCount": 2, "richOutputsDropped": true}),
        ))],
        vec![Step::End(Ok(
            json!({"executionCount": 3, "richOutputsDropped": true}),
        ))],
    ]);
    let backend = backend(&fake);
    let stderr = run(&backend, cell("x")).await.stderr();
    assert!(stderr.contains("image/png") && stderr.contains("TOO_LARGE"));
    assert_eq!(stderr.lines().count(), 1);
    let stderr = run(&backend, cell("y")).await.stderr();
    assert_eq!(stderr.lines().count(), 1);
    assert_eq!(run(&backend, cell("z")).await.stderr(), "");
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_running_cell_and_deletes_its_session() {
    let fake = scripted(vec![vec![Step::Hang]]);
    let backend = backend(&fake);
    let runner = {
        let backend = backend.clone();
        tokio::spawn(async move { run(&backend, cell("x")).await })
    };
    while fake.count_of("execute_code") == 0 {
        tokio::task::yield_now().await;
    }
    let since = Instant::now();
    timeout(Duration::from_secs(2), backend.shutdown())
        .await
        .unwrap();
    assert!(since.elapsed() < Duration::from_secs(1));
    assert!(runner.await.unwrap().outcome.is_err());
    assert_eq!(fake.count_of("cancelled"), 1);
    assert_eq!(fake.count_of("delete_session"), 1);
    assert!(fake.with(|script| script.sessions.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_cell_leaves_the_backend_usable() {
    let fake = scripted(vec![vec![Step::Hang]]);
    let backend = backend(&fake);
    let (sender, _receiver) = events();
    let _ = timeout(Duration::from_secs(1), backend.execute(cell("x"), sender)).await;
    assert_eq!(fake.count_of("closed"), 1);
    assert!(run(&backend, cell("y")).await.outcome.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_read_is_a_protocol_error() {
    let fake = scripted(vec![vec![Step::End(Ok(Value::from("no object")))]]);
    let ran = run(&backend(&fake), cell("x")).await;
    assert_eq!(ran.error().name, ErrorName::ColabProtocolError);
}
