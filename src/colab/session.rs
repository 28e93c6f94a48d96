//! The one session of this process, and the backend over it.
//!
//! Nothing is contacted before the first cell that needs it. Invariants:
//!
//! * Session ids begin with `ck-`; every session that may exist because of us is known before it is asked for, and deleted at
//!   shutdown.
//! * Set-up code and the refusal of prompts are in place before the user's first cell of a session.
//! * No lock is held across an await: the state is read and written in steps, and a dropped `execute` leaves it whole.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api::{ExecuteCodeResult, Runtime};
use super::cell::{Run, refused_expressions};
use super::companion::Companion;
use super::files::Files;
use super::live::{AWAY, Tail};
use super::mcp::errors::Code;
use super::names;
use super::own::{self, Attended};
use super::progress::Shape;
use super::retry;
use super::runtime::{self, BackendSettings, Memory, RuntimeChoice};
use super::runtime_http::RuntimeHttp;
use super::service::Service;
use super::waiting::Waiting;
use crate::backend::{
    self, Backend, BackendError, Cell, EventSender, Message, Origin, Outcome, Question,
};

/// How long a running cell may take to end at shutdown before its session is deleted all the same.
const LAST_CELL: Duration = Duration::from_millis(500);
/// How long the deletion of a session that is of no more use may take.
const CLEANUP: Duration = Duration::from_secs(2);

/// Runs cells on Colab.
pub struct ColabBackend<S: Service> {
    pub(super) service: S,
    pub(super) settings: BackendSettings,
    pub(super) files: Files,
    pub(super) http: RuntimeHttp,
    state: Mutex<State>,
    /// Whether a cell runs.
    busy: watch::Sender<bool>,
}

/// What the process knows between cells.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Set-up code of the front-end, in its order.
    pub setup: Vec<String>,
    /// The open session.
    pub session: Option<OpenSession>,
    /// How the service sends text.
    pub shape: Shape,
    /// Whether the service's execution counts rise, as far as they have told.
    pub counts: Counts,
    /// Whether variables were lost and the user is still to be told.
    pub lost: bool,
    /// The runtime that was used last.
    used_runtime: Option<String>,
    /// The id of the session that is being opened; the same until it is open.
    session_id: Option<String>,
    /// The id of the request for a runtime; the same until it is there.
    request_id: Option<String>,
    /// Full names of sessions that exist, or may, because of us.
    owned: Vec<String>,
    /// The running cell's interrupt.
    stop: Option<CancellationToken>,
    /// The call of the last cell, if it goes on.
    tail: Option<Tail>,
    /// Where goes what runs outside of cells.
    background: Option<EventSender>,
}

/// What the execution counts of this service are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Counts {
    /// There has been one at most.
    #[default]
    Unknown,
    /// They rise from run to run: one that does not is that of another kernel.
    Rise,
    /// It is always the same: it says nothing.
    Stay,
}

/// An open session.
#[derive(Debug, Clone)]
pub(super) struct OpenSession {
    /// The machine, with its proxy's address.
    pub runtime: Runtime,
    /// The full name.
    pub name: String,
    /// Whether it was created before the first call rather than by it.
    pub created: bool,
    /// Whether a call on it has succeeded.
    pub proven: bool,
    /// The last execution count that the service told (0: none yet).
    pub last_count: i64,
    /// How many runs since then may have counted.
    pub untold_runs: u32,
    /// Whether set-up code has run.
    pub prepared: bool,
    /// Whether the end of an interrupted call was not seen: it may be being stopped still.
    pub stopping: bool,
    /// Whether prompts are refused.
    pub guarded: bool,
    /// Whether the user was told that rich outputs are not handed over.
    pub told_no_capture: bool,
    /// Whether its kernel is reached beside `execute_code`.
    pub companion: Beside,
    /// Whether a cell has run with the companion.
    pub companion_proven: bool,
}

/// Whether a session has a companion.
#[derive(Debug, Clone, Default)]
pub(super) enum Beside {
    /// Nobody has tried.
    #[default]
    Untried,
    /// It has.
    Here(Companion),
    /// It cannot be had.
    Absent,
}

impl Beside {
    /// The companion, if there is one.
    pub fn here(&self) -> Option<&Companion> {
        match self {
            Self::Here(companion) => Some(companion),
            Self::Untried | Self::Absent => None,
        }
    }
}

impl OpenSession {
    fn new(runtime: Runtime, name: String, created: bool, prepared: bool) -> Self {
        Self {
            runtime,
            name,
            created,
            proven: false,
            last_count: 0,
            untold_runs: 0,
            prepared,
            stopping: false,
            guarded: false,
            told_no_capture: false,
            companion: Beside::Untried,
            companion_proven: false,
        }
    }

    /// Whether an interrupt stopped the run before the kernel had counted it: its number is then that of the run before.
    pub fn came_to_nothing(&self, result: &ExecuteCodeResult) -> bool {
        let error = result.execution_error.as_ref();
        result.execution_count == self.last_count
            && error.is_some_and(|error| error.name == "KeyboardInterrupt")
    }

