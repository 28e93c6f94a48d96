//! Comms: what the widgets of the front-end and of the kernel say to each other.
//!
//! A comm message of the front-end waits in the queue like a cell and is served like one, between `busy` and `idle`; what the
//! callback shows belongs to that message. All comm messages, both ways, pass through [`Comms`], which knows what is open. With
//! the session all comms are gone, and the front-end is told so of each.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::execute::Executor;
use super::output::Output;
use super::publish::publish_all;
use crate::backend::{self, Backend, Message, Origin};
use crate::jupyter::message::Request;

/// The comms of one kernel.
#[derive(Debug, Default)]
pub struct Comms(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: BTreeSet<String>,
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
    /// What the front-end gets for a message of the kernel. Messages that are of no comm pass as they are.
    pub fn to_front_end(&self, message: Message) -> Message {
        self.pass(&message);
        message
    }

    /// What the kernel gets for a comm message of the front-end.
    pub fn to_kernel(&self, message: Message) -> Message {
        self.pass(&message);
        message
    }

    /// The front-end has turned out to be VS Code.
    pub fn is_vs_code(&self) {}

    /// Forgets a comm that was opened in vain.
    pub fn forget(&self, comm_id: &str) {
        self.state().open.remove(comm_id);
    }

    /// Forgets all comms, and says which were open.
    pub fn forget_all(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state().open)
    }

    fn pass(&self, message: &Message) {
        let opens = match message.msg_type.as_str() {
            "comm_open" => true,
            "comm_close" => false,
            _ => return,
        };
        let Some(id) = comm_id(&message.content) else {
            return;
        };
        let mut state = self.state();
        if opens {
            state.open.insert(id);
        } else {
            state.open.remove(&id);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            self.comms.forget(&comm_id);
            let content = json!({"comm_id": comm_id, "data": {}});
            output.content("comm_close", &content).await;
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
            let content = json!({"comm_id": comm_id, "data": {}});
            output.content("comm_close", &content).await;
        }
    }
}
