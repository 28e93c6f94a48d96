//! The Colab backend over the real MCP client against a scripted server.

mod colab;

use std::sync::Arc;
use std::time::Duration;

use colab_kernel::backend::{
    Backend, BackendError, Cell, ErrorName, Event, Outcome, StreamName, events,
};
use colab_kernel::colab::mcp::Client;
use colab_kernel::colab::runtime::BackendSettings;
use colab_kernel::colab::session::ColabBackend;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use self::colab::{Colab, Fixed, Play, Stops};

const LIMIT: Duration = Duration::from_secs(30);

type Colabs = Arc<ColabBackend<Client>>;

async fn start(colab: Colab) -> (Arc<Colab>, Colabs) {
    let (colab, endpoint) = colab.serve().await;
    let client = Client::new(endpoint, Arc::new(Fixed)).unwrap();
    let backend = ColabBackend::new(client, BackendSettings::default());
    (colab, Arc::new(backend))
}

fn cell(code: &str) -> Cell {
    Cell {
        code: code.to_owned(),
        store_history: true,
        ..Cell::default()
    }
}

async fn run(backend: &Colabs, code: &str) -> (Result<Outcome, BackendError>, Vec<Event>) {
    run_cell(backend, cell(code)).await
}

async fn run_cell(backend: &Colabs, cell: Cell) -> (Result<Outcome, BackendError>, Vec<Event>) {
    let (sender, mut receiver) = events();
    let outcome = timeout(LIMIT, backend.execute(cell, sender)).await.unwrap();
    let events = std::iter::from_fn(|| receiver.try_recv()).collect();
    (outcome, events)
}

