//! One cell of the user: what goes before it, the call itself, and what is made of its result.
//!
//! Invariants: what the cell printed comes first, then its rich outputs and its value, then its exception; a cell is never run
//! again by itself unless it is certain that it has not run; each way in which something is missing is said in one line on stderr.

use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::api::{ConnectionInfo, ExecuteCodeResult, RichOutput};
use super::bundle::{self, Bundle};
use super::execution::{Execution, Lost, Reply};
use super::files::{FetchError, is_fresh};
use super::helper;
use super::names;
use super::service::Service;
use super::session::{ColabBackend, Counts, OpenSession};
use super::text::Publisher;
use super::waiting::Waiting;
use crate::backend::{BackendError, Cell, ErrorName, Event, Exception, JsonMap, Outcome};

/// How long the fetching of one rich output may take.
const FETCH_LIMIT: Duration = Duration::from_secs(60);

/// What of a cell was shown before its result came.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shown {
    /// How many outputs with more than text.
    pub rich: usize,
    /// Whether the value of its last expression.
    pub result: bool,
    /// Whether its exception.
    pub error: bool,
}

impl Shown {
    /// Notes what is about to be shown.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::DisplayData { data, .. } => self.note_bundle(data),
            Event::ExecuteResult { data, .. } => {
                self.result = true;
                self.note_bundle(data);
            }
            _ => {}
        }
    }

    fn note_bundle(&mut self, data: &JsonMap) {
        self.rich += usize::from(data.keys().any(|mime| mime != "text/plain"));
    }
}

/// The run of one cell.
pub(super) struct Run<'a, S: Service> {
    pub backend: &'a ColabBackend<S>,
    pub waiting: Waiting<'a>,
    pub stop: &'a CancellationToken,
}

