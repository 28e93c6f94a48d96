//! What Colab's documentation leaves open, as settings.
//!
//! [`TABLE`] is the reference: each quirk with its values (the default first), and what it means. A client that is right
//! passes with every combination of them.

use std::fmt::Write as _;
use std::time::Duration;

/// One line of the reference: a quirk, its values with the default first, its meaning.
#[derive(Debug, Clone, Copy)]
pub struct Quirk {
    /// Its name in `NAME=VALUE`.
    pub name: &'static str,
    /// Its values, the default first.
    pub values: &'static str,
    /// What it decides.
    pub about: &'static str,
}

/// Every quirk.
#[rustfmt::skip]
pub const TABLE: &[Quirk] = &[
    Quirk { name: "era", values: "any|2026-07-28|plain|2025-11-25", about: "which MCP exchange is accepted; a single one refuses the others as its specification says" },
    Quirk { name: "errors", values: "http|jsonrpc|tool|text", about: "where an error shows: HTTP status with a google.rpc body, JSON-RPC error, isError with JSON, isError with a sentence" },
    Quirk { name: "progress", values: "meta|message|json|json-keyed|none", about: "printed text in progress: bare in message with the stream in _meta, bare in message, {\"stream\",\"text\"} or {\"stdout\": text} as JSON in message, not at all" },
    Quirk { name: "cancel", values: "both|notification|disconnect", about: "what interrupts a call: notifications/cancelled, its stream being closed, or either; the other is ignored" },
    Quirk { name: "cancelled", values: "result|error|none", about: "how a cancelled call ends: with the interrupted execution's result, with CANCELLED, or with nothing until the client closes" },
    Quirk { name: "reattach", values: "continue|replay", about: "what a reattached call streams: the text that no call has streamed yet, or all from the start" },
    Quirk { name: "result", values: "structured|text|both", about: "where a tool's result is: structuredContent, JSON in content[0].text, or both" },
    Quirk { name: "answers", values: "auto|sse", about: "short answers: one JSON body, or an event stream like execute_code's" },
    Quirk { name: "code-argument", values: "code|NAME", about: "the name of execute_code's source argument" },
    Quirk { name: "create", values: "runtime|operation|empty", about: "what create_runtime returns: the runtime when it is ready, an operation at once, an empty object when it is ready" },
    Quirk { name: "create-arguments", values: "nested|flat", about: "create_runtime's schema: {runtime: {runtimeSpec}, runtimeId, requestId}, or {runtimeSpec, version}" },
    Quirk { name: "is-error", values: "no|yes", about: "whether isError is set when the code raised" },
    Quirk { name: "kernel-death", values: "aborted|unavailable|result", about: "how a call ends whose kernel died: ABORTED, UNAVAILABLE (a repeated call runs again), or a result with an executionError" },
    Quirk { name: "rich", values: "on|off", about: "whether rich outputs are written to files; off leaves richOutputs empty and richOutputsDropped true" },
    Quirk { name: "ints", values: "number|string", about: "how 32-bit integers are written" },
    Quirk { name: "stdin", values: "refuse|hang", about: "input(): StdinNotImplementedError, or waiting for ever" },
    Quirk { name: "truncate", values: "10485760:tail|BYTES:tail|BYTES:head", about: "the cap on stdout and on stderr in a result, and which end is cut off" },
    Quirk { name: "deadline", values: "600|SECONDS", about: "how long a call streams before DEADLINE_EXCEEDED" },
    Quirk { name: "rate", values: "off|N", about: "tool calls per second and account; above it RESOURCE_EXHAUSTED with Retry-After" },
    Quirk { name: "chunk", values: "as-is|line|BYTES", about: "how printed text is cut into progress notifications" },
    Quirk { name: "boot", values: "0|MILLISECONDS", about: "how much longer create_runtime takes" },
    Quirk { name: "token", values: "3600|SECONDS", about: "how long a proxy token is good" },
    Quirk { name: "runtimes", values: "5|N", about: "how many runtimes an account may have before TOO_MANY_ACTIVE_RUNTIMES" },
    Quirk { name: "kernels", values: "colab|newest", about: "the Python packages: Colab's published versions, or the newest" },
    Quirk { name: "server", values: "jupyter|gateway", about: "what serves the runtime's kernels: a Jupyter Server, or jupyter_kernel_gateway beside one for files; the gateway refuses listings of kernels and sessions and /api/status" },
    Quirk { name: "limits", values: "on|off", about: "whether the server's default limits on the rate of iopub messages hold for WebSockets" },
    Quirk { name: "companion", values: "on|blocked|cut:N|swallow:N|stall:N", about: "WebSockets: work; are refused with 403; are dropped without a close frame after N iopub messages each; lose every iopub message after the first N; pass nothing, pings included, after N iopub messages" },
    Quirk { name: "channels", values: "both|default", about: "the kernel's WebSocket: speaks v1.kernel.websocket.jupyter.org where it is asked for, or the default JSON protocol only" },
    Quirk { name: "code", values: "as-is|rewritten", about: "what the kernel is given to run: the caller's code, or that with a comment of the service's own before and after it" },
    Quirk { name: "unknown-iopub", values: "ignore|fail", about: "what a message of an unknown type on iopub under a call's own request does to the call: nothing, or INTERNAL" },
    Quirk { name: "sessions", values: "both|name|path|hidden", about: "where a session's id shows in the server's /api/sessions: in name and path, in one of them, or nowhere" },
    Quirk { name: "service-session", values: "constant|fresh", about: "header.session of the service's own requests: the same for all calls of a session, or another one for each" },
];

