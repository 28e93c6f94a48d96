//! The ten tools of Colab's MCP server, typed.
//!
//! Field names are those of the reference (<https://developers.google.com/colab/api/reference/mcp>), in proto-JSON: absent
//! fields are defaults, 64-bit integers may come as strings, unknown fields are passed over.

use serde::{Deserialize, Serialize};

/// A machine assigned to the user.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Runtime {
    /// `runtimes/{runtime_id}`
    pub name: String,
    /// What kind of machine it is.
    pub runtime_spec: SpecKey,
    /// How its own Jupyter server is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_info: Option<ConnectionInfo>,
    /// The version of the image; empty is the newest.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
}

/// A combination of variant, accelerator and shape (`RuntimeSpec.Key`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpecKey {
    /// `VARIANT_CPU`, `VARIANT_GPU`, `VARIANT_TPU`
    pub variant: String,
    /// A model name such as `T4`, or `NONE`.
    pub accelerator: String,
    /// `SHAPE_STANDARD` or `SHAPE_HIGHMEM`
    pub shape: String,
}

/// The proxy in front of a runtime's Jupyter server.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionInfo {
    /// The short-lived proxy token. A secret: never shown.
    pub token: String,
    /// When the token expires, RFC 3339.
    pub expire_time: String,
    /// The base URL.
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
    pub key: SpecKey,
    /// Whether the user may have it.
    pub eligible: bool,
}

/// An open Jupyter kernel session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Session {
    /// `runtimes/{runtime_id}/sessions/{session_id}`
    pub name: String,
}

/// The user's subscription.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subscription {
    /// The resource name.
    pub name: String,
    /// `FREE`, `PRO`, `PRO_PLUS`
    pub tier: String,
}

/// What `execute_code` returned.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecuteCodeResult {
    /// The execution id that was sent.
    pub execution_id: String,
    /// The session that ran the code.
    pub session: String,
    /// The kernel's `In[N]` (0: not given).
    #[serde(deserialize_with = "lenient_int")]
    pub execution_count: i64,
    /// All that was printed to standard output.
    pub stdout: String,
    /// All that was printed to standard error.
    pub stderr: String,
    /// `text/plain` of the last expression.
    pub result: String,
    /// The exception of the user's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_error: Option<ExecutionError>,
    /// Whether size caps cut stdout or stderr.
    pub output_truncated: bool,
    /// Deprecated by the service: true whenever there were rich outputs.
    pub rich_outputs_dropped: bool,
    /// Figures, tables and the like, as files on the runtime.
    pub rich_outputs: Vec<RichOutput>,
}

/// An exception in an [`ExecuteCodeResult`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecutionError {
    /// The class.
    pub name: String,
    /// The message.
    pub value: String,
    /// One frame an entry.
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
    pub mime_types: Vec<String>,
    /// The absolute path of an nbformat output bundle; empty if it was dropped.
    pub file_path: String,
    /// The size on disk, bytes.
    #[serde(deserialize_with = "lenient_int")]
    pub size_bytes: i64,
    /// Why it was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_info: Option<ErrorInfo>,
}

/// `google.rpc.ErrorInfo`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorInfo {
    /// The machine-readable reason.
    pub reason: String,
    /// Who gives it.
    pub domain: String,
    /// Details.
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

/// proto-JSON writes 64-bit integers as strings, and some servers write all integers so.
fn lenient_int<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Int(i64),
        Float(f64),
        Text(String),
        Null(()),
    }
    #[allow(clippy::cast_possible_truncation)]
    Ok(match Form::deserialize(deserializer)? {
        Form::Int(n) => n,
        Form::Float(x) => x as i64,
        Form::Text(text) => text.trim().parse().map_err(serde::de::Error::custom)?,
        Form::Null(()) => 0,
    })
}
