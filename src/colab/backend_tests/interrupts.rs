//! Interrupts, shutdown and dropped cells.

use super::*;

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
async fn an_interrupt_before_the_kernel_has_counted_the_cell_is_no_sign_of_a_new_session() {
    let fake = scripted(vec![
        vec![result(1, "")],
        vec![keyboard_interrupt()],
        vec![result(2, "")],
    ]);
    let backend = backend(&fake);
    assert_eq!(run(&backend, cell("x")).await.count(), Some(1));
    let ran = run(&backend, cell("y")).await;
    assert_eq!(ran.count(), None, "it has the number that was expected");
    let exception = ran.outcome.unwrap().exception.unwrap();
    assert_eq!(exception.ename, "KeyboardInterrupt");
    assert!(backend.has_session());
    assert_eq!(run(&backend, cell("z")).await.count(), Some(2));
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
        assert!(run(&backend, cell("y")).await.outcome.is_ok(), "{tool}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_before_the_answer_to_the_request_ends_the_cell() {
    let fake = scripted(vec![vec![Step::Pause(Duration::from_secs(60)), Step::Hang]]);
    let backend = backend(&fake);
    let (ran, took) = interrupted(&fake, &backend, "execute_code", Duration::from_secs(5)).await;
    assert_eq!(ran.error().name, ErrorName::KeyboardInterrupt);
    assert!(ran.events.contains(&Event::Submitted));
    assert!(took < Duration::from_millis(500), "{took:?}");
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
        tokio::time::sleep(Duration::from_millis(1)).await;
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
async fn an_interrupt_between_two_calls_of_running_code_reaches_it() {
    // Streaming ended by deadline; the list of sessions is slow to come, and there the interrupt falls.
    let fake = scripted(vec![
        vec![
            Step::Say("go\n"),
            Step::Pause(Duration::from_secs(60)),
            Step::End(Err(status(Code::DeadlineExceeded))),
        ],
        vec![Step::UntilCancelled(Duration::ZERO), keyboard_interrupt()],
    ]);
    let busy = status(Code::Unavailable);
    fake.with(|script| {
        script
            .failures
            .insert("list_sessions", vec![busy; 3].into())
    });
    let backend = backend(&fake);
    let (ran, took) =
        interrupted(&fake, &backend, "list_sessions", Duration::from_millis(100)).await;
    assert_eq!(ran.outcome.unwrap().exception.unwrap().traceback, ["real"]);
    assert!(took < Duration::from_millis(500), "{took:?}");
    let calls = fake.with(|script| script.calls.clone());
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1]);
    assert_eq!(fake.count_of("cancelled"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_while_the_connection_is_lost_says_so() {
    let fake = scripted(vec![vec![
        Step::Say("go\n"),
        Step::End(Err(status(Code::Unavailable))),
    ]]);
    let backend = backend(&fake);
    let (ran, took) =
        interrupted(&fake, &backend, "execute_code", Duration::from_millis(100)).await;
    assert_eq!(ran.error().name, ErrorName::KeyboardInterrupt);
    assert!(ran.error().message.contains("connection to Colab was lost"));
    assert!(took < Duration::from_millis(50), "{took:?}");
    assert_eq!(fake.count_of("execute_code"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_is_swept_away_with_the_interrupted_one_before_it_runs_all_the_same() {
    let aborted = || vec![Step::End(Err(status(Code::Aborted)))];
    let fake = scripted(vec![
        vec![Step::Hang],
        aborted(),
        vec![result(2, "")],
        aborted(),
    ]);
    let backend = backend(&fake);
    let (ran, _) = interrupted(&fake, &backend, "execute_code", Duration::ZERO).await;
    assert!(ran.error().message.contains("has not confirmed"));
    assert!(run(&backend, cell("y")).await.outcome.is_ok());
    let ids = fake.with(|script| {
        let ids = script.calls.iter().map(|call| call.execution_id.clone());
        ids.collect::<std::collections::HashSet<_>>()
    });
    assert_eq!(ids.len(), 3, "an aborted execution is not resumed");
    // With nothing stopped before it, an aborted cell may have run: it is not repeated.
    let ran = run(&backend, cell("z")).await;
    assert_eq!(ran.error().name, ErrorName::ColabCellStopped);
    assert_eq!(fake.count_of("execute_code"), 4);
}
