//! What runs by requests of our own, over the companion: uncounted code, comm messages, questions.
//!
//! Invariant: each ends when the kernel has ended it, when the kernel is lost, or when its interrupt was followed by neither.

use std::time::Duration;

use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::companion::activity::{Activity, Arrival, ExecuteReply};
use super::companion::wire::Channel;
use super::companion::{Companion, OwnRequest, events};
use super::names;
use super::service::Service;
use super::session::ColabBackend;
use crate::backend::{
    Answerer, BackendError, Cell, ErrorName, Event, EventSender, Exception, Outcome, Question,
};

/// How long behind the end of a request its reply may come.
const REPLY_LIMIT: Duration = Duration::from_secs(2);
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
            let Some(raised) = attend(companion, activity, &cell.interrupt, events).await else {
                if companion.is_lost() {
                    self.lose_session();
                    return Err(names::session_lost());
                }
                return Err(BackendError::new(
                    ErrorName::KeyboardInterrupt,
                    "interrupted; the kernel has not confirmed it. If the code still runs, the next cell waits for it",
                ));
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

/// Passes on what a request of our own does until it has ended. The inner value is the exception that it raised; `None`: it was
/// lost, or could not be interrupted.
pub(super) async fn attend(
    companion: &Companion,
    mut activity: Activity,
    interrupt: &CancellationToken,
    events: &EventSender,
) -> Option<Option<Exception>> {
    let mut raised = None;
    let mut interrupted = false;
    let mut helpers = JoinSet::new();
    let given_up = async {
        interrupt.cancelled().await;
        sleep(GIVEN_UP).await;
    };
    tokio::pin!(given_up);
    loop {
        let arrival = tokio::select! {
            biased;
            () = interrupt.cancelled(), if !interrupted => {
                interrupted = true;
                let companion = companion.clone();
                helpers.spawn(async move { companion.interrupt().await });
                continue;
            }
            () = &mut given_up => return None,
            arrival = activity.recv() => arrival?,
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
                let (answer, mut answered) = Answerer::new();
                let event = Event::InputRequest {
                    prompt: prompt.prompt,
                    password: prompt.password,
                    answer,
                };
                events.send(event).await;
                let companion = companion.clone();
                helpers.spawn(async move {
                    if let Some(answer) = answered.recv().await {
                        companion.answer(&prompt.key, answer).await;
                    }
                });
            }
            Arrival::Began { .. } | Arrival::Reply(_) | Arrival::Hole(_) => {}
            Arrival::Ended(let_go) => {
                events.settled().await;
                drop(let_go);
                return Some(raised);
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
