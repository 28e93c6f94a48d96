//! The connection file: where the front-end expects the kernel to listen, and the key that both sign with.
//!
//! * Ports may be numbers or strings (JEP 106 allows both); fields that are not known are left alone.
//! * The key never reaches a log: its `Debug` shows nothing of it, and no error quotes the file's text.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::signing::Scheme;
use crate::backend::JsonMap;

/// How the sockets are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `tcp://{ip}:{port}`
    Tcp,
    /// `ipc://{ip}-{port}`
    Ipc,
}

/// The key that messages are signed with. Its `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(String);

impl SecretKey {
    /// A key of these characters.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

/// What a connection file says.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// tcp or ipc.
    pub transport: Transport,
    /// The address, or the path prefix with ipc.
    pub ip: String,
    /// The shell socket's port.
    pub shell_port: u16,
    /// The control socket's port.
    pub control_port: u16,
    /// The stdin socket's port.
    pub stdin_port: u16,
    /// The iopub socket's port.
    pub iopub_port: u16,
    /// The heartbeat socket's port.
    pub hb_port: u16,
    /// The key; empty means unsigned.
    pub key: SecretKey,
    /// The signature scheme.
    pub signature_scheme: Scheme,
    /// The kernelspec's name, where the file tells it.
    pub kernel_name: Option<String>,
}

/// Why a connection file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("connection file {}: {reason}", path.display())]
pub struct ConnectionError {
    path: PathBuf,
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error(
        "cannot be read: {0}\nStart the kernel from a Jupyter front-end, or name an existing file with -f"
    )]
    Read(std::io::Error),
    #[error(
        "is not a JSON object (line {line}, column {column})\nLet the front-end write a new one"
    )]
    NotJson { line: usize, column: usize },
    #[error("has no usable \"{0}\"\nLet the front-end write a new one")]
    Field(&'static str),
    #[error(
        "has no usable port in \"{0}\": a number from 1 to 65535 is needed\nLet the front-end write a new one"
    )]
    Port(&'static str),
    #[error(
        "wants the transport \"{0}\"; this kernel speaks tcp and ipc\nSet the kernel manager's transport to tcp"
    )]
    Transport(String),
    #[error("wants the signature scheme \"{0}\"; this kernel speaks {names}\nSet Session.signature_scheme to hmac-sha256", names = Scheme::NAMES)]
    Scheme(String),
    #[error(
        "asks for CurveZMQ encryption, which this kernel does not speak\nSet the kernel manager's encryption to disabled"
    )]
    Curve,
}

impl ConnectionInfo {
    /// Reads a connection file. One pair of quotes around the path is taken away: VS Code wraps paths with blanks in them
    /// (<https://github.com/microsoft/vscode-jupyter/issues/7203>).
    pub fn load(path: &Path) -> Result<Self, ConnectionError> {
        let path = unquoted(path);
        let fail = |reason| ConnectionError {
            path: path.clone(),
            reason,
        };
        let text = std::fs::read_to_string(&path).map_err(|error| fail(Reason::Read(error)))?;
        Self::parse(&text).map_err(fail)
    }

    fn parse(text: &str) -> Result<Self, Reason> {
        let fields: JsonMap = serde_json::from_str(text).map_err(|error| Reason::NotJson {
            line: error.line(),
            column: error.column(),
        })?;
        if fields
            .iter()
            .any(|(name, value)| asks_for_curve(name, value))
        {
            return Err(Reason::Curve);
        }
        let transport = match string(&fields, "transport")? {
            None | Some("tcp") => Transport::Tcp,
            Some("ipc") => Transport::Ipc,
            Some(other) => return Err(Reason::Transport(other.to_owned())),
        };
        let key = string(&fields, "key")?.unwrap_or_default();
        let signature_scheme = match string(&fields, "signature_scheme")? {
            None => Scheme::HmacSha256,
            // Without a key nothing is signed, whatever the scheme is called.
            Some(name) if key.is_empty() => Scheme::from_name(name).unwrap_or(Scheme::HmacSha256),
            Some(name) => Scheme::from_name(name).ok_or_else(|| Reason::Scheme(name.to_owned()))?,
        };
        Ok(Self {
            transport,
            ip: string(&fields, "ip")?
                .filter(|ip| !ip.is_empty())
                .ok_or(Reason::Field("ip"))?
                .to_owned(),
            shell_port: port(&fields, "shell_port")?,
            control_port: port(&fields, "control_port")?,
            stdin_port: port(&fields, "stdin_port")?,
            iopub_port: port(&fields, "iopub_port")?,
            hb_port: port(&fields, "hb_port")?,
            key: SecretKey::new(key),
            signature_scheme,
            kernel_name: fields
                .get("kernel_name")
                .and_then(Value::as_str)
                .map(str::to_owned),
        })
    }
}

fn unquoted(path: &Path) -> PathBuf {
    let Some(text) = path.to_str() else {
        return path.to_owned();
    };
    let inner = ['"', '\'']
        .into_iter()
        .find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    PathBuf::from(inner.unwrap_or(text))
}

