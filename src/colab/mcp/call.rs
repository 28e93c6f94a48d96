//! One tool call: opening it, reading what comes, cancelling it.
//!
//! Invariants:
//!
//! * Nothing runs on its own: [`Call::next`] does the sending and the reading, so a caller that does not ask holds the server
//!   back, and dropping the call closes its stream. `next` can be dropped at any await and called again.
//! * Progress comes in the order in which it arrived, all of it before the end; nothing comes after the end.
//! * A call that may have run is never sent a second time. Where the server turned it away because the session or the era was
//!   over, it is sent again only if the caller said that this is harmless.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::{Map, Value, json};

use super::eras::{self, Agreement};
use super::errors::Status;
use super::exchange::{self, Trouble};
use super::rpc::{self, Incoming, RequestId};
use super::sse::Answer;
use super::trace::{self, Way};
use super::{Client, arguments, result};
use crate::backend::JsonMap;

/// How long the end of an answer's body may take after its last message. Read to its end, the connection can be used again.
const DRAIN_TIME: Duration = Duration::from_secs(2);

type Opening = Pin<Box<dyn Future<Output = Result<Answer, Status>> + Send>>;

/// A tool call in flight. Dropping it closes its stream.
pub struct Call {
    request: Arc<Request>,
    state: State,
    /// Whether the call has been sent again after a change of era; once is enough.
    is_repeated: bool,
}

enum State {
    Opening(Opening),
    Reading(Box<Answer>),
    Ended,
}

/// What is to be called, and under which agreement it went out.
struct Request {
    client: Client,
    tool: String,
    arguments: JsonMap,
    id: RequestId,
    wants_progress: bool,
    may_repeat: bool,
    sent: Mutex<Option<Arc<Agreement>>>,
}

/// What arrives on a call's stream.
#[derive(Debug, Clone, PartialEq)]
pub enum CallEvent {
    /// `notifications/progress`
    Progress(Progress),
    /// The call's end: its result, or why there is none.
    Finished(Result<Value, Status>),
}

/// The parameters of `notifications/progress`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Increases with every notification.
    pub progress: f64,
    /// The total, where it is known.
    pub total: Option<f64>,
    /// The message, exactly as it was sent.
    pub message: Option<String>,
    /// `_meta`
    pub meta: JsonMap,
}

/// Posts `notifications/cancelled` for a call.
#[derive(Clone)]
pub struct Canceller {
    request: Arc<Request>,
}

impl Call {
    pub(crate) fn new(
        client: Client,
        tool: &str,
        arguments: JsonMap,
        wants_progress: bool,
        may_repeat: bool,
    ) -> Self {
        let request = Arc::new(Request {
            client,
            tool: tool.to_owned(),
            arguments,
            id: RequestId::fresh(),
            wants_progress,
            may_repeat,
            sent: Mutex::new(None),
        });
        Self {
            state: State::Opening(Box::pin(open(Arc::clone(&request)))),
            request,
            is_repeated: false,
        }
    }

    /// What comes next; `None` after [`CallEvent::Finished`].
    pub async fn next(&mut self) -> Option<CallEvent> {
        loop {
            match &mut self.state {
                State::Opening(opening) => match opening.await {
                    Ok(answer) => self.state = State::Reading(Box::new(answer)),
                    Err(status) => return self.finish(Err(status)),
                },
                State::Reading(answer) => {
                    let text = match answer.next().await {
                        Some(Ok(text)) => text,
                        Some(Err(status)) => return self.finish(Err(status)),
                        None => {
                            let lost = Status::lost("The answer's stream ended without a result");
                            return self.finish(Err(lost));
                        }
                    };
                    trace::frame(Way::Received, &self.request.tool, &text);
                    match rpc::incoming(&text, self.request.id) {
                        Ok(Incoming::Progress(progress)) => {
                            return Some(CallEvent::Progress(progress));
                        }
                        Ok(Incoming::Result(result)) => {
                            self.prove();
                            return self.finish(result::outcome(result));
                        }
                        Ok(Incoming::Error(error)) => {
                            let trouble = Trouble::from_rpc(&error);
                            let is_about_era =
                                trouble.is_era_rejection() || trouble.wants_session();
                            if !is_about_era || self.is_repeated {
                                self.prove();
                                return self.finish(Err(trouble.status));
                            }
                            self.is_repeated = true;
                            let Some(agreement) = self.request.agreement() else {
                                return self.finish(Err(trouble.status));
                            };
                            self.state = State::Opening(Box::pin(reopen(
                                Arc::clone(&self.request),
                                agreement,
                                trouble,
                            )));
                        }
                        Ok(Incoming::Request { id, method }) => {
                            if let Some(agreement) = self.request.agreement() {
                                exchange::reply(
                                    self.request.client.http().clone(),
                                    agreement.era.clone(),
                                    id,
                                    method,
                                );
                            }
                        }
                        Ok(Incoming::Other) => {}
                        Err(status) => return self.finish(Err(status)),
                    }
                }
                State::Ended => return None,
            }
        }
    }

