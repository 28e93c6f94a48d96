//! Comms: what the widgets of the front-end and of the kernel say to each other.
//!
//! A comm message of the front-end waits in the queue like a cell and is served like one, between `busy` and `idle`; what the
//! callback shows belongs to that message. All comm messages, both ways, pass through [`Comms`], which knows what is open and has
//! widgets translated (`widgets.rs`). With the session all comms are gone, and the front-end is told so of each.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::execute::Executor;
use super::output::Output;
use super::publish::{Publish, publish_all};
use super::widgets::{Bridge, Mode};
use crate::backend::{self, Backend, Event, JsonMap, Message, Origin};
use crate::jupyter::message::Request;

/// The comms of one kernel.
#[derive(Debug)]
pub struct Comms(Mutex<State>);

#[derive(Debug)]
struct State {
    open: BTreeSet<String>,
    bridge: Bridge,
}

/// What all comm messages have.
#[derive(Deserialize)]
struct CommId {
    comm_id: String,
}

fn comm_id(content: &RawValue) -> Option<String> {
    let read = serde_json::from_str::<CommId>(content.get());
    read.ok().map(|content| content.comm_id)
}

impl Comms {
    /// No comms yet; widgets are translated as the mode says.
    pub fn new(widgets: Mode) -> Self {
        Self(Mutex::new(State {
            open: BTreeSet::new(),
            bridge: Bridge::new(widgets),
        }))
    }

    /// What the front-end gets for a message of the kernel. Messages that are of no comm pass as they are.
    pub fn to_front_end(&self, mut message: Message) -> Message {
        let mut state = self.state();
        state.follow(&message);
        let (msg_type, content) = (&message.msg_type, &message.content);
        if let Some(translated) = state.bridge.to_front_end(msg_type, content) {
            message.content = translated;
        }
        message
    }

    /// What the kernel gets for a comm message of the front-end.
    pub fn to_kernel(&self, mut message: Message) -> Message {
        let mut state = self.state();
        state.follow(&message);
        let (msg_type, content) = (&message.msg_type, &message.content);
        if let Some(translated) = state.bridge.to_kernel(msg_type, content) {
            message.content = translated;
        }
        message
    }

    /// The front-end has turned out to be VS Code.
    pub fn is_vs_code(&self) {
        self.state().bridge.is_vs_code();
    }

    /// Forgets all comms, and says which were open.
    pub fn forget_all(&self) -> BTreeSet<String> {
        let mut state = self.state();
        state.bridge.forget_all();
        std::mem::take(&mut state.open)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Remembers what is open after this message.
    fn follow(&mut self, message: &Message) {
        let opens = match message.msg_type.as_str() {
            "comm_open" => true,
            "comm_close" => false,
            _ => return,
        };
        let Some(id) = comm_id(&message.content) else {
            return;
        };
        if opens {
            self.open.insert(id);
        } else {
            self.open.remove(&id);
        }
    }
}

/// Tells the front-end that a comm is no more.
fn close(comm_id: &str) -> Event {
    let content = json!({"comm_id": comm_id, "data": {}}).to_string();
    Event::Message(Message {
        msg_type: "comm_close".into(),
        // What has been written as JSON can be read as JSON.
        content: RawValue::from_string(content).unwrap_or_else(|_| RawValue::NULL.to_owned()),
        metadata: JsonMap::new(),
        buffers: Vec::new(),
    })
}

impl<B: Backend> Executor<B> {
    /// Serves a comm message of the front-end.
    pub(super) async fn comm(&self, request: &Request, interrupt: &CancellationToken) {
        let msg_type = request.msg_type();
        let Some(comm_id) = comm_id(&request.content) else {
            tracing::warn!(msg_type, "a comm message has no comm_id");
            return;
        };
        let count = self.backend.next_execution_count().saturating_sub(1);
        let comms = Arc::clone(&self.comms);
        let mut output =
            Output::new(self.iopub.clone(), comms, request.parent(), count).without_notices();
        let taken =
            self.backend.has_session() && self.hand_over(request, interrupt, &mut output).await;
        output.finish().await;
        if msg_type == "comm_open" && !taken {
            output.event(close(&comm_id)).await;
        }
    }

    /// `false`: there is nobody who could take it.
    async fn hand_over(
        &self,
        request: &Request,
        interrupt: &CancellationToken,
        output: &mut Output,
    ) -> bool {
        let message = self.comms.to_kernel(Message {
            msg_type: request.msg_type().to_owned(),
            content: request.content.clone(),
            metadata: serde_json::from_str(request.metadata.get()).unwrap_or_default(),
            buffers: request.buffers.clone(),
        });
        let origin = Origin::new(request.parent().as_bytes().clone());
        let (sender, mut events) = backend::events();
        let (backend, interrupt) = (Arc::clone(&self.backend), interrupt.clone());
        let served =
            tokio::spawn(async move { backend.comm(message, origin, interrupt, sender).await });
        publish_all(output, &mut events).await;
        served.await.unwrap_or_else(|error| {
            tracing::error!(%error, "the backend failed");
            false
        })
    }

    /// Tells the front-end that every open comm is gone with the session.
    pub(super) async fn close_comms(&self, output: &mut Output) {
        for comm_id in self.comms.forget_all() {
            output.event(close(&comm_id)).await;
        }
    }
}
