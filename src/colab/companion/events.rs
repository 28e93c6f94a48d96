//! What a kernel publishes, as events of the backend.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::wire::Message;
use crate::backend::{self, Event, Exception, JsonMap, StreamName};

/// The metadata's key that is ours.
const OWN_KEY: &str = "ck";

#[derive(Deserialize)]
struct Stream {
    name: String,
    text: String,
}

#[derive(Deserialize)]
#[serde(default)]
struct Display {
    data: JsonMap,
    metadata: JsonMap,
    transient: JsonMap,
    execution_count: Option<u32>,
}

impl Default for Display {
    fn default() -> Self {
        Self {
            data: JsonMap::new(),
            metadata: JsonMap::new(),
            transient: JsonMap::new(),
            execution_count: None,
        }
    }
}

#[derive(Deserialize)]
struct Clear {
    #[serde(default)]
    wait: bool,
}

#[derive(Deserialize)]
struct Raised {
    #[serde(default)]
    ename: String,
    #[serde(default)]
    evalue: String,
    #[serde(default)]
    traceback: Vec<String>,
}

/// The event that a message stands for. `None`: it is nothing for a front-end, or cannot be read.
pub fn event(message: &Message) -> Option<Event> {
    let kind = message.head()?.msg_type;
    if is_internal(&kind) {
        return None;
    }
    let event = read(&kind, message);
    if event.is_none() {
        tracing::warn!(kind, "a message of the kernel cannot be read");
    }
    event
}

/// What is for others than the front-end: our own messages, the web page's, and the state of the remote kernel.
fn is_internal(kind: &str) -> bool {
    kind.starts_with("ck_")
        || matches!(
            kind,
            "status"
                | "execute_input"
                | "iopub_welcome"
                | "shutdown_reply"
                | "colab_request"
                | "debug_event"
        )
}

fn read(kind: &str, message: &Message) -> Option<Event> {
    Some(match kind {
        "stream" => {
            let stream: Stream = message.content().ok()?;
            Event::Stream {
                name: match stream.name.as_str() {
                    "stderr" => StreamName::Stderr,
                    _ => StreamName::Stdout,
                },
                text: stream.text,
            }
        }
        "display_data" => {
            let Display {
                data,
                metadata,
                transient,
                ..
            } = message.content().ok()?;
            Event::DisplayData {
                data,
                metadata,
                transient,
            }
        }
        "update_display_data" => {
            let Display {
                data,
                metadata,
                transient,
                ..
            } = message.content().ok()?;
            Event::UpdateDisplayData {
                data,
                metadata,
                transient,
            }
        }
        "execute_result" => {
            let Display {
                data,
                metadata,
                execution_count,
                ..
            } = message.content().ok()?;
            Event::ExecuteResult {
                data,
                metadata,
                execution_count,
            }
        }
        "clear_output" => Event::ClearOutput {
            wait: message.content::<Clear>().ok()?.wait,
        },
        "error" => {
            let raised: Raised = message.content().ok()?;
            Event::Error(Exception {
                ename: raised.ename,
                evalue: raised.evalue,
                traceback: raised.traceback,
            })
        }
        _ => {
            let mut metadata: JsonMap = message.metadata().unwrap_or_default();
            metadata.remove(OWN_KEY);
            Event::Message(backend::Message {
                msg_type: kind.to_owned(),
                content: message.content::<Box<RawValue>>().ok()?,
                metadata,
                buffers: message.buffers.clone(),
            })
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::wire::Channel;
    use super::*;

    fn message(kind: &str, content: Value) -> Message {
        Message::new(Channel::IoPub, "s", kind, &content)
    }

    #[test]
    fn text_displays_and_errors_are_told_apart() {
        let stream = message("stream", json!({"name": "stderr", "text": "a\r"}));
        assert_eq!(
            event(&stream),
            Some(Event::Stream {
                name: StreamName::Stderr,
                text: "a\r".into()
            })
        );
        let result = json!({"data": {"text/plain": "1"}, "metadata": {}, "execution_count": 4});
        assert!(matches!(
            event(&message("execute_result", result)),
            Some(Event::ExecuteResult {
                execution_count: Some(4),
                ..
            })
        ));
        let clear = message("clear_output", json!({"wait": true}));
        assert_eq!(event(&clear), Some(Event::ClearOutput { wait: true }));
    }

    #[test]
    fn other_messages_pass_with_their_bytes_and_without_our_number() {
        let mut comm = message("comm_msg", json!({}));
        comm.content = r#"{"comm_id": "c",  "data": {"x": 1.00}}"#.into();
        comm.metadata = r#"{"version": "2.0.0", "ck": {"n": 1, "journal": "j"}}"#.into();
        comm.buffers = vec!["\u{0}b".into()];
        let Some(Event::Message(passed)) = event(&comm) else {
            panic!("not passed");
        };
        assert_eq!(passed.content.get().as_bytes(), &comm.content[..]);
        assert_eq!(json!(passed.metadata), json!({"version": "2.0.0"}));
        assert_eq!(passed.buffers, comm.buffers);
    }

    #[test]
    fn our_own_messages_are_not_shown() {
        for kind in [
            "status",
            "ck_execute_reply",
            "execute_input",
            "colab_request",
        ] {
            assert_eq!(event(&message(kind, json!({}))), None, "{kind}");
        }
    }
}