/// An enum whose variants are the values of a quirk; the first is the default.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $first:ident = $first_text:literal, $($variant:ident = $text:literal),+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[allow(missing_docs)]
        pub enum $name { #[default] $first, $($variant),+ }

        impl $name {
            fn parse(text: &str) -> Option<Self> {
                match text {
                    $first_text => Some(Self::$first),
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

choice!(/** `era` */ EraQuirk { Any = "any", Modern = "2026-07-28", Plain = "plain", Legacy = "2025-11-25" });
choice!(/** `errors` */ ErrorSurface { Http = "http", JsonRpc = "jsonrpc", Tool = "tool", Text = "text" });
choice!(/** `progress` */ ProgressShape { Meta = "meta", Message = "message", Json = "json", JsonKeyed = "json-keyed", None = "none" });
choice!(/** `cancel` */ CancelBy { Both = "both", Notification = "notification", Disconnect = "disconnect" });
choice!(/** `cancelled` */ CancelledEnd { Result = "result", Error = "error", None = "none" });
choice!(/** `reattach` */ Reattach { Continue = "continue", Replay = "replay" });
choice!(/** `result` */ ResultPlace { Structured = "structured", Text = "text", Both = "both" });
choice!(/** `answers` */ Answers { Auto = "auto", Sse = "sse" });
choice!(/** `create` */ CreateAnswer { Runtime = "runtime", Operation = "operation", Empty = "empty" });
choice!(/** `create-arguments` */ CreateArguments { Nested = "nested", Flat = "flat" });
choice!(/** `kernel-death` */ KernelDeath { Aborted = "aborted", Unavailable = "unavailable", Result = "result" });
choice!(/** `stdin` */ Stdin { Refuse = "refuse", Hang = "hang" });
choice!(/** `ints` */ Ints { Number = "number", String = "string" });
choice!(/** `kernels` */ Kernels { Colab = "colab", Newest = "newest" });

choice!(/** `server` */ Server { Jupyter = "jupyter", Gateway = "gateway" });
choice!(/** `channels` */ Channels { Both = "both", Default = "default" });
choice!(/** `code` */ Code { AsIs = "as-is", Rewritten = "rewritten" });
choice!(/** `unknown-iopub` */ UnknownIopub { Ignore = "ignore", Fail = "fail" });
choice!(/** `sessions` */ SessionsShow { Both = "both", Name = "name", Path = "path", Hidden = "hidden" });
choice!(/** `service-session` */ ServiceSession { Constant = "constant", Fresh = "fresh" });

/// `companion`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Companion {
    /// WebSockets work.
    #[default]
    On,
    /// Every upgrade is refused.
    Blocked,
    /// Dropped after this many iopub messages.
    Cut(u64),
    /// No iopub message passes after this many.
    Swallow(u64),
    /// Nothing passes after this many iopub messages.
    Stall(u64),
}

/// `chunk`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Chunk {
    /// As the kernel sent it.
    #[default]
    AsIs,
    /// One line each.
    Line,
    /// At most this many bytes each, but always whole characters.
    Bytes(usize),
}

/// `truncate`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate {
    /// How much of a stream a result holds.
    pub bytes: usize,
    /// Whether the head is cut off (else the tail).
    pub head: bool,
}

/// What Colab's documentation leaves open. The meaning of each field is in [`TABLE`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Quirks {
    pub era: EraQuirk,
    pub errors: ErrorSurface,
    pub progress: ProgressShape,
    pub cancel: CancelBy,
    pub cancelled: CancelledEnd,
    pub reattach: Reattach,
    pub result: ResultPlace,
    pub answers: Answers,
    pub code_argument: String,
    pub create: CreateAnswer,
    pub create_arguments: CreateArguments,
    pub is_error: bool,
    pub kernel_death: KernelDeath,
    pub rich: bool,
    pub ints: Ints,
    pub stdin: Stdin,
    pub truncate: Truncate,
    pub deadline: Duration,
    pub rate: Option<u32>,
    pub chunk: Chunk,
    pub boot: Duration,
    pub token: Duration,
    pub runtimes: usize,
    pub kernels: Kernels,
    pub server: Server,
    pub limits: bool,
    pub companion: Companion,
    pub channels: Channels,
    pub code: Code,
    pub unknown_iopub: UnknownIopub,
    pub sessions: SessionsShow,
    pub service_session: ServiceSession,
}

