//! What `tools/list` says: the ten tools with their schemas and hints, in the reference's order.
//!
//! The input schemas are also the rules by which arguments are checked: nothing unknown, nothing required left out.

use serde_json::{Map, Value, json};

use super::errors::Failure;
use super::quirks::{CreateArguments, Quirks};

struct Tool {
    name: &'static str,
    about: &'static str,
    input: Value,
    output: Value,
    hints: Hints,
}

struct Hints {
    destructive: bool,
    idempotent: bool,
    read_only: bool,
}

const READS: Hints = Hints {
    destructive: false,
    idempotent: true,
    read_only: true,
};
const ADDS: Hints = Hints {
    destructive: false,
    idempotent: false,
    read_only: false,
};
const DELETES: Hints = Hints {
    destructive: true,
    idempotent: true,
    read_only: false,
};
const RUNS: Hints = Hints {
    destructive: true,
    idempotent: false,
    read_only: false,
};

/// `tools` of the answer to `tools/list`.
pub(super) fn list(quirks: &Quirks) -> Value {
    let tools = tools(quirks).into_iter().map(|tool| {
        json!({
            "name": tool.name,
            "description": tool.about,
            "inputSchema": tool.input,
            "outputSchema": tool.output,
            "annotations": {
                "title": tool.name,
                "destructiveHint": tool.hints.destructive,
                "idempotentHint": tool.hints.idempotent,
                "readOnlyHint": tool.hints.read_only,
                "openWorldHint": false,
            },
        })
    });
    tools.collect::<Vec<_>>().into()
}

/// Whether there is a tool of this name, and whether the arguments fit its schema.
pub(super) fn check(
    quirks: &Quirks,
    name: &str,
    arguments: &Map<String, Value>,
) -> Option<Result<(), Failure>> {
    let tool = tools(quirks).into_iter().find(|tool| tool.name == name)?;
    Some(check_object(&tool.input, arguments))
}

fn check_object(schema: &Value, object: &Map<String, Value>) -> Result<(), Failure> {
    for (name, value) in object {
        let property = &schema["properties"][name];
        let fits = match property["type"].as_str() {
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("object") => value.is_object(),
            _ => return Err(Failure::invalid(format!("Unknown argument: {name}"))),
        };
        if !fits {
            return Err(Failure::invalid(format!(
                "The argument {name} is of the wrong type"
            )));
        }
        // The fields of a runtime spec are checked with the specs.
        if let (Value::Object(inner), true) = (value, property["properties"].is_object()) {
            check_object(property, inner)?;
        }
    }
    let required = schema["required"].as_array().into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        // In proto-JSON an empty string is an absent field.
        if object.get(name).is_none_or(|value| value == "") {
            return Err(Failure::invalid(format!("The argument {name} is required")));
        }
    }
    Ok(())
}