/// Whether a field turns CurveZMQ on (jupyter_client ≥ 8.9 writes its keys into the file).
fn asks_for_curve(name: &str, value: &Value) -> bool {
    let empty = value.is_null() || value.as_str() == Some("");
    name.starts_with("curve_") && !empty
}

fn string<'a>(fields: &'a JsonMap, name: &'static str) -> Result<Option<&'a str>, Reason> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Reason::Field(name)),
    }
}

fn port(fields: &JsonMap, name: &'static str) -> Result<u16, Reason> {
    let number = match fields.get(name) {
        Some(Value::Number(number)) => number.as_u64(),
        Some(Value::String(text)) => text.trim().parse().ok(),
        _ => None,
    };
    number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|port| *port != 0)
        .ok_or(Reason::Port(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(change: impl FnOnce(&mut JsonMap)) -> String {
        let mut fields = serde_json::json!({
            "transport": "tcp", "ip": "127.0.0.1", "key": "s3cret-key", "signature_scheme": "hmac-sha256",
            "shell_port": 50001, "iopub_port": 50002, "stdin_port": 50003, "control_port": 50004, "hb_port": 50005,
            "kernel_name": "colab", "jupyter_session": "a.ipynb",
        });
        change(fields.as_object_mut().unwrap());
        fields.to_string()
    }

    fn refused(change: impl FnOnce(&mut JsonMap)) -> String {
        ConnectionInfo::parse(&file(change))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn ports_may_be_numbers_or_strings_and_unknown_fields_are_left_alone() {
        let info = ConnectionInfo::parse(&file(|fields| {
            fields.insert("shell_port".into(), "50001".into());
            fields.insert("something_new".into(), Value::Null);
        }))
        .unwrap();
        assert_eq!((info.shell_port, info.hb_port), (50001, 50005));
        assert_eq!(info.kernel_name.as_deref(), Some("colab"));
    }

    #[test]
    fn an_ipc_file_is_read() {
        let info = ConnectionInfo::parse(&file(|fields| {
            fields.insert("transport".into(), "ipc".into());
            fields.insert("ip".into(), "/tmp/k".into());
            fields.insert("shell_port".into(), 1.into());
        }))
        .unwrap();
        assert_eq!(info.transport, Transport::Ipc);
        assert_eq!((info.ip.as_str(), info.shell_port), ("/tmp/k", 1));
    }

    #[test]
    fn each_unusable_field_is_named() {
        for bad in [Value::Null, 0.into(), 65536.into(), "x".into(), 1.5.into()] {
            let text = refused(|fields| {
                fields.insert("stdin_port".into(), bad);
            });
            assert!(text.contains("\"stdin_port\""), "{text}");
        }
        let text = refused(|fields| {
            fields.remove("ip");
        });
        assert!(text.contains("\"ip\""), "{text}");
        let text = refused(|fields| {
            fields.insert("transport".into(), "inproc".into());
        });
        assert!(text.contains("inproc"), "{text}");
        let text = refused(|fields| {
            fields.insert("signature_scheme".into(), "rot13".into());
        });
        assert!(
            text.contains("rot13") && text.contains("hmac-sha256"),
            "{text}"
        );
    }

    #[test]
    fn a_file_that_asks_for_encryption_is_refused_but_empty_keys_are_not() {
        let text = refused(|fields| {
            fields.insert("curve_publickey".into(), "abc".into());
        });
        assert!(text.contains("CurveZMQ"), "{text}");
        let off = file(|fields| {
            fields.insert("curve_publickey".into(), Value::Null);
            fields.insert("curve_secretkey".into(), "".into());
        });
        assert!(ConnectionInfo::parse(&off).is_ok());
    }

    #[test]
    fn without_a_key_any_scheme_will_do() {
        let unsigned = file(|fields| {
            fields.insert("key".into(), "".into());
            fields.insert("signature_scheme".into(), "none".into());
        });
        assert!(ConnectionInfo::parse(&unsigned).is_ok());
    }

    #[test]
    fn quotes_around_the_path_are_taken_away_and_errors_name_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kernel 1.json");
        std::fs::write(&path, file(|_| ())).unwrap();
        for quote in ["\"", "'", ""] {
            let quoted = format!("{quote}{}{quote}", path.display());
            assert!(ConnectionInfo::load(Path::new(&quoted)).is_ok(), "{quoted}");
        }
        std::fs::write(&path, "{\"key\": \"s3cret-key\",").unwrap();
        let text = ConnectionInfo::load(&path).unwrap_err().to_string();
        assert!(
            text.contains("kernel 1.json") && !text.contains("s3cret"),
            "{text}"
        );
        let absent = directory.path().join("absent.json");
        let text = ConnectionInfo::load(&absent).unwrap_err().to_string();
        assert!(text.contains("absent.json"), "{text}");
    }

    #[test]
    fn debug_output_does_not_show_the_key() {
        let info = ConnectionInfo::parse(&file(|_| ())).unwrap();
        assert!(!format!("{info:?}").contains("s3cret"));
    }
}
