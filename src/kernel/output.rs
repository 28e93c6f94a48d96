//! What one cell shows: its events, turned into iopub messages in their order.
//!
//! Text goes through the coalescer, which is emptied before anything else is published. A notice about the wait before the
//! cell is taken away again (`clear_output`) before the cell's own output, and is never shown after it, because clearing it
//! would clear the output too.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::messages::ErrorContent;
use crate::backend::{Event, StreamName};
use crate::jupyter::iopub::IoPub;
use crate::jupyter::message::Parent;
use crate::jupyter::stream::Coalescer;

/// The output of one cell.
pub struct CellOutput {
    iopub: IoPub,
    parent: Parent,
    text: Coalescer,
    execution_count: u32,
    silent: bool,
    notice: Notice,
    result: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Notice {
    None,
    Shown,
    /// The cell has shown something of its own, which clearing a notice would clear too.
    Past,
}

impl CellOutput {
    /// The output of the cell that `parent` asked for, with the number it is expected to get.
    pub fn new(iopub: IoPub, parent: Parent, execution_count: u32, silent: bool) -> Self {
        Self {
            text: Coalescer::new(iopub.clone(), parent.clone()),
            iopub,
            parent,
            execution_count,
            silent,
            notice: Notice::None,
            result: None,
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

    /// `text/plain` of the cell's result, for the history.
    pub fn result(&self) -> Option<&str> {
        self.result.as_deref()
    }

    /// Publishes one event.
    pub async fn event(&mut self, event: Event) {
        if self.silent {
            return;
        }
        match event {
            Event::Notice(text) => self.show_notice(&text).await,
            Event::Submitted => self.clear_notice(Notice::None).await,
            Event::Stream { name, text } => {
                self.clear_notice(Notice::Past).await;
                self.text.push(name, &text).await;
            }
            Event::DisplayData {
                data,
                metadata,
                transient,
            } => {
                self.publish(
                    "display_data",
                    &json!({"data": data, "metadata": metadata, "transient": transient}),
                )
                .await;
            }
            Event::ExecuteResult {
                data,
                metadata,
                execution_count,
            } => {
                self.result = data.get("text/plain").map(plain_text);
                let count = execution_count.unwrap_or(self.execution_count);
                self.publish(
                    "execute_result",
                    &json!({"data": data, "metadata": metadata, "execution_count": count}),
                )
                .await;
            }
            Event::Error(exception) => self.error(&exception.into()).await,
            Event::UpdateDisplayData { .. }
            | Event::ClearOutput { .. }
            | Event::InputRequest { .. }
            | Event::Message(_)
            | Event::Of(..) => {}
        }
    }

    /// Publishes an `error`, unless the cell is silent.
    pub async fn error(&mut self, error: &ErrorContent) {
        if !self.silent {
            self.publish("error", error).await;
        }
    }

    /// Publishes what is still waiting.
    pub async fn finish(&mut self) {
        self.clear_notice(Notice::Past).await;
        self.text.flush().await;
    }

    async fn publish(&mut self, msg_type: &str, content: &impl serde::Serialize) {
        self.clear_notice(Notice::Past).await;
        self.text.flush().await;
        self.iopub.publish(&self.parent, msg_type, content).await;
    }

    async fn show_notice(&mut self, text: &str) {
        if self.notice == Notice::Past {
            tracing::info!(notice = text, "not shown: the cell has output");
            return;
        }
        if self.notice == Notice::Shown {
            let clear = json!({"wait": true});
            self.iopub
                .publish(&self.parent, "clear_output", &clear)
                .await;
        }
        self.notice = Notice::Shown;
        let name = StreamName::Stderr.as_str();
        let content = json!({"name": name, "text": format!("{text}\n")});
        self.iopub.publish(&self.parent, "stream", &content).await;
    }

    async fn clear_notice(&mut self, next: Notice) {
        if self.notice == Notice::Past {
            return;
        }
        if std::mem::replace(&mut self.notice, next) == Notice::Shown {
            let clear = json!({"wait": false});
            self.iopub
                .publish(&self.parent, "clear_output", &clear)
                .await;
        }
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
