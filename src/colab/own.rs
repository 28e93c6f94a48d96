//! What runs by requests of our own, over the companion: uncounted code, comm messages, questions.
//!
//! Invariants: each ends when the kernel has ended it or is lost; when the connection was lost before the kernel got it; or when its
//! interrupt was followed by none of these. None is sent a second time unless it was aborted before it ran.

use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::companion::activity::{Activity, Arrival, ExecuteReply};
use super::companion::journal::{Journal, Told};
use super::companion::link::Health;
use super::companion::wire::Channel;
use super::companion::{Companion, OwnRequest, events};
use super::names;
use super::service::Service;
use super::session::ColabBackend;
use super::until;
use crate::backend::{
    BackendError, Cell, ErrorName, Event, EventSender, Exception, Outcome, Question,
};

/// How long behind the end of a request its reply may come.
const REPLY_LIMIT: Duration = Duration::from_secs(2);
/// How long the connection may be away before a request of our own is given up.
const AWAY_LIMIT: Duration = Duration::from_secs(60);
/// How long an interrupted request may go on before it is given up.
const GIVEN_UP: Duration = Duration::from_secs(7);

impl<S: Service> ColabBackend<S> {
    /// Runs uncounted code.
    pub(super) async fn run_own(
        &self,
        companion: &Companion,
        cell: Cell,
        events: &EventSender,
    ) -> Result<Outcome, BackendError> {
        if companion.is_lost() {
            self.lose_session();
            return Err(names::session_lost());
        }
        self.background().settled().await;
        events.send(Event::Submitted).await;
        let request = OwnRequest {
            code: cell.code,
            silent: cell.silent,
            allow_stdin: cell.allow_stdin,
            user_expressions: cell.user_expressions,
        };
        let mut again = true;
        loop {
            let (activity, reply) = companion.run(request.clone(), cell.origin.clone());
            let reply = tokio::spawn(reply);
            let raised = match attend(companion, activity, &cell.interrupt, events).await {
                Attended::Ended(raised) => raised,
                Attended::Lost => {
                    self.lose_session();
                    return Err(names::session_lost());
                }
                Attended::Interrupted => {
                    return Err(BackendError::new(
                        ErrorName::KeyboardInterrupt,
                        "interrupted; the kernel has not confirmed it. If the code still runs, the next cell waits for it",
                    ));
                }
                Attended::Unknown => {
                    return Err(BackendError::new(
                        ErrorName::ColabUnreachable,
                        "the connection to the runtime was lost, and whether this code has run is not known. Variables are kept.",
                    ));
                }
            };
            let reply: ExecuteReply = match timeout(REPLY_LIMIT, reply).await {
                Ok(Ok(Ok(reply))) => reply,
                _ => ExecuteReply::default(),
            };
            // Somebody else's failing cell aborts everybody's queue.
            if reply.status.as_deref() == Some("aborted") && std::mem::take(&mut again) {
                continue;
            }
            let exception = match reply.status.as_deref() {
                Some("error") => Some(Exception {
                    ename: reply.ename,
                    evalue: reply.evalue,
                    traceback: reply.traceback,
                }),
                Some(_) => None,
                None => raised,
            };
            return Ok(Outcome {
                execution_count: reply
                    .execution_count
                    .and_then(|count| u32::try_from(count).ok()),
                exception,
                user_expressions: reply.user_expressions,
                payload: reply.payload,
            });
        }
    }
}

/// How a request of our own came out.
#[derive(Debug)]
pub(super) enum Attended {
    /// The kernel has ended it; it raised this.
    Ended(Option<Exception>),
    /// It was interrupted, and nothing confirmed that it ended.
    Interrupted,
    /// The connection was lost: as far as is known the kernel has not got it, or it cannot be asked.
    Unknown,
    /// The kernel is gone.
    Lost,
}

