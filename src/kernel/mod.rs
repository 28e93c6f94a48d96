//! What makes a process a kernel: start order, busy and idle, the queue, counters, history, interrupts, shutdown.
//!
//! The ports are bound before anything else, and nothing remote is contacted before the first cell that counts. Two tasks
//! answer the shell and control sockets at once ([`requests`]); a third serves the queue of cells, comm messages and questions,
//! one at a time ([`execute`]); a fourth asks for input ([`stdin`]); a fifth publishes what comes between requests ([`publish`]).
//! Invariants:
//!
//! * `idle` is the last thing that is published for any request.
//! * Losing the remote side never ends the process: front-ends would take that for a crash.
//! * The process ends only after its last reply has reached the client, and after the backend gave back what it holds,
//!   for at most [`RELEASE_LIMIT`].

pub mod comm;
pub mod execute;
pub mod frontends;
pub mod history;
pub mod info;
pub mod inspect;
pub mod is_complete;
pub mod messages;
pub mod output;
pub mod process;
pub mod publish;
pub mod questions;
pub mod queue;
pub mod requests;
pub mod running;
pub mod stdin;
pub mod widgets;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;

use self::comm::Comms;
use self::execute::Executor;
use self::history::keeper::Keeper;
use self::publish::Background;
use self::queue::Queue;
use self::requests::{Channel, Responder};
use self::running::Running;
use self::stdin::Stdin;
use crate::backend::{self, Backend};
use crate::jupyter::connection::ConnectionInfo;
use crate::jupyter::message::{Parent, Session};
use crate::jupyter::sockets::{BindError, Sockets};

/// How long a stopping kernel waits for the backend.
pub const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// How long a stopping kernel waits for clients to read its last messages.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);

/// What a kernel needs to know beside its connection.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where the history is kept (`None`: in memory only).
    pub state_dir: Option<PathBuf>,
    /// When widgets are translated.
    pub widgets: widgets::Mode,
}

/// Why a kernel does not serve, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A socket does not work any more, which is a fault of the program.
    #[error("the {0} socket has failed\nRestart the kernel")]
    Deaf(&'static str),
}

/// Serves front-ends until one asks for shutdown, the process is terminated or its parent dies.
///
/// # Errors
/// When a port cannot be bound, and when a socket fails later.
pub async fn run<B: Backend>(
    connection: ConnectionInfo,
    backend: B,
    options: Options,
) -> Result<(), RunError> {
    let session = Arc::new(Session::new(&connection));
    let sockets = Sockets::bind(&connection, session).await?;
    let iopub = sockets.iopub.clone();
    let starting = json!({"execution_state": "starting"});
    iopub.publish(&Parent::none(), "status", &starting).await;

    let comms = Arc::new(Comms::new(options.widgets));
    let (sender, background) = backend::events();
    backend.attach(sender);
    tokio::spawn(Background::run(iopub.clone(), comms.clone(), background));

    let backend = Arc::new(backend);
    let running = Arc::new(Running::default());
    let history = Keeper::start(options.state_dir);
    let (queue, queued) = mpsc::unbounded_channel();
    let (stop, mut stopped) = mpsc::channel(1);
    let responder = Arc::new(Responder {
        backend: backend.clone(),
        iopub: iopub.clone(),
        history: history.clone(),
        running: running.clone(),
        connection,
        queue,
        stop,
    });
    let executor = Executor {
        backend: backend.clone(),
        iopub: iopub.clone(),
        stdin: Stdin::start(sockets.stdin, sockets.stdin_out),
        comms,
        history: history.clone(),
        running: running.clone(),
    };
    let executor = tokio::spawn(executor.run(Queue::new(queued)));
    let shell = tokio::spawn(responder.clone().serve(
        Channel::Shell,
        sockets.shell,
        sockets.shell_out.clone(),
    ));
    let control = tokio::spawn(responder.serve(
        Channel::Control,
        sockets.control,
        sockets.control_out.clone(),
    ));

    let mut outcome = Ok(());
    tokio::select! {
        _ = stopped.recv() => tracing::info!("stopping: shutdown_request"),
        () = process::told_to_stop(&running) => {}
        // A kernel that listens no more must not look like one that is busy.
        _ = shell => outcome = Err(RunError::Deaf("shell")),
        _ = control => outcome = Err(RunError::Deaf("control")),
    }
    running.close();
    let release = tokio::time::timeout(RELEASE_LIMIT, async {
        // The cell that runs gets its reply and its `idle`, and what waits behind it as well.
        tokio::join!(backend.shutdown(), executor)
    });
    let replies = sockets.control_out.flush(FLUSH_LIMIT);
    if tokio::join!(release, replies).0.is_err() {
        tracing::warn!("the backend did not give everything back in time");
    }
    sockets.shell_out.flush(FLUSH_LIMIT).await;
    iopub.flush(FLUSH_LIMIT).await;
    history.flush().await;
    outcome
}
