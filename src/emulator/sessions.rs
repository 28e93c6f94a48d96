//! A session: one kernel and the calls that wait for it.
//!
//! A task of its own runs the executions one at a time, in the order of their calls, and owns the connection to the kernel.
//! Invariants:
//!
//! * Every execution that was submitted ends: with its result, or with the reason why there is none.
//! * An execution belongs to this opening of the session; a session that is opened again knows none of the earlier ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::collect::{self, Ending};
use super::counters::Counters;
use super::errors::{Code, Failure, locked};
use super::executions::Execution;
use super::kernel_client::KernelClient;
use super::quirks::{KernelDeath, Quirks};
use super::server::{JupyterServer, JupyterSession};

/// How long a kernel may take to answer: Jupyter notices a death within three seconds and then starts anew.
const KERNEL_PATIENCE: Duration = Duration::from_secs(60);

/// An open session.
pub(super) struct Session {
    /// `runtimes/{runtime}/sessions/{session}`
    pub name: String,
    /// Jupyter's session and kernel.
    pub jupyter: JupyterSession,
    server: Arc<JupyterServer>,
    jobs: mpsc::UnboundedSender<Arc<Execution>>,
    open: Mutex<Vec<Arc<Execution>>>,
    closed: CancellationToken,
    connected: Arc<AtomicBool>,
}

impl Session {
    /// Takes charge of a session of the Jupyter Server.
    pub fn new(
        name: String,
        jupyter: JupyterSession,
        server: Arc<JupyterServer>,
        quirks: Arc<Quirks>,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        let (jobs, queue) = mpsc::unbounded_channel();
        let closed = CancellationToken::new();
        let connected = Arc::new(AtomicBool::new(false));
        let runner = Runner {
            name: name.clone(),
            kernel_id: jupyter.kernel.id.clone(),
            header: Uuid::new_v4().to_string(),
            server: server.clone(),
            quirks,
            counters,
            closed: closed.clone(),
            client: None,
            connected: connected.clone(),
        };
        tokio::spawn(runner.run(queue));
        Arc::new(Self {
            name,
            jupyter,
            server,
            jobs,
            open: Mutex::default(),
            closed,
            connected,
        })
    }

    /// The execution of this call: the open one with the same id, or a new one at the end of the queue.
    pub fn submit(&self, id: &str, code: &str) -> Result<Arc<Execution>, Failure> {
        let mut open = locked(&self.open);
        open.retain(|execution| execution.is_open());
        let same = open.iter().find(|known| !id.is_empty() && known.id == id);
        if let Some(same) = same {
            if same.code == code {
                return Ok(same.clone());
            }
            return Err(Failure::invalid(
                "executionId is that of an open execution of other code; use a new UUID for each execution",
            ));
        }
        let execution = Arc::new(Execution::new(id.to_owned(), code.to_owned()));
        open.push(execution.clone());
        if self.jobs.send(execution.clone()).is_err() {
            execution.end(Err(closed_failure(&self.name, &self.server)));
        }
        Ok(execution)
    }

    /// Interrupts the kernel, whatever it runs, and aborts the calls that wait for it.
    pub fn interrupt(&self, cancelled: &Execution) {
        cancelled.abort_queued(cancelled_failure());
        for execution in locked(&self.open).iter() {
            execution.abort_queued(Failure::new(
                Code::Aborted,
                "SESSION_INTERRUPTED",
                "The session was interrupted before the code ran",
            ));
        }
        let (server, kernel) = (self.server.clone(), self.jupyter.kernel.id.clone());
        tokio::spawn(async move {
            if let Err(failure) = server.interrupt(&kernel).await {
                tracing::debug!(
                    message = failure.message,
                    "a kernel could not be interrupted"
                );
            }
        });
    }

    /// Whether its kernel is known to be there. If so, so is the session: Jupyter ends them together.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Ends every call on it; its kernel is the caller's business.
    pub fn close(&self) {
        self.closed.cancel();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// The failure of a call that was cancelled before it ran, or whose end is not waited for.
pub(super) fn cancelled_failure() -> Failure {
    Failure::new(Code::Cancelled, "CANCELLED", "The call was cancelled")
}

/// Runs the executions of one session.
struct Runner {
    name: String,
    kernel_id: String,
    /// `header.session` of the service's requests, also after a restart of the kernel.
    header: String,
    server: Arc<JupyterServer>,
    quirks: Arc<Quirks>,
    counters: Arc<Counters>,
    closed: CancellationToken,
    client: Option<KernelClient>,
    connected: Arc<AtomicBool>,
}

impl Runner {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Arc<Execution>>) {
        let closed = self.closed.clone();
        let gone = self.server.gone().clone();
        while let Some(execution) = queue.recv().await {
            let end = tokio::select! {
                biased;
                () = closed.cancelled() => Some(Err(closed_failure(&self.name, &self.server))),
                () = gone.cancelled() => Some(Err(closed_failure(&self.name, &self.server))),
                end = self.execute(&execution) => end,
            };
            if let Some(end) = end {
                execution.end(end);
            }
        }
    }

    /// The end of an execution, or `None` if it was aborted before it began.
    async fn execute(&mut self, execution: &Execution) -> Option<Result<Value, Failure>> {
        // A kernel that went away while nothing ran has been started anew since.
        let kept = self.client.take_if(|client| !client.is_lost());
        let mut client = match kept {
            Some(client) => client,
            None => {
                // Before the new one is there: its end says that the kernel is gone.
                self.client = None;
                let file = self.server.connection_file(&self.kernel_id);
                match KernelClient::connect(file, &self.header, KERNEL_PATIENCE, &self.connected)
                    .await
                {
                    Ok(client) => client,
                    Err(error) => {
                        tracing::debug!(%error, "a kernel does not answer");
                        return Some(Err(Failure::new(
                            Code::Unavailable,
                            "KERNEL_UNREACHABLE",
                            "The session's kernel does not answer",
                        )));
                    }
                }
            }
        };
        if !execution.begin() {
            self.client = Some(client);
            return None;
        }
        let end = collect::run(&mut client, execution, &self.quirks, &self.counters).await;
        Some(match end {
            Ending::Completed(outputs) => {
                self.client = Some(client);
                outputs
                    .into_result(execution, &self.name, &self.server.root(), &self.quirks)
                    .await
            }
            Ending::Failed(failure) => {
                self.client = Some(client);
                Err(failure)
            }
            // The connection is dropped: Jupyter starts the kernel anew without a word.
            Ending::KernelDied(outputs) => {
                let died = "The kernel died while the code ran and was started anew; its variables are gone";
                match self.quirks.kernel_death {
                    KernelDeath::Aborted => Err(Failure::new(Code::Aborted, "KERNEL_DIED", died)),
                    KernelDeath::Unavailable => {
                        // Its record goes with the kernel: an identical call runs again.
                        execution.mark_returned();
                        Err(Failure::new(Code::Unavailable, "KERNEL_DIED", died))
                    }
                    KernelDeath::Result => {
                        outputs
                            .with_error("DeadKernelError", died)
                            .into_result(execution, &self.name, &self.server.root(), &self.quirks)
                            .await
                    }
                }
            }
        })
    }
}

fn closed_failure(name: &str, server: &JupyterServer) -> Failure {
    if server.gone().is_cancelled() {
        return Failure::new(
            Code::NotFound,
            "RUNTIME_UNREACHABLE",
            "The runtime no longer answers at its address",
        );
    }
    Failure::new(
        Code::Aborted,
        "SESSION_DELETED",
        format!("The session '{name}' was deleted"),
    )
}
