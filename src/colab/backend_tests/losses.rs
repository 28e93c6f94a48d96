//! Lost answers, sessions, machines and patience.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_fetched_by_the_identical_call() {
    for code in [Code::Unavailable, Code::DeadlineExceeded] {
        let fake = scripted(vec![
            vec![Step::Say("one\n"), Step::End(Err(status(code)))],
            vec![Step::End(Err(Status::new(
                Code::Unavailable,
                Origin::Connect,
                "away",
            )))],
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
        tokio::time::sleep(Duration::from_millis(1)).await;
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
async fn a_number_that_never_changes_is_no_loss() {
    let always_one = || vec![result(1, "hi\n")];
    let fake = scripted(vec![always_one(), always_one(), always_one(), always_one()]);
    let backend = backend(&fake);
    assert_eq!(run(&backend, cell("x")).await.count(), Some(1));
    // Whether it means another kernel is found out once, by a run of nothing.
    for expected in [2, 3] {
        assert_eq!(backend.next_execution_count(), expected);
        let ran = run(&backend, cell("y")).await;
        assert_eq!(ran.count(), None);
        assert_eq!(ran.stderr(), "");
    }
    assert_eq!(fake.count_of("execute_code"), 4);
    assert_eq!(fake.count_of("create_session"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_replaced_after_its_first_cell_is_found_out() {
    let fake = scripted(vec![
        vec![result(1, "")],
        vec![result(1, "")],
        vec![result(2, "")],
    ]);
    let backend = backend(&fake);
    run(&backend, cell("x")).await;
    let ran = run(&backend, cell("y")).await;
    assert_eq!(ran.error().name, ErrorName::ColabSessionLost);
    assert_eq!(fake.count_of("execute_code"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_refused_list_of_sessions_does_not_end_a_cell_that_goes_on() {
    let fake = scripted(vec![
        vec![
            Step::Say("one\n"),
            Step::End(Err(status(Code::DeadlineExceeded))),
        ],
        vec![Step::Say("two\n"), result(1, "one\ntwo\n")],
    ]);
    fake.with(|script| {
        let refusals = script.failures.entry("list_sessions").or_default();
        refusals.push_back(status(Code::PermissionDenied));
    });
    let ran = run(&backend(&fake), cell("x")).await;
    assert_eq!(ran.stdout(), "one\ntwo\n");
    assert_eq!(ran.count(), Some(1));
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
    // NOT_FOUND is also what a runtime gets that does not answer for a while: its session is not left behind.
    backend.shutdown().await;
    assert_eq!(fake.with(|script| script.sessions.clone()), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_waited_for_told_and_in_the_end_named() {
    let limit = || Step::End(Err(status(Code::ResourceExhausted)));
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
    assert!(since.elapsed() <= Duration::from_secs(40));
}

#[tokio::test(start_paused = true)]
async fn an_outage_after_the_code_began_has_no_end_but_its_own() {
    let mut executions = vec![vec![
        Step::Say("one\n"),
        Step::End(Err(status(Code::DeadlineExceeded))),
    ]];
    executions.extend((0..50).map(|_| vec![Step::End(Err(status(Code::Unavailable)))]));
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

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_read_is_a_protocol_error() {
    let fake = scripted(vec![vec![Step::End(Ok(Value::from("no object")))]]);
    let ran = run(&backend(&fake), cell("x")).await;
    assert_eq!(ran.error().name, ErrorName::ColabProtocolError);
}