fn tools(quirks: &Quirks) -> Vec<Tool> {
    let runtime_name = || string("The runtime: runtimes/{runtime}");
    let session_name = || string("The session: runtimes/{runtime}/sessions/{session}");
    vec![
        Tool {
            name: "create_runtime",
            about: "Creates a runtime and waits until it is ready. list_runtime_specs tells which ones can be had.",
            input: create_runtime_input(quirks.create_arguments),
            output: runtime(),
            hints: ADDS,
        },
        Tool {
            name: "create_session",
            about: "Opens a Jupyter kernel session on a runtime. One that is already open under the id is returned.",
            input: object(
                json!({
                    "parent": runtime_name(),
                    "sessionId": string("1-63 lowercase ASCII letters, digits, hyphens (RFC 1034); random if left out"),
                    "session": object(json!({"name": string("Output only")}), &[]),
                }),
                &["parent"],
            ),
            output: session(),
            hints: ADDS,
        },
        Tool {
            name: "delete_session",
            about: "Closes a session: its calls are aborted, its variables are gone, its files stay.",
            input: object(json!({"name": session_name()}), &["name"]),
            output: object(json!({}), &[]),
            hints: DELETES,
        },
        Tool {
            name: "execute_code",
            about: "Runs Python in a session, or in a fresh session of a runtime. Text streams as progress notifications and is returned with the result.",
            input: object(
                json!({
                    quirks.code_argument.as_str(): string("The Python source"),
                    "runtime": runtime_name(),
                    "session": session_name(),
                    "executionId": string("A UUID; the identical call reattaches until the result was returned"),
                }),
                &[&quirks.code_argument],
            ),
            output: execute_code_result(),
            hints: RUNS,
        },
        Tool {
            name: "get_subscription",
            about: "The subscription of the user.",
            input: object(json!({}), &[]),
            output: object(
                json!({"name": string("subscription"), "tier": string("SubscriptionTier")}),
                &[],
            ),
            hints: READS,
        },
        Tool {
            name: "list_sessions",
            about: "The open sessions of a runtime, whoever opened them.",
            input: object(json!({"parent": runtime_name()}), &["parent"]),
            output: object(json!({"sessions": array(session())}), &[]),
            hints: READS,
        },
        Tool {
            name: "delete_runtime",
            about: "Deletes a runtime with its state.",
            input: object(
                json!({
                    "name": runtime_name(),
                    "allowMissing": {"type": "boolean", "description": "A runtime that is not there is no error"},
                }),
                &["name"],
            ),
            output: object(json!({}), &[]),
            hints: DELETES,
        },
        Tool {
            name: "get_runtime",
            about: "A runtime with what is needed to connect to it.",
            input: object(json!({"name": runtime_name()}), &["name"]),
            output: runtime(),
            hints: READS,
        },
        Tool {
            name: "list_runtimes",
            about: "The runtimes of the user.",
            input: object(json!({}), &[]),
            output: object(json!({"runtimes": array(runtime())}), &[]),
            hints: READS,
        },
        Tool {
            name: "list_runtime_specs",
            about: "The machines there are and whether the user may have them.",
            input: object(json!({}), &[]),
            output: object(
                json!({"runtimeSpecs": array(object(
                    json!({"key": spec_key(), "eligible": {"type": "boolean"}}),
                    &[],
                ))}),
                &[],
            ),
            hints: READS,
        },
    ]
}

fn create_runtime_input(arguments: CreateArguments) -> Value {
    let version = || string("The version of the image; the newest if left out");
    match arguments {
        CreateArguments::Nested => object(
            json!({
                "runtime": object(
                    json!({"runtimeSpec": spec_key(), "version": version()}),
                    &["runtimeSpec"],
                ),
                "runtimeId": string("The id (RFC 1034); random if left out"),
                "requestId": string("A UUID; the same request is carried out once"),
            }),
            &["runtime"],
        ),
        CreateArguments::Flat => object(
            json!({"runtimeSpec": spec_key(), "version": version()}),
            &["runtimeSpec"],
        ),
    }
}

fn spec_key() -> Value {
    object(
        json!({
            "variant": string("VARIANT_CPU, VARIANT_GPU, VARIANT_TPU"),
            "accelerator": string("A model name, or NONE"),
            "shape": string("SHAPE_STANDARD, SHAPE_HIGHMEM"),
        }),
        &[],
    )
}

fn runtime() -> Value {
    object(
        json!({
            "name": string("runtimes/{runtime}"),
            "runtimeSpec": spec_key(),
            "connectionInfo": object(
                json!({"token": string(""), "expireTime": string(""), "url": string("")}),
                &[],
            ),
            "version": string(""),
        }),
        &[],
    )
}

fn session() -> Value {
    object(
        json!({"name": string("runtimes/{runtime}/sessions/{session}")}),
        &[],
    )
}

fn execute_code_result() -> Value {
    let int = || json!({"type": ["integer", "string"]});
    let flag = || json!({"type": "boolean"});
    object(
        json!({
            "executionId": string(""),
            "session": string(""),
            "executionCount": int(),
            "stdout": string(""),
            "stderr": string(""),
            "result": string("text/plain of the last expression"),
            "executionError": object(
                json!({"name": string(""), "value": string(""), "traceback": array(string(""))}),
                &[],
            ),
            "outputTruncated": flag(),
            "richOutputsDropped": flag(),
            "richOutputs": array(object(
                json!({
                    "index": int(),
                    "mimeTypes": array(string("")),
                    "filePath": string(""),
                    "sizeBytes": string("int64"),
                    "errorInfo": {"type": "object"},
                }),
                &[],
            )),
        }),
        &[],
    )
}

fn object(properties: Value, required: &[&str]) -> Value {
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn array(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn string(about: &str) -> Value {
    if about.is_empty() {
        return json!({"type": "string"});
    }
    json!({"type": "string", "description": about})
}
