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

mod cells;
mod companion;
mod interrupts;
mod losses;
mod machines;

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
    let endless = cell("while True: pass");
    let interrupt = endless.interrupt.clone();
    let runner = {
        let backend = backend.clone();
        tokio::spawn(async move { run(&backend, endless).await })
    };
    while fake.count_of(entry) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(after).await;
    let since = Instant::now();
    interrupt.cancel();
    let ran = runner.await.unwrap();
    (ran, since.elapsed())
}
