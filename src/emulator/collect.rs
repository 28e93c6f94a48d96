//! What a kernel sends for one execution, turned into an `ExecuteCodeResult`.
//!
//! The end is taken from the shell reply and from idle on iopub. Both are waited for, because text may still be on its way
//! when the reply is there; if one of them is missing, the other suffices after a moment of silence.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::counters::Counters;
use super::errors::{self, Failure};
use super::executions::Execution;
use super::kernel_client::{Arrival, KernelClient, Message, Status};
use super::quirks::{Code, Ints, Quirks, ServiceSession, Stdin, UnknownIopub};

/// How long the second sign of the end is waited for while nothing else comes: longer than one very large message takes.
const GRACE: Duration = Duration::from_secs(10);

/// shell and iopub; each ends on its own.
const SOCKETS: usize = 2;

/// How an execution ended.
pub(super) enum Ending {
    /// The kernel said so.
    Completed(Outputs),
    /// The kernel went away.
    KernelDied(Outputs),
    /// The service did not bear what it read.
    Failed(Failure),
}

/// What a kernel may send on iopub (jupyter-client's messaging specification, and Colab's own).
const KNOWN: [&str; 15] = [
    "clear_output",
    "colab_request",
    "comm_close",
    "comm_msg",
    "comm_open",
    "debug_event",
    "display_data",
    "error",
    "execute_input",
    "execute_result",
    "iopub_welcome",
    "shutdown_reply",
    "status",
    "stream",
    "update_display_data",
];

/// What an execution left besides its text.
#[derive(Default)]
pub(super) struct Outputs {
    count: i64,
    result: String,
    error: Option<ErrorContent>,
    rich: Vec<Rich>,
}

