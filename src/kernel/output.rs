//! What one request shows while it runs.
//!
//! A notice about the wait before a cell is taken away again (`clear_output`) before the cell's own output, and is never shown
//! after it, because clearing it would clear the output too. What belongs to other requests leaves the notice alone: it is shown
//! elsewhere.

use std::sync::Arc;

use serde_json::{Value, json};

use super::comm::Comms;
use super::messages::ErrorContent;
use super::publish::{Publish, Publisher, parent_of, unwrap_origin};
use super::stdin::{Asker, Prompt, refuse_outside_cells};
use crate::backend::{Event, StreamName};
use crate::jupyter::iopub::IoPub;
use crate::jupyter::message::Parent;

/// The output of one request.
#[derive(Debug)]
pub struct Output {
    publisher: Publisher,
    parent: Parent,
    execution_count: u32,
    asker: Option<Asker>,
    notice: Notice,
    result: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notice {
    None,
    Shown,
    /// The cell has shown something of its own, which clearing a notice would clear too; or it may show none.
    Past,
}

impl Output {
    /// The output of the request that is `parent`. Results get this number unless they bring one.
    pub fn new(iopub: IoPub, comms: Arc<Comms>, parent: Parent, execution_count: u32) -> Self {
        Self {
            publisher: Publisher::new(iopub, comms, parent.clone()),
            parent,
            execution_count,
            asker: None,
            notice: Notice::None,
            result: None,
        }
    }

    /// With somebody to ask for input.
    pub fn asking(self, asker: Asker) -> Self {
        Self {
            asker: Some(asker),
            ..self
        }
    }

    /// Without notices: nothing of our own is shown for silent code.
    pub fn without_notices(self) -> Self {
        Self {
            notice: Notice::Past,
            ..self
        }
    }

    /// `text/plain` of the cell's result, for the history.
    pub fn result(&self) -> Option<&str> {
        self.result.as_deref()
    }

    /// Publishes an `error`.
    pub async fn error(&mut self, error: &ErrorContent) {
        self.begin_own().await;
        self.publisher.content("error", error).await;
    }

    /// Publishes what is still waiting.
    pub async fn finish(&mut self) {
        self.begin_own().await;
        self.publisher.flush().await;
    }

    /// Takes the notice away, and lets what follows be the request's own.
    async fn begin_own(&mut self) {
        self.publisher.turn_to(&self.parent).await;
        self.clear_notice(Notice::Past).await;
    }

    async fn ask(&mut self, prompt: Prompt) {
        // The user reads what was printed before the question.
        self.finish().await;
        match &self.asker {
            Some(asker) => asker.ask(prompt),
            None => refuse_outside_cells(&prompt),
        }
    }

    async fn show_notice(&mut self, text: &str) {
        if self.notice == Notice::Past {
            tracing::info!(
                notice = text,
                "not shown: the cell has output, or is silent"
            );
            return;
        }
        self.publisher.turn_to(&self.parent).await;
        if self.notice == Notice::Shown {
            let clear = json!({"wait": true});
            self.publisher.content("clear_output", &clear).await;
        }
        self.notice = Notice::Shown;
        let name = StreamName::Stderr.as_str();
        let content = json!({"name": name, "text": format!("{text}\n")});
        self.publisher.content("stream", &content).await;
    }

    async fn clear_notice(&mut self, next: Notice) {
        if self.notice == Notice::Past {
            return;
        }
        if std::mem::replace(&mut self.notice, next) == Notice::Shown {
            self.publisher.turn_to(&self.parent).await;
            let clear = json!({"wait": false});
            self.publisher.content("clear_output", &clear).await;
        }
    }
}

impl Publish for Output {
    async fn event(&mut self, event: Event) {
        let (origin, event) = unwrap_origin(event);
        let parent = origin.map_or_else(|| self.parent.clone(), |origin| parent_of(&origin));
        match event {
            // Whoever's code asks, the client of the running cell is the one that can answer, as in ipykernel.
            Event::InputRequest {
                prompt,
                password,
                answer,
            } => {
                self.ask(Prompt {
                    text: prompt,
                    password,
                    answer,
                })
                .await;
            }
            event if parent != self.parent => {
                self.publisher.event(&parent, event, 0).await;
            }
            Event::Notice(text) => self.show_notice(&text).await,
            Event::Submitted => self.clear_notice(Notice::None).await,
            event => {
                if let Event::ExecuteResult { data, .. } = &event {
                    self.result = data.get("text/plain").map(plain_text);
                }
                self.begin_own().await;
                let count = self.execution_count;
                self.publisher.event(&parent, event, count).await;
            }
        }
    }

    fn publisher(&mut self) -> &mut Publisher {
        &mut self.publisher
    }
}

/// A MIME value of text: a string, or the list of lines that nbformat allows.
fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        other => other.to_string(),
    }
}
