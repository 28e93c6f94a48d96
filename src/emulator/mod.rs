//! A local Colab for trying, testing and CI: the MCP endpoint in front of real Jupyter servers and kernels.
//!
//! ```text
//! client ──MCP──► mcp ──► tools ──► runtimes ──► sessions ──► kernel_client ──ZeroMQ──► IPython kernel
//!    │                                  │            │                                    ▲
//!    └──HTTP and WebSockets, ──► proxy ─┴────────────┴──────HTTP──► Jupyter Server ───────┘
//!       proxy token                └──► tunnel ──────────WebSocket──────┘
//! ```
//!
//! What Colab documents is done as documented; what it leaves open is a [`Quirks`] setting. Invariants:
//!
//! * An emulator that has started has spent nothing yet: a Jupyter Server starts with a runtime, not before.
//! * No process and no directory outlives the emulator, even when it is killed: every runtime hangs on a launcher that
//!   watches a pipe of ours (`launcher.py`).
//! * Nothing of the user's own Jupyter, IPython or matplotlib settings reaches a runtime, and nothing flows back.

mod callers;
mod calls;
mod collect;
mod counters;
mod eras;
mod errors;
mod executions;
mod kernel_client;
mod launch;
mod mcp;
mod progress;
mod proxy;
pub mod python;
pub mod quirks;
mod runtimes;
mod schemas;
mod server;
mod sessions;
mod specs;
mod tools;
mod tunnel;
mod zmtp;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use url::Url;

use self::counters::Counters;
use self::mcp::Service;
use self::runtimes::Workshop;

pub use self::counters::Counts;
pub use self::python::PythonChoice;
pub use self::quirks::Quirks;

/// How long the runtimes may take to end.
const SHUTDOWN: Duration = Duration::from_secs(12);

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
    #[error(
        "Cannot listen on 127.0.0.1:{port}: {source}\nChoose another one with --port, or 0 for any free one"
    )]
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
    /// The listener has no address.
    #[error("Cannot tell the port: {0}")]
    Address(std::io::Error),
    /// The client that talks to the runtimes could not be made.
    #[error("Cannot make an HTTP client: {0}")]
    Client(reqwest::Error),
    /// The endpoint is no URL.
    #[error("Cannot make a URL of {0}")]
    Endpoint(String),
}

/// A running emulator. Dropping it ends it as well, only without waiting for the end.
pub struct Emulator {
    endpoint: Url,
    service: Arc<Service>,
    server: JoinHandle<()>,
    /// Removed when the emulator is dropped; the runtimes' launchers remove what is theirs in it.
    _directory: TempDir,
}

impl Emulator {
    /// Makes the Python environment where it is missing, and serves. No runtime exists yet.
    pub async fn start(config: EmulatorConfig) -> Result<Self, EmulatorError> {
        // The port first: to learn after minutes of installing that it is taken would be a pity.
        let listener = TcpListener::bind(("127.0.0.1", config.port)).await;
        let listener = listener.map_err(|source| EmulatorError::Bind {
            port: config.port,
            source,
        })?;
        let port = listener
            .local_addr()
            .map_err(EmulatorError::Address)?
            .port();
        let progress = config
            .progress
            .unwrap_or_else(|| Arc::new(|line| tracing::info!("{line}")));
        let python = python::resolve(&config.python, config.quirks.kernels, &progress).await?;

        let mut builder = tempfile::Builder::new();
        builder.prefix("colab-emulator-");
        let directory = match &config.runtimes_dir {
            Some(parent) => {
                std::fs::create_dir_all(parent).and_then(|()| builder.tempdir_in(parent))
            }
            None => builder.tempdir(),
        };
        let directory = directory.map_err(EmulatorError::Directory)?;
        // Where the process has a provider already, that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(EmulatorError::Client)?;
        let service = Service::new(Workshop {
            python,
            directory: directory.path().to_owned(),
            http,
            quirks: Arc::new(config.quirks),
            counters: Arc::new(Counters::default()),
            closing: CancellationToken::new(),
        });
        let app = mcp::router(service.clone());
        let listener = listener.tap_io(proxy::send_at_once);
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "the emulator's server ended");
            }
        });
        let endpoint = format!("http://127.0.0.1:{port}/mcp");
        Ok(Self {
            endpoint: Url::parse(&endpoint).map_err(|_| EmulatorError::Endpoint(endpoint))?,
            service,
            server,
            _directory: directory,
        })
    }

    /// Where the MCP server answers: `http://127.0.0.1:PORT/mcp`.
    pub fn endpoint(&self) -> Url {
        self.endpoint.clone()
    }

    /// How often things have happened that tests ask for; also at `/emulator/counters`.
    pub fn counters(&self) -> Counts {
        self.service.workshop.counters.counts()
    }

    /// Ends every runtime with its kernels and removes their directories.
    pub async fn shutdown(self) {
        self.end();
        let ended = async {
            for account in self.service.accounts() {
                account.ended().await;
            }
        };
        if tokio::time::timeout(SHUTDOWN, ended).await.is_err() {
            tracing::warn!("some runtimes did not end in time");
        }
    }

    /// Takes no more requests and begins to end every runtime.
    fn end(&self) {
        self.server.abort();
        self.service.workshop.closing.cancel();
        for account in self.service.accounts() {
            account.end();
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.end();
    }
}