impl Default for Quirks {
    fn default() -> Self {
        Self {
            era: EraQuirk::default(),
            errors: ErrorSurface::default(),
            progress: ProgressShape::default(),
            cancel: CancelBy::default(),
            cancelled: CancelledEnd::default(),
            reattach: Reattach::default(),
            result: ResultPlace::default(),
            answers: Answers::default(),
            code_argument: "code".to_owned(),
            create: CreateAnswer::default(),
            create_arguments: CreateArguments::default(),
            is_error: false,
            kernel_death: KernelDeath::default(),
            rich: true,
            ints: Ints::default(),
            stdin: Stdin::default(),
            truncate: Truncate {
                bytes: 10 * 1024 * 1024,
                head: false,
            },
            deadline: Duration::from_secs(600),
            rate: None,
            chunk: Chunk::default(),
            boot: Duration::ZERO,
            token: Duration::from_secs(3600),
            runtimes: 5,
            kernels: Kernels::default(),
            server: Server::default(),
            limits: true,
            companion: Companion::default(),
            channels: Channels::default(),
            code: Code::default(),
            unknown_iopub: UnknownIopub::default(),
            sessions: SessionsShow::default(),
            service_session: ServiceSession::default(),
        }
    }
}

/// A setting that names no quirk, or no value of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuirkError {
    /// There is no `=`.
    #[error("\"{0}\" is not of the form NAME=VALUE")]
    Form(String),
    /// There is no such quirk.
    #[error("There is no quirk \"{name}\"\nThere are: {known}")]
    Name {
        /// What was given.
        name: String,
        /// What there is.
        known: String,
    },
    /// The quirk has no such value.
    #[error("The quirk \"{name}\" cannot be \"{value}\"\nIt can be: {values}")]
    Value {
        /// The quirk.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it can be.
        values: &'static str,
    },
}

impl Quirks {
    /// Sets one quirk from `NAME=VALUE`.
    pub fn set(&mut self, setting: &str) -> Result<(), QuirkError> {
        let Some((name, value)) = setting.split_once('=') else {
            return Err(QuirkError::Form(setting.to_owned()));
        };
        let (name, value) = (name.trim(), value.trim());
        let Some(quirk) = TABLE.iter().find(|quirk| quirk.name == name) else {
            let known: Vec<_> = TABLE.iter().map(|quirk| quirk.name).collect();
            return Err(QuirkError::Name {
                name: name.to_owned(),
                known: known.join(", "),
            });
        };
        self.apply(name, value).ok_or(QuirkError::Value {
            name: quirk.name,
            value: value.to_owned(),
            values: quirk.values,
        })
    }

    fn apply(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "era" => self.era = EraQuirk::parse(value)?,
            "errors" => self.errors = ErrorSurface::parse(value)?,
            "progress" => self.progress = ProgressShape::parse(value)?,
            "cancel" => self.cancel = CancelBy::parse(value)?,
            "cancelled" => self.cancelled = CancelledEnd::parse(value)?,
            "reattach" => self.reattach = Reattach::parse(value)?,
            "result" => self.result = ResultPlace::parse(value)?,
            "answers" => self.answers = Answers::parse(value)?,
            "code-argument" => self.code_argument = argument_name(value)?,
            "create" => self.create = CreateAnswer::parse(value)?,
            "create-arguments" => self.create_arguments = CreateArguments::parse(value)?,
            "is-error" => self.is_error = yes_or_no(value)?,
            "kernel-death" => self.kernel_death = KernelDeath::parse(value)?,
            "rich" => self.rich = yes_or_no(value)?,
            "ints" => self.ints = Ints::parse(value)?,
            "stdin" => self.stdin = Stdin::parse(value)?,
            "truncate" => self.truncate = truncate(value)?,
            "deadline" => self.deadline = seconds(value)?,
            "rate" if value == "off" => self.rate = None,
            "rate" => self.rate = Some(value.parse().ok().filter(|rate| *rate > 0)?),
            "chunk" => self.chunk = chunk(value)?,
            "boot" => self.boot = Duration::from_millis(value.parse().ok()?),
            "token" => self.token = seconds(value)?,
            "runtimes" => self.runtimes = value.parse().ok()?,
            "kernels" => self.kernels = Kernels::parse(value)?,
            "server" => self.server = Server::parse(value)?,
            "limits" => self.limits = yes_or_no(value)?,
            "companion" => self.companion = companion(value)?,
            "channels" => self.channels = Channels::parse(value)?,
            "code" => self.code = Code::parse(value)?,
            "unknown-iopub" => self.unknown_iopub = UnknownIopub::parse(value)?,
            "sessions" => self.sessions = SessionsShow::parse(value)?,
            "service-session" => self.service_session = ServiceSession::parse(value)?,
            _ => return None,
        }
        Some(())
    }

    /// The reference as text, for `--help`.
    pub fn help() -> String {
        let mut text = String::from(
            "Choose how something behaves that Colab's documentation leaves open (repeatable). The first value is the default:\n",
        );
        for Quirk {
            name,
            values,
            about,
        } in TABLE
        {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n{name}={values}\n    {about}");
        }
        text
    }
}

