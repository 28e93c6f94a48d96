//! A scripted Colab for the unit tests of the backend.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::api::{ExecuteCode, Runtime, RuntimeSpec, Session, SpecKey};
use super::mcp::errors::{Code, Origin, Status};
use super::mcp::{CallEvent, Progress};
use super::service::{Service, ServiceCall};

/// One step of an execution.
#[derive(Debug, Clone)]
pub enum Step {
    /// Progress with this text.
    Say(&'static str),
    /// Nothing for this long.
    Pause(Duration),
    /// Waits for the cancellation, and this long after it.
    UntilCancelled(Duration),
    /// Waits until the test says so.
    When(CancellationToken),
    /// The end.
    End(Result<Value, Status>),
    /// Nothing, for ever.
    Hang,
}

/// Is told the id of a session that was created.
pub type Opened = Box<dyn Fn(&str) + Send>;

/// What the fake does and has seen.
#[derive(Default)]
pub struct Script {
    pub runtimes: Vec<Runtime>,
    pub specs: Vec<RuntimeSpec>,
    pub sessions: Vec<String>,
    /// Errors that a tool answers before it works.
    pub failures: HashMap<&'static str, VecDeque<Status>>,
    /// One entry an `execute_code` call; without one, an empty result.
    pub executions: VecDeque<Vec<Step>>,
    /// Every call, in order.
    pub log: Vec<String>,
    /// Every `execute_code` call.
    pub calls: Vec<ExecuteCode>,
    /// Told the name of every session that is created.
    pub opened: Option<Opened>,
    count: i64,
}

#[derive(Clone, Default)]
pub struct Fake(Arc<Mutex<Script>>);

impl Fake {
    pub fn new(change: impl FnOnce(&mut Script)) -> Self {
        let fake = Self::default();
        fake.with(change);
        fake
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    pub fn log(&self) -> Vec<String> {
        self.with(|script| script.log.clone())
    }

    pub fn count_of(&self, entry: &str) -> usize {
        self.log()
            .iter()
            .filter(|line| line.starts_with(entry))
            .count()
    }

    /// Notes a call, and fails it where that is the script.
    fn enter(&self, tool: &'static str, detail: &str) -> Result<(), Status> {
        self.with(|script| {
            script
                .log
                .push(format!("{tool} {detail}").trim_end().to_owned());
            let failure = script.failures.get_mut(tool).and_then(VecDeque::pop_front);
            failure.map_or(Ok(()), Err)
        })
    }
}

pub fn runtime(id: &str, accelerator: &str) -> Runtime {
    Runtime {
        name: format!("runtimes/{id}"),
        runtime_spec: SpecKey {
            variant: String::new(),
            accelerator: accelerator.to_owned(),
            shape: "SHAPE_STANDARD".to_owned(),
        },
        ..Runtime::default()
    }
}

pub fn status(code: Code) -> Status {
    Status::new(code, Origin::Service, "scripted")
}

/// A result with this count and standard output.
pub fn result(count: i64, stdout: &str) -> Step {
    Step::End(Ok(json!({"executionCount": count, "stdout": stdout})))
}

impl Service for Fake {
    type Call = FakeCall;

    async fn list_runtimes(&self) -> Result<Vec<Runtime>, Status> {
        self.enter("list_runtimes", "")?;
        Ok(self.with(|script| script.runtimes.clone()))
    }

    async fn list_runtime_specs(&self) -> Result<Vec<RuntimeSpec>, Status> {
        self.enter("list_runtime_specs", "")?;
        Ok(self.with(|script| script.specs.clone()))
    }

    async fn get_runtime(&self, name: &str) -> Result<Runtime, Status> {
        self.enter("get_runtime", name)?;
        let found = self.with(|script| {
            script
                .runtimes
                .iter()
                .find(|runtime| runtime.name == name)
                .cloned()
        });
        found.ok_or_else(|| status(Code::NotFound))
    }

    async fn create_runtime(
        &self,
        spec: &SpecKey,
        request_id: &str,
        _before: &[Runtime],
    ) -> Result<Runtime, Status> {
        self.enter(
            "create_runtime",
            &format!("{} {request_id}", spec.accelerator),
        )?;
        let runtime = Runtime {
            runtime_spec: spec.clone(),
            ..runtime("new", "")
        };
        self.with(|script| script.runtimes.push(runtime.clone()));
        Ok(runtime)
    }

    async fn create_session(&self, parent: &str, session_id: &str) -> Result<Session, Status> {
        self.enter("create_session", parent)?;
        let name = format!("{parent}/sessions/{session_id}");
        self.with(|script| {
            script.sessions.push(name.clone());
            if let Some(opened) = &script.opened {
                opened(&name);
            }
            script.count = 0;
        });
        Ok(Session { name })
    }

    async fn delete_session(&self, name: &str) -> Result<(), Status> {
        self.enter("delete_session", name)?;
        self.with(|script| script.sessions.retain(|open| open != name));
        Ok(())
    }

    async fn list_sessions(&self, parent: &str) -> Result<Vec<Session>, Status> {
        self.enter("list_sessions", parent)?;
        Ok(self.with(|script| {
            let open = script.sessions.iter();
            open.map(|name| Session { name: name.clone() }).collect()
        }))
    }

    fn execute_code(&self, call: &ExecuteCode) -> FakeCall {
        let steps = match self.enter("execute_code", "") {
            Err(status) => vec![Step::End(Err(status))],
            Ok(()) => self.with(|script| {
                script.calls.push(call.clone());
                script.executions.pop_front().unwrap_or_else(|| {
                    script.count += 1;
                    vec![result(script.count, "")]
                })
            }),
        };
        FakeCall {
            fake: self.clone(),
            steps: steps.into(),
            cancelled: CancellationToken::new(),
            ended: false,
        }
    }
}

pub struct FakeCall {
    fake: Fake,
    steps: VecDeque<Step>,
    cancelled: CancellationToken,
    ended: bool,
}

impl ServiceCall for FakeCall {
    async fn next(&mut self) -> Option<CallEvent> {
        loop {
            // A step is done only when its await is: the future may be dropped at any.
            match self.steps.front()?.clone() {
                Step::Say(text) => {
                    self.steps.pop_front();
                    return Some(CallEvent::Progress(Progress {
                        message: Some(text.to_owned()),
                        ..Progress::default()
                    }));
                }
                Step::Pause(time) => tokio::time::sleep(time).await,
                Step::UntilCancelled(time) => {
                    self.cancelled.cancelled().await;
                    tokio::time::sleep(time).await;
                }
                Step::When(gate) => gate.cancelled().await,
                Step::Hang => std::future::pending().await,
                Step::End(Err(status)) => {
                    self.ended = true;
                    return Some(CallEvent::Finished(Err(status)));
                }
                Step::End(Ok(value)) => {
                    self.ended = true;
                    return Some(CallEvent::Finished(Ok(value)));
                }
            }
            self.steps.pop_front();
        }
    }

    fn cancel(&self) -> impl Future<Output = Result<(), Status>> + Send + 'static {
        let (fake, cancelled) = (self.fake.clone(), self.cancelled.clone());
        async move {
            fake.enter("cancelled", "")?;
            cancelled.cancel();
            Ok(())
        }
    }
}

impl Drop for FakeCall {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.fake.enter("closed", "");
        }
    }
}