fn text(events: &[Event], wanted: StreamName) -> String {
    let texts = events.iter().filter_map(|event| match event {
        Event::Stream { name, text } if *name == wanted => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Waits for a condition.
async fn until(condition: impl Fn() -> bool) {
    timeout(LIMIT, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_cell_runs_and_its_session_is_deleted() {
    for json_only in [false, true] {
        let (colab, backend) = start(Colab {
            json_only,
            ..Colab::new(vec![Play::Run(
                vec!["a\r", "𝄞\n"],
                json!({"stdout": "a\r𝄞\nend", "stderr": "w", "result": "7"}),
            )])
        })
        .await;
        let (outcome, events) = run(&backend, "7").await;
        assert_eq!(outcome.unwrap().execution_count, Some(1));
        assert_eq!(text(&events, StreamName::Stdout), "a\r𝄞\nend");
        assert_eq!(text(&events, StreamName::Stderr), "w");
        assert!(
            matches!(events.last(), Some(Event::ExecuteResult { data, .. }) if data["text/plain"] == "7")
        );
        timeout(LIMIT, backend.shutdown()).await.unwrap();
        assert!(colab.sessions.lock().unwrap().is_empty());
        assert_eq!(colab.count_of("delete_session"), 1);
    }
}

#[tokio::test]
async fn rich_outputs_are_fetched_with_a_fresh_token_and_the_table_is_one_output() {
    let outputs = json!([
        {"index": 0, "mimeTypes": ["image/png"], "filePath": "/content/.out/a b.json"},
        {"index": 1, "mimeTypes": ["text/html"], "filePath": "/content/.out/out-001.json", "sizeBytes": "12"},
        {"index": 2, "mimeTypes": ["image/png"], "filePath": "/content/.out/none.json"},
    ]);
    let result = json!({"result": "   a\n0  1", "richOutputs": outputs});
    let (colab, backend) = start(Colab {
        files: vec![
            ("content/.out/a b.json", json!({"data": {"image/png": "AA"}})),
            (
                "content/.out/out-001.json",
                json!({"output_type": "display_data", "data": {"text/plain": ["   a\n", "0  1"], "text/html": "<table>"}}),
            ),
        ],
        ..Colab::new(vec![Play::Run(Vec::new(), json!({})), Play::Run(Vec::new(), result)])
    })
    .await;
    run(&backend, "1").await.0.unwrap();
    *colab.token.lock().unwrap() = "t1".into();
    let (outcome, events) = run(&backend, "df").await;
    assert!(outcome.is_ok());
    let kinds: Vec<String> = events
        .iter()
        .map(|event| match event {
            Event::DisplayData { data, .. } => format!("display {}", keys(data)),
            Event::ExecuteResult { data, .. } => format!("result {}", keys(data)),
            Event::Stream { name, .. } => name.as_str().to_owned(),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "Submitted",
            "stderr",
            "display image/png",
            "result text/plain text/html"
        ]
    );
    let said = text(&events, StreamName::Stderr);
    assert!(said.contains("rich output 2 (image/png)"), "{said}");
    assert!(!said.contains("t1"));
    assert_eq!(said.lines().count(), 1);
}

fn keys(data: &serde_json::Map<String, Value>) -> String {
    data.keys().cloned().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn a_cut_stream_is_taken_up_by_the_identical_call() {
    let (colab, backend) = start(Colab::new(vec![
        Play::Cut(vec!["one\n"]),
        Play::Run(vec!["one\n", "two\n"], json!({"stdout": "one\ntwo\n"})),
    ]))
    .await;
    let (outcome, events) = run(&backend, "x").await;
    assert_eq!(outcome.unwrap().execution_count, Some(1));
    assert_eq!(text(&events, StreamName::Stdout), "one\ntwo\n");
    let log = colab.log.lock().unwrap();
    let calls: Vec<&String> = log
        .iter()
        .filter(|line| line.starts_with("execute_code"))
        .collect();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1]);
    let listed = log.iter().position(|line| line == "list_sessions").unwrap();
    let last = log.iter().rposition(|line| line == calls[1]).unwrap();
    assert!(listed < last);
}

/// Interrupts an endless cell; what the cell made of it, and how long that took.
async fn interrupt(
    colab: &Arc<Colab>,
    backend: &Colabs,
) -> (Result<Outcome, BackendError>, Duration) {
    let endless = cell("while True: pass");
    let stop = endless.interrupt.clone();
    let runner = {
        let backend = backend.clone();
        tokio::spawn(async move { run_cell(&backend, endless).await.0 })
    };
    let before = colab.count_of("execute_code");
    until(|| colab.count_of("execute_code") > before).await;
    let since = Instant::now();
    stop.cancel();
    (runner.await.unwrap(), since.elapsed())
}

#[tokio::test]
async fn an_interrupt_works_whatever_the_service_listens_to_and_hits_once() {
    let now = Some(Duration::ZERO);
    let late = Some(Duration::from_millis(600));
    for json_only in [false, true] {
        for (notification, close, has_traceback) in [
            (now, false, true),
            (now, true, true),
            (None, true, false),
            (late, false, false),
        ] {
            if json_only && notification.is_none() {
                // Without a stream there is nothing whose closing this server sees.
                continue;
            }
            let (colab, backend) = start(Colab {
                json_only,
                stops: Stops {
                    notification,
                    close,
                },
                ..Colab::new(vec![
                    Play::Forever,
                    Play::Run(vec!["next\n"], json!({"stdout": "next\n"})),
                ])
            })
            .await;
            let (outcome, took) = interrupt(&colab, &backend).await;
            assert!(took < Duration::from_secs(1), "{took:?}");
            match outcome {
                Ok(outcome) => {
                    assert!(has_traceback);
                    assert_eq!(outcome.exception.unwrap().traceback, ["real"]);
                }
                Err(error) => {
                    assert!(!has_traceback, "{error}");
                    assert_eq!(error.name, ErrorName::KeyboardInterrupt);
                }
            }
            let (outcome, events) = run(&backend, "next").await;
            assert_eq!(outcome.unwrap().exception, None);
            assert_eq!(text(&events, StreamName::Stdout), "next\n");
            assert_eq!(colab.count_of("sigint"), 1);
            assert_eq!(colab.count_of("cancelled"), 1);
        }
    }
}

#[tokio::test]
async fn nothing_listening_is_named() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(listener);
    let client = Client::new(endpoint.parse().unwrap(), Arc::new(Fixed)).unwrap();
    let backend = Arc::new(ColabBackend::new(client, BackendSettings::default()));
    let cell = cell("1");
    let stop = cell.interrupt.clone();
    let (sender, mut receiver) = events();
    let runner = tokio::spawn(async move { backend.execute(cell, sender).await });
    let first = timeout(LIMIT, receiver.recv()).await.unwrap().unwrap();
    assert!(matches!(first, Event::Notice(line) if line.contains("cannot be reached")));
    stop.cancel();
    let error = timeout(LIMIT, runner).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.name, ErrorName::KeyboardInterrupt);
}
