//! The connection file.

use std::fmt;
use std::path::{Path, PathBuf};

use super::signing::Scheme;

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

    pub(crate) fn as_bytes(&self) -> &[u8] {
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
#[error("connection file {path}: {reason}")]
pub struct ConnectionError {
    path: PathBuf,
    reason: String,
}

impl ConnectionInfo {
    /// Reads a connection file. One pair of quotes around the path is taken away.
    pub fn load(path: &Path) -> Result<Self, ConnectionError> {
        let _ = path;
        todo!()
    }
}