fn yes_or_no(value: &str) -> Option<bool> {
    match value {
        "yes" | "on" => Some(true),
        "no" | "off" => Some(false),
        _ => None,
    }
}

/// An argument name that cannot be taken for one of the documented arguments.
fn argument_name(value: &str) -> Option<String> {
    let taken = ["runtime", "session", "executionId"].contains(&value);
    let plain = !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (plain && !taken).then(|| value.to_owned())
}

/// Up to a century, so that every sum with a time of day is one.
fn seconds(value: &str) -> Option<Duration> {
    let seconds = Duration::try_from_secs_f64(value.parse().ok()?).ok()?;
    (seconds < Duration::from_secs(100 * 365 * 86400)).then_some(seconds)
}

fn truncate(value: &str) -> Option<Truncate> {
    let (bytes, end) = value.split_once(':').unwrap_or((value, "tail"));
    let head = match end {
        "head" => true,
        "tail" => false,
        _ => return None,
    };
    Some(Truncate {
        bytes: bytes.parse().ok()?,
        head,
    })
}

fn chunk(value: &str) -> Option<Chunk> {
    match value {
        "as-is" => Some(Chunk::AsIs),
        "line" => Some(Chunk::Line),
        _ => Some(Chunk::Bytes(value.parse().ok().filter(|n| *n > 0)?)),
    }
}

fn companion(value: &str) -> Option<Companion> {
    match value {
        "on" => return Some(Companion::On),
        "blocked" => return Some(Companion::Blocked),
        _ => {}
    }
    let (fault, after) = value.split_once(':')?;
    let after = after.parse().ok()?;
    match fault {
        "cut" => Some(Companion::Cut(after)),
        "swallow" => Some(Companion::Swallow(after)),
        "stall" => Some(Companion::Stall(after)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults with one quirk set.
    fn parse(setting: &str) -> Result<Quirks, QuirkError> {
        let mut quirks = Quirks::default();
        quirks.set(setting)?;
        Ok(quirks)
    }

    #[test]
    fn every_quirk_of_the_table_takes_each_of_its_listed_values() {
        for quirk in TABLE {
            for value in quirk.values.split('|') {
                let value = match value {
                    "NAME" => "source",
                    "N" | "BYTES" | "SECONDS" | "MILLISECONDS" => "7",
                    "BYTES:tail" => "7:tail",
                    "BYTES:head" => "7:head",
                    "cut:N" => "cut:7",
                    "swallow:N" => "swallow:7",
                    "stall:N" => "stall:7",
                    other => other,
                };
                let setting = format!("{}={value}", quirk.name);
                assert!(parse(&setting).is_ok(), "{setting}");
            }
        }
    }

    #[test]
    fn the_first_value_of_every_quirk_is_its_default() {
        for quirk in TABLE {
            let first = quirk.values.split('|').next().unwrap_or_default();
            let setting = format!("{}={first}", quirk.name);
            assert_eq!(parse(&setting), Ok(Quirks::default()), "{setting}");
        }
    }

    #[test]
    fn what_is_no_setting_is_refused_with_what_there_is() {
        let error = |setting| parse(setting).expect_err(setting).to_string();
        assert!(error("era").contains("NAME=VALUE"));
        assert!(error("weather=fine").contains("kernel-death"));
        assert!(error("era=2024").contains("2025-11-25"));
        assert!(error("rate=0").contains("off|N"));
        assert!(error("deadline=-1").contains("SECONDS"));
        assert!(error("code-argument=session").contains("NAME"));
        assert!(error("companion=cut").contains("cut:N"));
    }
}