struct Rich {
    kind: &'static str,
    bundle: Bundle,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Stream {
    name: String,
    text: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bundle {
    data: Map<String, Value>,
    metadata: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorContent {
    ename: String,
    evalue: String,
    traceback: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Reply {
    status: String,
    execution_count: Option<i64>,
    #[serde(flatten)]
    error: ErrorContent,
}

/// Runs an execution that has begun.
pub(super) async fn run(
    client: &mut KernelClient,
    execution: &Execution,
    quirks: &Quirks,
    counters: &Counters,
) -> Ending {
    let mut outputs = Outputs::default();
    let id = &execution.message_id;
    let allow_stdin = quirks.stdin == Stdin::Hang;
    let code = match quirks.code {
        Code::AsIs => execution.code.clone(),
        Code::Rewritten => rewritten(&execution.code),
    };
    if quirks.service_session == ServiceSession::Fresh {
        client.change_session();
    }
    if client.execute(id, &code, allow_stdin).await.is_err() {
        return Ending::KernelDied(outputs);
    }
    let (mut replied, mut idle, mut lost) = (false, false, 0);
    while !(replied && idle) && lost < SOCKETS {
        let arrival = if replied || idle || lost > 0 {
            match timeout(GRACE, client.next()).await {
                Ok(arrival) => arrival,
                Err(_) => break,
            }
        } else {
            client.next().await
        };
        match arrival {
            Arrival::Shell(message) if message.parent == *id => {
                let reply: Reply = message.read();
                if reply.status == "aborted" {
                    // A cell that failed aborts what is queued at that moment, also the first request after it.
                    if client.execute(id, &code, allow_stdin).await.is_err() {
                        return Ending::KernelDied(outputs);
                    }
                    idle = false;
                    continue;
                }
                replied = true;
                outputs.take_reply(reply);
            }
            Arrival::Iopub(message) if message.parent == *id => {
                let unknown = !KNOWN.contains(&message.kind.as_str());
                if unknown && quirks.unknown_iopub == UnknownIopub::Fail {
                    counters.unknown_iopub.add();
                    return Ending::Failed(Failure::new(
                        errors::Code::Internal,
                        "INTERNAL",
                        format!("Unexpected message '{}' from the kernel", message.kind),
                    ));
                }
                if message.kind == "status" {
                    idle |= message.read::<Status>().execution_state == "idle";
                } else {
                    outputs.take(&message, execution, quirks);
                }
            }
            Arrival::Shell(_) | Arrival::Iopub(_) => {}
            // What the other socket holds was sent before the kernel went.
            Arrival::Lost => lost += 1,
        }
    }
    if replied || (idle && lost == 0) {
        Ending::Completed(outputs)
    } else {
        Ending::KernelDied(outputs)
    }
}

/// The code between two comments of the service's own. They are indented like it, because IPython takes the first line for
/// the measure; before a cell magic, which has to be first, there is only a blank line.
fn rewritten(code: &str) -> String {
    let text = code.trim_start_matches('\n');
    let first = text.trim_start_matches([' ', '\t']);
    if first.starts_with("%%") {
        return format!("\n{code}");
    }
    let indent = &text[..text.len() - first.len()];
    format!("{indent}# begin\n{code}\n{indent}# end")
}

impl Outputs {
    fn take(&mut self, message: &Message, execution: &Execution, quirks: &Quirks) {
        match message.kind.as_str() {
            "stream" => {
                let stream: Stream = message.read();
                execution.print(&stream.name, &stream.text, quirks.chunk);
            }
            "display_data" => self.take_rich("display_data", message.read()),
            "execute_result" => {
                let bundle: Bundle = message.read();
                if let Some(Value::String(text)) = bundle.data.get("text/plain") {
                    self.result.clone_from(text);
                }
                self.take_rich("execute_result", bundle);
            }
            "error" => self.error = Some(message.read()),
            _ => {}
        }
    }

    /// A bundle of text/plain alone is not a rich output.
    fn take_rich(&mut self, kind: &'static str, bundle: Bundle) {
        if bundle.data.keys().any(|mime| mime != "text/plain") {
            self.rich.push(Rich { kind, bundle });
        }
    }

    fn take_reply(&mut self, reply: Reply) {
        self.count = reply.execution_count.unwrap_or_default();
        // The error message may have been lost; the reply has the same.
        if reply.status == "error" && self.error.is_none() {
            self.error = Some(reply.error);
        }
    }

    /// The same, ended by an error that the kernel did not report.
    pub fn with_error(mut self, name: &str, value: &str) -> Self {
        self.error = Some(ErrorContent {
            ename: name.to_owned(),
            evalue: value.to_owned(),
            traceback: Vec::new(),
        });
        self
    }

    /// The `ExecuteCodeResult`, in proto-JSON: what has its default value is left out. Writes the rich outputs to files.
    pub async fn into_result(
        self,
        execution: &Execution,
        session: &str,
        root: &Path,
        quirks: &Quirks,
    ) -> Result<Value, Failure> {
        let mut result = Map::new();
        let mut put = |name: &str, value: Value| {
            let default = match &value {
                Value::String(text) => text.is_empty(),
                Value::Bool(flag) => !flag,
                Value::Array(items) => items.is_empty(),
                Value::Null => true,
                other => other == &Value::from(0),
            };
            if !default {
                result.insert(name.to_owned(), value);
            }
        };
        put("executionId", execution.id.clone().into());
        put("session", session.into());
        put("executionCount", int(self.count, quirks.ints));
        let mut truncated = false;
        for stream in ["stdout", "stderr"] {
            let all = execution.all_of(stream);
            let kept = cap(&all, quirks);
            truncated |= kept.len() < all.len();
            put(stream, kept.into());
        }
        put("result", self.result.into());
        if let Some(error) = &self.error {
            put(
                "executionError",
                json!({"name": error.ename, "value": error.evalue, "traceback": error.traceback}),
            );
        }
        put("outputTruncated", truncated.into());
        put("richOutputsDropped", (!self.rich.is_empty()).into());
        if quirks.rich {
            let written = write_rich(&self.rich, execution, root, quirks).await;
            let written = written.map_err(|error| {
                Failure::new(
                    errors::Code::Internal,
                    "INTERNAL",
                    format!("A rich output could not be written: {error}"),
                )
            })?;
            put("richOutputs", written.into());
        }
        Ok(result.into())
    }
}

/// Writes bundles where Colab does and describes them.
async fn write_rich(
    rich: &[Rich],
    execution: &Execution,
    root: &Path,
    quirks: &Quirks,
) -> std::io::Result<Vec<Value>> {
    let mut described = Vec::new();
    if rich.is_empty() {
        return Ok(described);
    }
    let relative = format!("content/.dsm_outputs/{}", execution.message_id);
    let directory = root.join(&relative);
    tokio::fs::create_dir_all(&directory).await?;
    for (index, Rich { kind, bundle }) in rich.iter().enumerate() {
        let file = format!("out-{index:03}.json");
        let mut content = json!({
            "output_type": kind,
            "data": bundle.data,
            "metadata": bundle.metadata,
        });
        if *kind == "execute_result" {
            content["execution_count"] = Value::Null;
        }
        let text = content.to_string();
        tokio::fs::write(directory.join(&file), &text).await?;
        let mime_types: Vec<_> = bundle
            .data
            .keys()
            .filter(|mime| *mime != "text/plain")
            .collect();
        let mut entry = json!({
            "mimeTypes": mime_types,
            "filePath": format!("/{relative}/{file}"),
            "sizeBytes": text.len().to_string(),
        });
        if index > 0 {
            entry["index"] = int(i64::try_from(index).unwrap_or(i64::MAX), quirks.ints);
        }
        described.push(entry);
    }
    Ok(described)
}

fn int(value: i64, ints: Ints) -> Value {
    match ints {
        _ if value == 0 => 0.into(),
        Ints::Number => value.into(),
        Ints::String => value.to_string().into(),
    }
}

/// The part of a stream that a result holds, cut between characters.
fn cap(text: &str, quirks: &Quirks) -> String {
    let limit = quirks.truncate.bytes;
    if text.len() <= limit {
        return text.to_owned();
    }
    let kept = if quirks.truncate.head {
        let mut start = text.len() - limit;
        while !text.is_char_boundary(start) {
            start += 1;
        }
        &text[start..]
    } else {
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        &text[..end]
    };
    kept.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewritten_code_contains_the_callers_and_keeps_its_indentation() {
        assert_eq!(rewritten("x = 1\nx"), "# begin\nx = 1\nx\n# end");
        assert_eq!(rewritten("\n  x\n"), "  # begin\n\n  x\n\n  # end");
        assert_eq!(rewritten("%%bash\nls"), "\n%%bash\nls");
    }
}
