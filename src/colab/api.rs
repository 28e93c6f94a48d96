//! The ten tools of Colab's MCP server, typed.
//!
//! Field names are those of the reference (<https://developers.google.com/colab/api/reference/mcp>), in proto-JSON: absent
//! fields are defaults, 64-bit integers may come as strings, unknown fields are passed over. Nulls and snake-case names are
//! taken as well, because the service's own texts use both. The calls are methods of [`super::mcp::Client`] (`calls`, beside this
//! file); each is one attempt, and [`super::retry`] says what is tried again.

mod calls;
mod creation;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::mcp::errors::Status;

/// A machine assigned to the user.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Runtime {
    /// `runtimes/{runtime_id}`
    #[serde(deserialize_with = "lenient_string")]
    pub name: String,
    /// What kind of machine it is.
    #[serde(alias = "runtime_spec", deserialize_with = "or_default")]
    pub runtime_spec: SpecKey,
    /// How its own Jupyter server is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "connection_info")]
    pub connection_info: Option<ConnectionInfo>,
    /// The version of the image; empty is the newest.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[serde(deserialize_with = "lenient_string")]
    pub version: String,
}

/// A combination of variant, accelerator and shape (`RuntimeSpec.Key`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpecKey {
    /// `VARIANT_CPU`, `VARIANT_GPU`, `VARIANT_TPU`
    #[serde(deserialize_with = "lenient_string")]
    pub variant: String,
    /// A model name such as `T4`, or `NONE`.
    #[serde(deserialize_with = "lenient_string")]
    pub accelerator: String,
    /// `SHAPE_STANDARD` or `SHAPE_HIGHMEM`
    #[serde(deserialize_with = "lenient_string")]
    pub shape: String,
}

/// The proxy in front of a runtime's Jupyter server.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionInfo {
    /// The short-lived proxy token. A secret: never shown.
    #[serde(deserialize_with = "lenient_string")]
    pub token: String,
    /// When the token expires, RFC 3339.
    #[serde(alias = "expire_time", deserialize_with = "lenient_string")]
    pub expire_time: String,
    /// The base URL.
    #[serde(deserialize_with = "lenient_string")]
    pub url: String,
}

impl std::fmt::Debug for ConnectionInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionInfo")
            .field("url", &self.url)
            .field("expire_time", &self.expire_time)
            .finish_non_exhaustive()
    }
}

/// A machine configuration and whether the user may have it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeSpec {
    /// The configuration.
    #[serde(deserialize_with = "or_default")]
    pub key: SpecKey,
    /// Whether the user may have it.
    #[serde(deserialize_with = "lenient_bool")]
    pub eligible: bool,
}

/// An open Jupyter kernel session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Session {
    /// `runtimes/{runtime_id}/sessions/{session_id}`
    #[serde(deserialize_with = "lenient_string")]
    pub name: String,
}

/// The user's subscription.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subscription {
    /// The resource name.
    #[serde(deserialize_with = "lenient_string")]
    pub name: String,
    /// `FREE`, `PRO`, `PRO_PLUS`
    #[serde(deserialize_with = "lenient_string")]
    pub tier: String,
}

/// What `execute_code` returned.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecuteCodeResult {
    /// The execution id that was sent.
    #[serde(alias = "execution_id", deserialize_with = "lenient_string")]
    pub execution_id: String,
    /// The session that ran the code.
    #[serde(deserialize_with = "lenient_string")]
    pub session: String,
    /// The kernel's `In[N]` (0: not given).
    #[serde(alias = "execution_count", deserialize_with = "lenient_int")]
    pub execution_count: i64,
    /// All that was printed to standard output.
    #[serde(deserialize_with = "lenient_string")]
    pub stdout: String,
    /// All that was printed to standard error.
    #[serde(deserialize_with = "lenient_string")]
    pub stderr: String,
    /// `text/plain` of the last expression.
    #[serde(deserialize_with = "lenient_string")]
    pub result: String,
    /// The exception of the user's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "execution_error", deserialize_with = "raised")]
    pub execution_error: Option<ExecutionError>,
    /// Whether size caps cut stdout or stderr.
    #[serde(alias = "output_truncated", deserialize_with = "lenient_bool")]
    pub output_truncated: bool,
    /// Deprecated by the service: true whenever there were rich outputs.
    #[serde(alias = "rich_outputs_dropped", deserialize_with = "lenient_bool")]
    pub rich_outputs_dropped: bool,
    /// Figures, tables and the like, as files on the runtime.
    #[serde(alias = "rich_outputs", deserialize_with = "or_default")]
    pub rich_outputs: Vec<RichOutput>,
}

/// An exception in an [`ExecuteCodeResult`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecutionError {
    /// The class.
    #[serde(deserialize_with = "lenient_string")]
    pub name: String,
    /// The message.
    #[serde(deserialize_with = "lenient_string")]
    pub value: String,
    /// One frame an entry.
    #[serde(deserialize_with = "or_default")]
    pub traceback: Vec<String>,
}

/// A rich output that was written to a file on the runtime.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RichOutput {
    /// Its place among the rich outputs of the call.
    #[serde(deserialize_with = "lenient_int")]
    pub index: i64,
    /// Its MIME types.
    #[serde(alias = "mime_types", deserialize_with = "or_default")]
    pub mime_types: Vec<String>,
    /// The absolute path of an nbformat output bundle; empty if it was dropped.
    #[serde(alias = "file_path", deserialize_with = "lenient_string")]
    pub file_path: String,
    /// The size on disk, bytes.
    #[serde(alias = "size_bytes", deserialize_with = "lenient_int")]
    pub size_bytes: i64,
    /// Why it was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "error_info")]
    pub error_info: Option<ErrorInfo>,
}