/// Passes on what a request of our own does until it has ended.
pub(super) async fn attend(
    companion: &Companion,
    mut activity: Activity,
    interrupt: &CancellationToken,
    events: &EventSender,
) -> Attended {
    let mut raised = None;
    let mut interrupting: Option<JoinHandle<()>> = None;
    let mut prompts = JoinSet::new();
    let mut reached = Reached::new(companion);
    let given_up = async {
        interrupt.cancelled().await;
        sleep(GIVEN_UP).await;
    };
    tokio::pin!(given_up);
    loop {
        let arrival = tokio::select! {
            biased;
            () = interrupt.cancelled(), if interrupting.is_none() => {
                let companion = companion.clone();
                interrupting = Some(tokio::spawn(async move { companion.interrupt().await }));
                continue;
            }
            () = &mut given_up => return Attended::Interrupted,
            arrival = activity.recv() => match arrival {
                Some(arrival) => arrival,
                None => return Attended::Lost,
            },
            () = reached.not() => return Attended::Unknown,
        };
        match arrival {
            Arrival::Message(origin, message) => {
                let Some(event) = events::event(&message) else {
                    continue;
                };
                if let (None, Event::Error(exception)) = (&origin, &event) {
                    raised = Some(exception.clone());
                }
                let event = match origin {
                    Some(origin) => Event::Of(origin, Box::new(event)),
                    None => event,
                };
                events.send(event).await;
            }
            Arrival::Prompt(prompt) => {
                super::prompt::ask(companion, prompt, events, &mut prompts).await;
            }
            Arrival::Began { .. } => reached.has_begun = true,
            Arrival::Reply(_) | Arrival::Hole(_) => {}
            Arrival::Ended(let_go) => {
                if let Some(interrupting) = &mut interrupting {
                    // One that is under way would hit what runs next.
                    if timeout(REPLY_LIMIT, &mut *interrupting).await.is_err() {
                        interrupting.abort();
                    }
                }
                events.settled().await;
                drop(let_go);
                return Attended::Ended(raised);
            }
        }
    }
}

/// Finds out that a request did not reach the kernel, or that this cannot be found out.
struct Reached {
    journal: Journal,
    health: watch::Receiver<Health>,
    told: watch::Receiver<Told>,
    was_away: bool,
    /// How many polls had been sent when the connection was back.
    asked: Option<u64>,
    has_begun: bool,
}

impl Reached {
    fn new(companion: &Companion) -> Self {
        Self {
            journal: companion.journal().clone(),
            health: companion.health(),
            told: companion.journal().told(),
            was_away: false,
            asked: None,
            has_begun: false,
        }
    }

    /// Returns when the connection was lost and the kernel has not begun the request by the time that it is back, or when it is not
    /// back in time. Cancel-safe.
    async fn not(&mut self) {
        loop {
            let health = *self.health.borrow_and_update();
            let told = self.told.borrow_and_update().clone();
            let mut by = None;
            match health {
                Health::Away(since) => {
                    self.was_away = true;
                    self.asked = None;
                    by = Some(since + AWAY_LIMIT);
                }
                Health::Up if std::mem::take(&mut self.was_away) => {
                    self.asked = Some(told.sent);
                    self.journal.poke();
                }
                Health::Up | Health::Lost(_) => {}
            }
            let is_read = self.asked.is_some_and(|asked| told.polls > asked) && told.caught_up;
            if is_read && !self.has_begun {
                return;
            }
            tokio::select! {
                // The senders are gone with the kernel, whose loss is told in another way.
                changed = self.health.changed() => if changed.is_err() {
                    std::future::pending().await
                },
                changed = self.told.changed(), if self.asked.is_some() => if changed.is_err() {
                    std::future::pending().await
                },
                () = until(by) => return,
            }
        }
    }
}

/// Asks the kernel.
pub(super) async fn ask(
    companion: &Companion,
    question: Question,
    content: &RawValue,
) -> Option<Box<RawValue>> {
    let (channel, msg_type) = match question {
        Question::Complete => (Channel::Shell, "complete_request"),
        Question::Inspect => (Channel::Shell, "inspect_request"),
        Question::CommInfo => (Channel::Shell, "comm_info_request"),
        Question::Usage => (Channel::Control, "usage_request"),
    };
    companion.ask(channel, msg_type, content).await.ok()
}
