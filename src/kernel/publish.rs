//! Events, turned into iopub messages in their order, each under the request that it belongs to.
//!
//! Text goes through a coalescer, which is emptied before anything else is published and before text of another request. So the
//! order stays whatever belongs to whom.

use std::sync::Arc;

use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::comm::Comms;
use super::messages::ErrorContent;
use super::stdin::{Prompt, refuse_outside_cells};
use crate::backend::{Event, EventReceiver, JsonMap, Message, Origin, StreamName};
use crate::jupyter::iopub::IoPub;
use crate::jupyter::message::{OutMessage, Parent};
use crate::jupyter::stream::Coalescer;

/// Types that only the kernel itself says: passed on, they would end a cell or begin one.
const OURS: [&str; 4] = ["status", "execute_input", "iopub_welcome", "shutdown_reply"];

/// Something that publishes events.
pub trait Publish {
    /// Publishes one event.
    fn event(&mut self, event: Event) -> impl Future<Output = ()> + Send;

    /// What the events go through.
    fn publisher(&mut self) -> &mut Publisher;
}

/// Publishes events until the last sender is gone. What was gathered is not published at the end.
pub async fn publish_all(output: &mut impl Publish, events: &mut EventReceiver) {
    let hurry = events.hurry();
    loop {
        let due = output.publisher().due();
        if due.is_none() {
            events.published();
        }
        let timer = sleep_until(due.unwrap_or_else(Instant::now));
        tokio::select! {
            biased;
            () = timer, if due.is_some() => output.publisher().publish_due().await,
            event = events.recv() => match event {
                Some(event) => {
                    output.event(event).await;
                    if output.publisher().due().is_some() {
                        events.gather();
                    }
                }
                None => return,
            },
            () = hurry.notified() => output.publisher().flush().await,
        }
    }
}

/// The request that an event names as its own, if it names one, and what happened.
pub fn unwrap_origin(mut event: Event) -> (Option<Origin>, Event) {
    let mut origin = None;
    while let Event::Of(named, inner) = event {
        origin = Some(named);
        event = *inner;
    }
    (origin, event)
}

/// The parent of what belongs to this request.
pub fn parent_of(origin: &Origin) -> Parent {
    if origin.header().is_empty() {
        Parent::none()
    } else {
        Parent::of_header(origin.header().clone())
    }
}

/// Publishes under one request after the other.
#[derive(Debug)]
pub struct Publisher {
    iopub: IoPub,
    comms: Arc<Comms>,
    parent: Parent,
    text: Coalescer,
}

#[derive(Serialize)]
struct Display<'a> {
    data: &'a JsonMap,
    metadata: &'a JsonMap,
    transient: &'a JsonMap,
}

#[derive(Serialize)]
struct ExecuteResult<'a> {
    data: &'a JsonMap,
    metadata: &'a JsonMap,
    execution_count: u32,
}

impl Publisher {
    /// A publisher that begins with what belongs to this request.
    pub fn new(iopub: IoPub, comms: Arc<Comms>, parent: Parent) -> Self {
        Self {
            text: Coalescer::new(iopub.clone(), parent.clone()),
            iopub,
            comms,
            parent,
        }
    }

    /// When [`Self::publish_due`] has to be called, if text is waiting.
    pub fn due(&self) -> Option<Instant> {
        self.text.due()
    }

    /// Publishes the text whose time has come.
    pub async fn publish_due(&mut self) {
        self.text.flush_due().await;
    }

    /// Publishes the text that is waiting.
    pub async fn flush(&mut self) {
        self.text.flush().await;
    }

    /// Publishes an event under this request. `count` is the number of a result that has none.
    pub async fn event(&mut self, parent: &Parent, event: Event, count: u32) {
        self.turn_to(parent).await;
        match event {
            Event::Stream { name, text } => self.text(name, &text).await,
            Event::DisplayData {
                data,
                metadata,
                transient,
            } => {
                self.display("display_data", &data, &metadata, &transient)
                    .await
            }
            Event::UpdateDisplayData {
                data,
                metadata,
                transient,
            } => {
                self.display("update_display_data", &data, &metadata, &transient)
                    .await;
            }
            Event::ExecuteResult {
                data,
                metadata,
                execution_count,
            } => {
                let content = ExecuteResult {
                    data: &data,
                    metadata: &metadata,
                    execution_count: execution_count.unwrap_or(count),
                };
                self.content("execute_result", &content).await;
            }
            Event::ClearOutput { wait } => {
                self.content("clear_output", &json!({"wait": wait})).await;
            }
            Event::Error(exception) => {
                self.content("error", &ErrorContent::from(exception)).await;
            }
            Event::Message(message) => self.message(message).await,
            Event::InputRequest {
                prompt,
                password,
                answer,
            } => refuse_outside_cells(&Prompt {
                text: prompt,
                password,
                answer,
            }),
            Event::Notice(_) | Event::Submitted | Event::Of(..) => {
                tracing::debug!("an event that belongs to no other request is dropped");
            }
        }
    }

    /// Publishes a message of this type under the current request, behind its text.
    pub async fn content(&mut self, msg_type: &str, content: &impl Serialize) {
        self.text.flush().await;
        self.iopub.publish(&self.parent, msg_type, content).await;
    }

    /// Lets what follows belong to this request.
    pub async fn turn_to(&mut self, parent: &Parent) {
        if self.parent == *parent {
            return;
        }
        self.text.flush().await;
        self.text = Coalescer::new(self.iopub.clone(), parent.clone());
        self.parent = parent.clone();
    }

    async fn text(&mut self, name: StreamName, text: &str) {
        self.text.push(name, text).await;
    }

    async fn display(
        &mut self,
        msg_type: &str,
        data: &JsonMap,
        metadata: &JsonMap,
        transient: &JsonMap,
    ) {
        let content = Display {
            data,
            metadata,
            transient,
        };
        self.content(msg_type, &content).await;
    }

    async fn message(&mut self, message: Message) {
        if OURS.contains(&message.msg_type.as_str()) {
            tracing::debug!(msg_type = message.msg_type, "not the backend's to publish");
            return;
        }
        self.text.flush().await;
        let message = self.comms.to_front_end(message);
        let message = OutMessage {
            msg_id: Uuid::new_v4(),
            msg_type: message.msg_type,
            parent: self.parent.clone(),
            content: message.content,
            metadata: message.metadata,
            buffers: message.buffers,
        };
        self.iopub.send(message).await;
    }
}

/// What comes while no request is served: output of threads, under the requests that started them, without `busy` and `idle`.
#[derive(Debug)]
pub struct Background(Publisher);

impl Background {
    /// Publishes until the last sender is gone.
    pub async fn run(iopub: IoPub, comms: Arc<Comms>, mut events: EventReceiver) {
        let mut background = Self(Publisher::new(iopub, comms, Parent::none()));
        publish_all(&mut background, &mut events).await;
        background.0.flush().await;
    }
}

impl Publish for Background {
    async fn event(&mut self, event: Event) {
        let (origin, event) = unwrap_origin(event);
        let Some(origin) = origin else {
            tracing::debug!("what belongs to no request is dropped");
            return;
        };
        self.0.event(&parent_of(&origin), event, 0).await;
    }

    fn publisher(&mut self) -> &mut Publisher {
        &mut self.0
    }
}