impl<S: Service> Run<'_, S> {
    /// Runs the cell to its end.
    pub async fn cell(&self, cell: &Cell) -> Result<Outcome, BackendError> {
        let mut avoid = None;
        loop {
            let session = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(names::interrupted_before()),
                session = self.backend.open(self.waiting, avoid.clone()) => session?,
            };
            let (session, lost) = match self.prepare(session, cell).await {
                Ok(session) => match self.run_prepared(&session, cell).await {
                    Ok(outcome) => return outcome,
                    Err(lost) => (session, lost),
                },
                Err((session, lost)) => (session, lost.before_the_cell()),
            };
            // A runtime that was listed but is not there: nothing has run, so another may be chosen, once.
            let untouched = matches!(&lost, Lost::Runtime { begun: false, .. });
            if untouched && !session.proven && avoid.is_none() && !self.backend.is_named() {
                self.backend.forget_runtime(&session.runtime.name);
                avoid = Some(session.runtime.name);
                continue;
            }
            return self.end(&session, lost).await;
        }
    }

    async fn run_prepared(
        &self,
        session: &OpenSession,
        cell: &Cell,
    ) -> Result<Result<Outcome, BackendError>, Lost> {
        match session.companion.here() {
            Some(companion) if cell.store_history => self.live(session, cell, companion).await,
            _ => self.run(session, cell).await,
        }
    }

    /// Runs what has to go before the cell on this session.
    async fn prepare(
        &self,
        session: OpenSession,
        cell: &Cell,
    ) -> Result<OpenSession, (OpenSession, Lost)> {
        let session = self.with_companion(session).await?;
        if session.companion.here().is_some() {
            return Ok(session);
        }
        let code = if !session.prepared {
            self.waiting.notice("Preparing the Colab session").await;
            helper::preparation(&self.backend.state().setup)
        } else if !session.guarded && helper::may_prompt(&cell.code) {
            helper::guard()
        } else {
            return Ok(session);
        };
        let mut unseen = Publisher::new(None, self.backend.state().shape);
        let reply = match self.execution(&session).run(code, &mut unseen, false).await {
            Ok(reply) => reply,
            Err(lost) => {
                self.count_untold(&session);
                return Err((session, lost));
            }
        };
        if let Some(error) = &reply.result.execution_error {
            tracing::warn!(
                name = error.name,
                value = error.value,
                "preparing the session failed"
            );
        }
        let is_replaced = self.count(&session, &reply.result).await;
        if reply.interrupted {
            return Err((session, Lost::InterruptedBefore));
        }
        if is_replaced {
            return Err((session, Lost::Session));
        }
        self.backend.update(&session.name, |session| {
            session.prepared = true;
            session.guarded = true;
            session.proven = true;
        });
        Ok(self.current(session))
    }

    /// Runs the cell itself. The inner result is how it ended; the outer error, why it did not.
    async fn run(
        &self,
        session: &OpenSession,
        cell: &Cell,
    ) -> Result<Result<Outcome, BackendError>, Lost> {
        let code = if cell.store_history {
            cell.code.clone()
        } else {
            helper::uncounted(&cell.code)
        };
        let shape = self.backend.state().shape;
        let mut publisher = Publisher::new(Some(self.waiting.events.clone()), shape);
        self.preface(&mut publisher);
        let reply = self
            .execution(session)
            .run(code, &mut publisher, true)
            .await;
        {
            let mut state = self.backend.state();
            state.shape = publisher.shape();
            state.lost &= publisher.has_preface();
        }
        let reply = match reply {
            Ok(reply) => reply,
            Err(lost) => {
                if lost != Lost::InterruptedBefore {
                    self.count_untold(session);
                }
                let stopping = matches!(lost, Lost::Interrupted { .. });
                self.backend
                    .update(&session.name, |session| session.stopping = stopping);
                return Err(lost);
            }
        };
        let nothing = Shown::default();
        let outcome = self
            .settle(session, cell, reply, &mut publisher, &nothing)
            .await;
        self.backend.state().shape = publisher.shape();
        Ok(outcome)
    }

    /// What is to be said before the cell's own output.
    pub(super) fn preface(&self, publisher: &mut Publisher) {
        if self.backend.state().lost {
            publisher.preface(
                "this cell runs in a new Colab session: the variables of earlier cells are gone",
            );
        }
    }

    /// Publishes what the result adds to what was shown.
    pub(super) async fn settle(
        &self,
        session: &OpenSession,
        cell: &Cell,
        reply: Reply,
        publisher: &mut Publisher,
        shown: &Shown,
    ) -> Result<Outcome, BackendError> {
        let Reply {
            result,
            reattached,
            interrupted,
        } = reply;
        self.backend.update(&session.name, |session| {
            session.proven = true;
            session.stopping = false;
        });
        publisher.settle(&result).await;
        let count = result.execution_count;
        let expected = session.expected_count();
        let is_replaced = self.count(session, &result).await;
        let told = u32::try_from(count)
            .ok()
            .filter(|count| *count > 0 && cell.store_history)
            .filter(|_| !session.came_to_nothing(&result))
            .filter(|_| self.backend.state().counts != Counts::Stay);
        if reattached && count > expected {
            publisher
                .say("the connection was lost and Colab ran this cell again: what it does may have been done twice")
                .await;
        }
        let bundles = self.bundles(session, &result, publisher, shown.rich).await;
        let value = if shown.result { "" } else { &result.result };
        for event in bundle::outputs(bundles, value, told) {
            publisher.send(event).await;
        }
        let stopped = reattached && !interrupted;
        let exception = match result.execution_error {
            Some(error) if stopped && error.name == "KeyboardInterrupt" => {
                return Err(names::cell_stopped());
            }
            Some(error) => {
                let traceback = if error.traceback.is_empty() {
                    vec![format!("{}: {}", error.name, error.value)]
                } else {
                    error.traceback
                };
                let exception = Exception {
                    ename: error.name,
                    evalue: error.value,
                    traceback,
                };
                if !shown.error {
                    publisher.send(Event::Error(exception.clone())).await;
                }
                Some(exception)
            }
            None => None,
        };
        if is_replaced {
            self.backend.lose_session();
            return Err(names::session_recreated());
        }
        Ok(Outcome {
            execution_count: told,
            exception,
            user_expressions: refused_expressions(cell),
            payload: Vec::new(),
        })
    }

    /// The cell's end where there is no result.
    async fn end(&self, session: &OpenSession, lost: Lost) -> Result<Outcome, BackendError> {
        match lost {
            Lost::InterruptedBefore => Err(names::interrupted_before()),
            Lost::Interrupted { confirmed: true } => {
                let exception = Exception {
                    ename: ErrorName::KeyboardInterrupt.to_string(),
                    evalue: String::new(),
                    traceback: vec!["KeyboardInterrupt: ".to_owned()],
                };
                self.waiting
                    .events
                    .send(Event::Error(exception.clone()))
                    .await;
                Ok(Outcome {
                    exception: Some(exception),
                    ..Outcome::default()
                })
            }
            Lost::Interrupted { confirmed: false } => Err(BackendError::new(
                ErrorName::KeyboardInterrupt,
                "interrupted; Colab was told to stop the cell but has not confirmed it. If the code still runs, the next cell waits for it",
            )),
            Lost::InterruptedAway => Err(BackendError::new(
                ErrorName::KeyboardInterrupt,
                "interrupted while the connection to Colab was lost, so Colab could not be told to stop the cell. If the code still runs, the next cell waits for it",
            )),
            Lost::Runtime { status, .. } => {
                self.backend.lose_session();
                self.backend.forget_runtime(&session.runtime.name);
                Err(names::runtime_lost(&names::said(&status)))
            }
            Lost::Session | Lost::Ended => {
                self.backend.lose_session();
                Err(names::session_lost())
            }
            Lost::Failed(status)
            | Lost::GaveUp {
                status,
                sent: false,
            } => Err(names::named(&status)),
            Lost::GaveUp { status, sent: true } => Err(names::gave_up(&status)),
        }
    }

    /// Fetches the rich outputs, in their order.
    async fn bundles(
        &self,
        session: &OpenSession,
        result: &ExecuteCodeResult,
        publisher: &mut Publisher,
        shown: usize,
    ) -> Vec<Bundle> {
        let mut outputs: Vec<&RichOutput> = result.rich_outputs.iter().collect();
        outputs.sort_by_key(|output| output.index);
        outputs.drain(..shown.min(outputs.len()));
        if outputs.is_empty() && result.rich_outputs_dropped && !session.told_no_capture {
            self.backend
                .update(&session.name, |session| session.told_no_capture = true);
            publisher
                .say("figures, tables and other rich outputs of this session are not handed over by Colab; only their text is shown")
                .await;
        }
        let mut bundles = Vec::with_capacity(outputs.len());
        for output in outputs {
            let fetched = tokio::select! {
                biased;
                () = self.stop.cancelled() => Err("interrupted".to_owned()),
                fetched = tokio::time::timeout(FETCH_LIMIT, self.bundle(session, output)) => {
                    fetched.unwrap_or_else(|_| Err("it took too long".to_owned()))
                }
            };
            match fetched {
                Ok(bundle) => bundles.push(bundle),
                Err(why) => publisher.say(&not_shown(output, &why)).await,
            }
        }
        bundles
    }

    async fn bundle(&self, session: &OpenSession, output: &RichOutput) -> Result<Bundle, String> {
        if let Some(info) = &output.error_info {
            return Err(format!("Colab dropped it ({})", info.reason));
        }
        if output.file_path.is_empty() {
            return Err("Colab names no file for it".to_owned());
        }
        let files = &self.backend.files;
        let is_known = self
            .current(session.clone())
            .runtime
            .connection_info
            .is_some();
        let info = self.fresh_connection(session).await?;
        let content = match files.fetch(&info, &output.file_path).await {
            // A token that has expired is answered as if the file were missing.
            Err(FetchError::Refused(_)) if is_known => {
                let info = self.connection(session).await?;
                files.fetch(&info, &output.file_path).await
            }
            fetched => fetched,
        };
        Bundle::parse(&content.map_err(|error| error.to_string())?)
    }

    /// The runtime's proxy, with a token that is good for a while.
    pub(super) async fn fresh_connection(
        &self,
        session: &OpenSession,
    ) -> Result<ConnectionInfo, String> {
        let known = self.current(session.clone()).runtime.connection_info;
        match known.filter(|info| is_fresh(info, chrono::Utc::now())) {
            Some(info) => Ok(info),
            None => self.connection(session).await,
        }
    }

    /// The runtime's proxy, with a new token.
    pub(super) async fn connection(&self, session: &OpenSession) -> Result<ConnectionInfo, String> {
        let runtime = self
            .backend
            .service
            .get_runtime(&session.runtime.name)
            .await
            .map_err(|status| format!("get_runtime failed{}", names::said(&status)))?;
        let info = runtime
            .connection_info
            .ok_or("Colab tells no address of the runtime")?;
        self.backend.update(&session.name, |session| {
            session.runtime.connection_info = Some(info.clone());
        });
        Ok(info)
    }

    pub(super) fn execution<'a>(&'a self, session: &'a OpenSession) -> Execution<'a, S> {
        Execution {
            service: &self.backend.service,
            waiting: self.waiting,
            stop: self.stop,
            session: &session.name,
            session_exists: session.created || session.proven,
            behind_a_stop: session.stopping,
        }
    }

    /// The session as it is known now.
    pub(super) fn current(&self, session: OpenSession) -> OpenSession {
        let state = self.backend.state();
        match &state.session {
            Some(current) if current.name == session.name => current.clone(),
            _ => session,
        }
    }

    /// Notes the number that a run got. Returns whether it shows that Colab has opened the session anew in between.
    pub(super) async fn count(&self, session: &OpenSession, result: &ExecuteCodeResult) -> bool {
        if session.came_to_nothing(result) {
            return false;
        }
        let count = result.execution_count;
        let (last, known) = (session.last_count, self.backend.state().counts);
        let counts = match known {
            Counts::Unknown if last > 0 && count == last => self.ask_counts(session, count).await,
            Counts::Unknown if last > 0 && count > last => Counts::Rise,
            known => known,
        };
        self.backend.state().counts = counts;
        if count <= 0 || counts == Counts::Stay {
            self.count_untold(session);
            return false;
        }
        self.backend.update(&session.name, |session| {
            session.last_count = count;
            session.untold_runs = 0;
        });
        count < last || count == last && counts == Counts::Rise
    }

    /// Finds out, by a run of nothing, whether a second run of this number is the first one of a new kernel or whether this
    /// service numbers all runs alike.
    async fn ask_counts(&self, session: &OpenSession, count: i64) -> Counts {
        let mut unseen = Publisher::new(None, self.backend.state().shape);
        let reply = self
            .execution(session)
            .run(helper::nothing(), &mut unseen, false)
            .await;
        match reply.map(|reply| reply.result.execution_count) {
            Ok(next) if next == count => Counts::Stay,
            Ok(next) if next > count => Counts::Rise,
            _ => Counts::Unknown,
        }
    }

    /// Notes a run whose number is not known.
    pub(super) fn count_untold(&self, session: &OpenSession) {
        self.backend
            .update(&session.name, |session| session.untold_runs += 1);
    }
}

impl Lost {
    /// The same, where it happened to a helper of ours: the cell itself has not run.
    fn before_the_cell(self) -> Self {
        match self {
            Self::Interrupted { .. } | Self::InterruptedAway => Self::InterruptedBefore,
            other => other,
        }
    }
}

/// What the user reads in place of a rich output.
fn not_shown(output: &RichOutput, why: &str) -> String {
    let kinds = if output.mime_types.is_empty() {
        "no type given".to_owned()
    } else {
        output.mime_types.join(", ")
    };
    format!(
        "rich output {} ({kinds}) cannot be shown: {why}",
        output.index
    )
}

/// `user_expressions` need the companion; each is answered as an error.
pub(super) fn refused_expressions(cell: &Cell) -> JsonMap {
    let refusal = json!({
        "status": "error",
        "ename": ErrorName::ColabCompanionUnavailable.to_string(),
        "evalue": "user expressions cannot be evaluated over execute_code alone",
        "traceback": [],
    });
    cell.user_expressions
        .keys()
        .map(|name| (name.clone(), refusal.clone()))
        .collect()
}
