//! What becomes of a cell that runs.

use super::*;

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
            other => panic!("not over execute_code: {other:?}"),
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