    /// A handle that can cancel the call from another task.
    pub fn canceller(&self) -> Canceller {
        Canceller {
            request: Arc::clone(&self.request),
        }
    }

    /// Waits for the call's end, passing over its progress.
    pub async fn finished(mut self) -> Result<Value, Status> {
        loop {
            match self.next().await {
                Some(CallEvent::Progress(_)) => {}
                Some(CallEvent::Finished(result)) => return result,
                None => return Err(Status::lost("The call has ended already")),
            }
        }
    }

    fn prove(&self) {
        if let Some(agreement) = self.request.agreement() {
            agreement.prove();
        }
    }

    fn finish(&mut self, result: Result<Value, Status>) -> Option<CallEvent> {
        if let State::Reading(mut answer) = std::mem::replace(&mut self.state, State::Ended)
            && !matches!(answer.next().now_or_never(), Some(None))
        {
            tokio::spawn(tokio::time::timeout(DRAIN_TIME, async move {
                while let Some(Ok(_)) = answer.next().await {}
            }));
        }
        Some(CallEvent::Finished(result))
    }
}

impl Canceller {
    /// Posts the notification (same JSON-RPC id as the call) and returns when it has been answered or has failed.
    pub async fn cancel(&self, reason: &str) -> Result<(), Status> {
        let Some(agreement) = self.request.agreement() else {
            // The call has not been sent; dropping it is all that it takes.
            return Ok(());
        };
        let mut params = Map::new();
        params.insert("requestId".to_owned(), self.request.id.value());
        params.insert("reason".to_owned(), json!(reason));
        exchange::tell(
            self.request.client.http(),
            &agreement.era,
            "notifications/cancelled",
            params,
        )
        .await
        .map_err(|trouble| trouble.status)
    }
}

impl Request {
    /// The agreement under which the call went out.
    fn agreement(&self) -> Option<Arc<Agreement>> {
        self.sent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sends the call under an agreement.
    async fn post(&self, agreement: &Arc<Agreement>) -> Result<Answer, Trouble> {
        const METHOD: &str = "tools/call";
        let arguments = arguments::fit(self.arguments.clone(), agreement.schema(&self.tool));
        let mut headers = agreement.era.headers(METHOD, Some(&self.tool));
        agreement.mirror(&self.tool, &arguments, &mut headers);
        let mut params = Map::new();
        params.insert("name".to_owned(), json!(self.tool));
        params.insert("arguments".to_owned(), Value::Object(arguments));
        let body = eras::request(&agreement.era, self.id, METHOD, params, self.wants_progress);
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(agreement));
        let http = self.client.http();
        let response = http
            .post(&body, &headers, &self.tool)
            .await
            .map_err(exchange::trouble_of)?;
        Ok(Answer::new(response, http.clone()))
    }
}

async fn open(request: Arc<Request>) -> Result<Answer, Status> {
    let agreement = request.client.agreement().await?;
    match request.post(&agreement).await {
        Ok(answer) => Ok(answer),
        Err(trouble) => reopen(request, agreement, trouble).await,
    }
}

/// Decides whether a refusal was about the era or the session rather than about the call, by negotiating anew; and sends the call
/// again where that is safe.
async fn reopen(
    request: Arc<Request>,
    old: Arc<Agreement>,
    trouble: Trouble,
) -> Result<Answer, Status> {
    let is_expired = old.may_have_expired() && trouble.is_lost_session();
    let is_rejected = trouble.is_era_rejection();
    let wants_session = is_expired || (!old.has_session() && trouble.wants_session());
    if !wants_session && !is_rejected && !trouble.is_suspect() {
        old.prove();
        return Err(trouble.status);
    }
    tracing::debug!(target: "colab_kernel::mcp", status = %trouble.status, "the era or the session may be over: negotiating anew");
    let fresh = request.client.renegotiate(&old, wants_session).await?;
    if fresh.era == old.era && !is_rejected {
        // The server still speaks as agreed: the refusal meant the call.
        return Err(trouble.status);
    }
    if is_rejected || request.may_repeat {
        return request.post(&fresh).await.map_err(|trouble| trouble.status);
    }
    Err(Status::lost(if is_expired {
        "The MCP session had expired, and the call was not repeated under the new one"
    } else {
        "The server speaks another version of MCP than before, and the call was not repeated"
    }))
}