    /// The number that the next run is expected to get.
    pub fn expected_count(&self) -> i64 {
        self.last_count + i64::from(self.untold_runs) + 1
    }
}

impl<S: Service> ColabBackend<S> {
    /// A backend that has contacted nothing yet.
    pub fn new(service: S, settings: BackendSettings) -> Self {
        let http = RuntimeHttp::new();
        Self {
            service,
            settings,
            files: Files::new(http.clone()),
            http,
            state: Mutex::default(),
            busy: watch::Sender::new(false),
        }
    }

    /// The state, for a moment. Every change leaves it whole, so a panic elsewhere does not spoil it.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the open session, if it is still the one of this name.
    pub(super) fn update(&self, name: &str, change: impl FnOnce(&mut OpenSession)) {
        let mut state = self.state();
        if let Some(session) = state.session.as_mut().filter(|open| open.name == name) {
            change(session);
        }
    }

    /// The open session, or a new one.
    pub(super) async fn open(
        &self,
        waiting: Waiting<'_>,
        mut avoid: Option<String>,
    ) -> Result<OpenSession, BackendError> {
        if let Some(session) = self.state().session.clone() {
            return Ok(session);
        }
        self.delete_left_over();
        loop {
            let runtime = self.find_runtime(waiting, avoid.as_deref()).await?;
            let id = self
                .state()
                .session_id
                .get_or_insert_with(new_session_id)
                .clone();
            let mut name = format!("{}/sessions/{id}", runtime.name);
            self.own(&name);
            let created = waiting
                .persist("create_session", || {
                    self.service.create_session(&runtime.name, &id)
                })
                .await;
            let created = match created {
                Ok(session) => {
                    if !session.name.is_empty() && session.name != name {
                        self.own(&session.name);
                        name = session.name;
                    }
                    true
                }
                Err(status) if status.code == Code::AlreadyExists => true,
                // `execute_code` creates a session that does not exist.
                Err(status) if status.code == Code::Unimplemented => false,
                Err(status) if status.code == Code::NotFound => {
                    self.forget_runtime(&runtime.name);
                    if avoid.is_some() || self.is_named() {
                        return Err(names::named(&status));
                    }
                    avoid = Some(runtime.name);
                    continue;
                }
                Err(status) => return Err(names::named(&status)),
            };
            let mut state = self.state();
            state.session_id = None;
            let session = OpenSession::new(runtime, name, created, state.setup.is_empty());
            state.session = Some(session.clone());
            return Ok(session);
        }
    }

    async fn find_runtime(
        &self,
        waiting: Waiting<'_>,
        avoid: Option<&str>,
    ) -> Result<Runtime, BackendError> {
        let (used, request_id) = {
            let mut state = self.state();
            let request_id = state.request_id.get_or_insert_with(new_id).clone();
            (state.used_runtime.clone(), request_id)
        };
        let memory = Memory {
            used: used.as_deref(),
            avoid,
            request_id: &request_id,
        };
        let runtime = runtime::choose(&self.service, &self.settings, memory, waiting).await?;
        let mut state = self.state();
        state.request_id = None;
        state.used_runtime = Some(runtime.name.clone());
        Ok(runtime)
    }

    /// Whether the user named the runtime.
    pub(super) fn is_named(&self) -> bool {
        matches!(self.settings.runtime, RuntimeChoice::Named(_))
    }

    /// The session is gone, or shall be: the next cell opens another.
    pub(super) fn lose_session(&self) {
        let mut state = self.state();
        state.lost |= state.session.take().is_some();
        if let Some(tail) = state.tail.take() {
            tail.abort();
        }
    }

    /// The runtime is gone, or does not answer. Its sessions stay known: should it be there after all, they are deleted.
    pub(super) fn forget_runtime(&self, name: &str) {
        let mut state = self.state();
        if state.used_runtime.as_deref() == Some(name) {
            state.used_runtime = None;
        }
        if state
            .session
            .as_ref()
            .is_some_and(|session| session.runtime.name == name)
        {
            state.session = None;
            if let Some(tail) = state.tail.take() {
                tail.abort();
            }
        }
    }

    /// Keeps the call of a cell that has ended without it.
    pub(super) fn keep_tail(&self, tail: Tail) {
        self.state().tail = Some(tail);
    }

    /// The call of the last cell, if it goes on.
    pub(super) fn take_tail(&self) -> Option<Tail> {
        self.state().tail.take()
    }

    /// Where goes what runs outside of cells.
    pub(super) fn background(&self) -> EventSender {
        // Without a kernel that has asked for it, nobody listens.
        let background = self.state().background.clone();
        background.unwrap_or_else(|| backend::events().0)
    }

    /// The session goes on as text.
    pub(super) fn drop_companion(&self, name: &str) {
        self.update(name, |session| session.companion = Beside::Absent);
    }

    /// The open session's companion.
    fn companion(&self) -> Option<Companion> {
        let state = self.state();
        state.session.as_ref()?.companion.here().cloned()
    }

    fn own(&self, name: &str) {
        let mut state = self.state();
        if !state.owned.iter().any(|owned| owned == name) {
            state.owned.push(name.to_owned());
        }
    }