/// `google.rpc.ErrorInfo`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorInfo {
    /// The machine-readable reason.
    #[serde(deserialize_with = "lenient_string")]
    pub reason: String,
    /// Who gives it.
    #[serde(deserialize_with = "lenient_string")]
    pub domain: String,
    /// Details.
    #[serde(deserialize_with = "or_default")]
    pub metadata: std::collections::BTreeMap<String, String>,
}

/// An `execute_code` call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecuteCode {
    /// The session's full name.
    pub session: String,
    /// A fresh UUID for every execution.
    pub execution_id: String,
    /// The source.
    pub code: String,
}

impl ExecuteCodeResult {
    /// Reads what a call of `execute_code` returned.
    pub fn parse(value: Value) -> Result<Self, Status> {
        parse(value)
    }
}

/// Reads an answer of the service.
pub fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Status> {
    serde_json::from_value(value).map_err(|error| {
        Status::protocol(format!("The service's answer has an unknown form: {error}"))
    })
}

/// A null is a default, as an absent member is.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A scalar in any of the forms in which JSON writers put one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Null(()),
}

/// proto-JSON writes 64-bit integers as strings, and some servers write all integers so.
fn lenient_int<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[allow(clippy::cast_possible_truncation)]
    Ok(match Scalar::deserialize(deserializer)? {
        Scalar::Int(n) => n,
        Scalar::Float(x) => x as i64,
        Scalar::Text(text) if text.trim().is_empty() => 0,
        Scalar::Text(text) => text.trim().parse().map_err(serde::de::Error::custom)?,
        Scalar::Bool(_) | Scalar::Null(()) => 0,
    })
}

fn lenient_bool<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(match Scalar::deserialize(deserializer)? {
        Scalar::Bool(value) => value,
        Scalar::Int(n) => n != 0,
        Scalar::Text(text) => text.eq_ignore_ascii_case("true"),
        Scalar::Float(_) | Scalar::Null(()) => false,
    })
}

fn lenient_string<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Scalar::deserialize(deserializer)? {
        Scalar::Text(text) => text,
        Scalar::Int(n) => n.to_string(),
        Scalar::Float(x) => x.to_string(),
        Scalar::Bool(value) => value.to_string(),
        Scalar::Null(()) => String::new(),
    })
}

/// An exception without a name, a message and a traceback is none: some writers put an empty object where nothing was raised.
fn raised<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ExecutionError>, D::Error> {
    let error: Option<ExecutionError> = Option::deserialize(deserializer)?;
    Ok(error.filter(|error| *error != ExecutionError::default()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_and_null_members_are_defaults() {
        let empty: ExecuteCodeResult = parse(json!({})).unwrap();
        assert_eq!(empty, ExecuteCodeResult::default());
        let nulls: ExecuteCodeResult = parse(json!({
            "executionId": null, "session": null, "executionCount": null, "stdout": null, "stderr": null, "result": null,
            "executionError": null, "outputTruncated": null, "richOutputsDropped": null, "richOutputs": null,
        }))
        .unwrap();
        assert_eq!(nulls, ExecuteCodeResult::default());
        let runtime: Runtime = parse(json!({"name": "runtimes/r", "runtimeSpec": null, "connectionInfo": null, "version": null})).unwrap();
        assert_eq!(runtime.name, "runtimes/r");
        assert_eq!(runtime.connection_info, None);
    }

    #[test]
    fn integers_may_be_strings_and_names_snake_case() {
        let result: ExecuteCodeResult = parse(json!({
            "execution_count": "7", "execution_error": {"name": "E", "traceback": null}, "output_truncated": "true",
            "rich_outputs": [{"index": "1", "mime_types": ["image/png"], "file_path": "/content/x", "sizeBytes": "12345678901",
                              "error_info": {"reason": "TOO_BIG", "metadata": {"a": "b"}}}],
            "somethingNew": {"x": 1},
        }))
        .unwrap();
        assert_eq!(result.execution_count, 7);
        assert_eq!(result.execution_error.unwrap().name, "E");
        assert!(result.output_truncated);
        let rich = &result.rich_outputs[0];
        assert_eq!(
            (rich.index, rich.size_bytes, rich.file_path.as_str()),
            (1, 12_345_678_901, "/content/x")
        );
        assert_eq!(rich.error_info.as_ref().unwrap().reason, "TOO_BIG");
    }

    #[test]
    fn an_empty_exception_is_none() {
        let result: ExecuteCodeResult = parse(json!({"executionError": {}})).unwrap();
        assert_eq!(result.execution_error, None);
    }

    #[test]
    fn an_unknown_form_is_a_protocol_error() {
        let status = parse::<Runtime>(json!("nothing")).unwrap_err();
        assert_eq!(status.origin, super::super::mcp::errors::Origin::Protocol);
    }

    #[test]
    fn a_proxy_token_is_not_shown() {
        let runtime: Runtime =
            parse(json!({"connectionInfo": {"token": "s3cret", "url": "https://h"}})).unwrap();
        assert!(!format!("{runtime:?}").contains("s3cret"));
    }
}