    /// Deletes sessions that were given up, in the background: they hold memory on the runtime.
    fn delete_left_over(&self) {
        let left: Vec<String> = {
            let mut state = self.state();
            let opening = state.session_id.clone();
            let (keep, left) = std::mem::take(&mut state.owned)
                .into_iter()
                .partition(|name| opening.as_deref().is_some_and(|id| name.ends_with(id)));
            state.owned = keep;
            left
        };
        for name in left {
            let service = self.service.clone();
            tokio::spawn(async move {
                let _ = tokio::time::timeout(CLEANUP, delete(&service, &name)).await;
            });
        }
    }
}

impl<S: Service> Backend for ColabBackend<S> {
    async fn execute(&self, cell: Cell, events: EventSender) -> Result<Outcome, BackendError> {
        // Without a connection to its kernel, what a session can do it does through the service.
        if !cell.store_history
            && let Some(companion) = self.companion()
            && !companion.is_away_for(AWAY)
        {
            return self.run_own(&companion, cell, &events).await;
        }
        // Silent code has nothing to show, and a session is not opened for uncounted code.
        if cell.silent || !(cell.store_history || self.has_session()) {
            return Ok(Outcome {
                user_expressions: refused_expressions(&cell),
                ..Outcome::default()
            });
        }
        let running = Running::begin(self, cell.interrupt.clone());
        let run = Run {
            backend: self,
            waiting: Waiting { events: &events },
            stop: &running.stop,
        };
        run.cell(&cell).await
    }

    fn attach(&self, background: EventSender) {
        self.state().background = Some(background);
    }

    async fn comm(
        &self,
        message: Message,
        origin: Origin,
        interrupt: CancellationToken,
        events: EventSender,
    ) -> bool {
        let Some(companion) = self
            .companion()
            .filter(|companion| !companion.is_lost() && !companion.is_away_for(AWAY))
        else {
            return false;
        };
        self.background().settled().await;
        let activity = companion.comm(message, origin);
        let attended = own::attend(&companion, activity, &interrupt, &events).await;
        matches!(attended, Attended::Ended(_) | Attended::Unknown)
    }

    async fn ask(&self, question: Question, content: Box<RawValue>) -> Option<Box<RawValue>> {
        let companion = self.companion().filter(|companion| !companion.is_lost())?;
        own::ask(&companion, question, &content).await
    }

    fn has_session(&self) -> bool {
        self.state().session.is_some()
    }

    fn keep_setup(&self, code: String) {
        self.state().setup.push(code);
    }

    fn next_execution_count(&self) -> u32 {
        let state = self.state();
        // The run that prepares a new session counts as well, where it goes through `execute_code`.
        let is_beside = match &state.session {
            Some(session) => session.companion.here().is_some(),
            None => self.settings.companion.is_some(),
        };
        let next = match &state.session {
            Some(session) if is_beside => session.expected_count(),
            None if is_beside => 1,
            Some(session) => session.expected_count() + i64::from(!session.prepared),
            None => 1 + i64::from(!state.setup.is_empty()),
        };
        u32::try_from(next).unwrap_or(u32::MAX)
    }

    async fn shutdown(&self) {
        if let Some(stop) = &self.state().stop {
            stop.cancel();
        }
        let mut busy = self.busy.subscribe();
        let _ = tokio::time::timeout(LAST_CELL, busy.wait_for(|busy| !busy)).await;
        let owned = {
            let mut state = self.state();
            state.session = None;
            std::mem::take(&mut state.owned)
        };
        let deletions = owned.iter().map(|name| delete(&self.service, name));
        futures_util::future::join_all(deletions).await;
    }
}

/// A running cell; its end is noted however it comes.
struct Running<'a, S: Service> {
    backend: &'a ColabBackend<S>,
    stop: CancellationToken,
}

impl<'a, S: Service> Running<'a, S> {
    fn begin(backend: &'a ColabBackend<S>, stop: CancellationToken) -> Self {
        backend.state().stop = Some(stop.clone());
        backend.busy.send_replace(true);
        Self { backend, stop }
    }
}

impl<S: Service> Drop for Running<'_, S> {
    fn drop(&mut self) {
        self.backend.state().stop = None;
        self.backend.busy.send_replace(false);
    }
}

/// Deletes a session; tries again while the service is only slow to take it.
async fn delete<S: Service>(service: &S, name: &str) {
    let started = Instant::now();
    let mut failures = 0;
    while let Err(status) = service.delete_session(name).await {
        failures += 1;
        let spent = started.elapsed();
        // The longest jitter halves the wait: the process is about to end.
        let delay = retry::next_wait("delete_session", &status, failures, spent, 1.0);
        let Some(delay) = delay else {
            if status.code != Code::NotFound {
                tracing::warn!(%status, session = name, "a session could not be deleted");
            }
            return;
        };
        tokio::time::sleep(delay).await;
    }
}

/// An id as `create_session` takes it (RFC 1034), recognisable as ours.
fn new_session_id() -> String {
    format!("ck-{}", uuid::Uuid::new_v4().simple())
}

fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}
