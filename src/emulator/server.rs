//! A runtime's Jupyter Server: a process of its own, in a directory of its own, and the few REST calls that the service makes.
//!
//! ```text
//! DIRECTORY/root           what the server shows as /
//!          /root/content   /content, where kernels start
//!          /root/root      /root, the home directory
//!          /root/tmp       /tmp, for temporary files
//!          /private        Jupyter's, IPython's and the server's own files
//! ```
//!
//! Invariants: the process ends when [`JupyterServer::end`] is called, when the value is dropped and when the emulator's
//! process ends in any way; no setting of the user's own reaches it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::errors::{Code, Failure};
use super::python::{Python, TEMPORARY};
use super::runtimes::Workshop;

const LAUNCHER: &str = include_str!("launcher.py");

/// How long a server may take until it answers.
const START: Duration = Duration::from_secs(60);

/// How long the launcher may take to end what it has started.
const END: Duration = Duration::from_secs(10);

/// A running Jupyter Server.
pub(super) struct JupyterServer {
    /// `http://127.0.0.1:PORT`
    pub url: String,
    /// Its own token, which only the proxy knows.
    pub token: String,
    directory: PathBuf,
    http: reqwest::Client,
    gone: CancellationToken,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

/// A session of the server.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct JupyterSession {
    /// Jupyter's id of it.
    pub id: String,
    /// Its kernel.
    pub kernel: JupyterKernel,
}

/// A kernel of the server.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct JupyterKernel {
    /// Its id, the same for all its restarts.
    pub id: String,
}

impl JupyterServer {
    /// Starts a server in a directory, which is removed when the server ends.
    pub async fn start(workshop: &Workshop, directory: PathBuf) -> Result<Arc<Self>, Failure> {
        let python = &workshop.python;
        lay_out(python, &directory).await.map_err(|error| {
            internal(format!("The runtime's directory cannot be made: {error}"))
        })?;
        let token = Uuid::new_v4().simple().to_string();
        let child = spawn(python, &directory, &token)
            .map_err(|error| internal(format!("The runtime's server cannot start: {error}")))?;
        let (stop, gone) = (CancellationToken::new(), CancellationToken::new());
        // From here on the process ends with `stop`, whatever becomes of this call.
        let stop_on_drop = stop.clone().drop_guard();
        tokio::spawn(mind(child, stop.clone(), gone.clone()));

        let private = directory.join("private");
        let port = tokio::select! {
            port = find_port(private.join("runtime")) => port,
            () = gone.cancelled() => None,
            () = workshop.closing.cancelled() => None,
        };
        let Some(port) = port else {
            if !workshop.closing.is_cancelled() {
                let log = tokio::fs::read_to_string(private.join("server.log")).await;
                let log = log.unwrap_or_default();
                tracing::error!(log, "the Jupyter Server did not start");
            }
            stop.cancel();
            gone.cancelled().await;
            return Err(internal("The runtime's Jupyter Server did not start"));
        };
        Ok(Arc::new(Self {
            url: format!("http://127.0.0.1:{port}"),
            token,
            directory,
            http: workshop.http.clone(),
            gone,
            stop,
            _stop_on_drop: stop_on_drop,
        }))
    }

    /// Begins to end it.
    pub fn end(&self) {
        self.stop.cancel();
    }

    /// Cancelled when it begins to end.
    pub fn ending(&self) -> &CancellationToken {
        &self.stop
    }

    /// Resolves when its processes and its directory are gone.
    pub async fn ended(&self) {
        self.gone.cancelled().await;
    }

    /// Cancelled when it has ended, for whatever reason.
    pub fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// The directory that stands for `/`.
    pub fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// The connection file of a kernel.
    pub fn connection_file(&self, kernel_id: &str) -> PathBuf {
        let name = format!("kernel-{kernel_id}.json");
        self.directory.join("private").join("runtime").join(name)
    }

    /// All sessions, whoever opened them.
    pub async fn sessions(&self) -> Result<Vec<JupyterSession>, Failure> {
        let response = self
            .call(reqwest::Method::GET, "/api/sessions", None)
            .await?;
        response
            .json()
            .await
            .map_err(|error| internal(error.to_string()))
    }

    /// Opens a session and starts its kernel in `/content`.
    pub async fn open_session(&self, name: &str) -> Result<JupyterSession, Failure> {
        let body = json!({
            "name": name,
            "path": format!("content/{name}"),
            "type": "notebook",
            "kernel": {"name": "python3"},
        });
        let response = self
            .call(reqwest::Method::POST, "/api/sessions", Some(body))
            .await?;
        response
            .json()
            .await
            .map_err(|error| internal(error.to_string()))
    }

    /// Ends a session with its kernel. One that is gone already is no failure.
    pub async fn delete_session(&self, id: &str) -> Result<(), Failure> {
        let path = format!("/api/sessions/{id}");
        self.call(reqwest::Method::DELETE, &path, None).await?;
        Ok(())
    }

    /// Interrupts whatever a kernel runs.
    pub async fn interrupt(&self, kernel_id: &str) -> Result<(), Failure> {
        let path = format!("/api/kernels/{kernel_id}/interrupt");
        self.call(reqwest::Method::POST, &path, None).await?;
        Ok(())
    }

    async fn call(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<reqwest::Response, Failure> {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.url))
            .header("authorization", format!("token {}", self.token));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.map_err(|_| {
            Failure::new(
                Code::NotFound,
                "RUNTIME_UNREACHABLE",
                "The runtime no longer answers at its address",
            )
        })?;
        let status = response.status();
        if status.is_success() || status == reqwest::StatusCode::NOT_FOUND {
            return Ok(response);
        }
        Err(Failure::new(
            Code::Unavailable,
            "RUNTIME_ERROR",
            format!("The runtime's server answered {status}"),
        ))
    }
}

fn internal(message: impl Into<String>) -> Failure {
    Failure::new(Code::Internal, "INTERNAL", message)
}

async fn lay_out(python: &Python, directory: &Path) -> std::io::Result<()> {
    let private = directory.join("private");
    let spec = private.join("data").join("kernels").join("python3");
    for path in [
        directory.join("root").join("content"),
        directory.join("root").join("root"),
        directory.join("root").join("tmp"),
        private.join("runtime"),
        private.join("config"),
        spec.clone(),
    ] {
        tokio::fs::create_dir_all(path).await?;
    }
    // Without it a kernelspec of the same name elsewhere on the machine could be taken.
    let kernelspec = json!({
        "argv": [python.path, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
        "metadata": {"debugger": true},
    });
    tokio::fs::write(spec.join("kernel.json"), kernelspec.to_string()).await
}

fn spawn(python: &Python, directory: &Path, token: &str) -> std::io::Result<Child> {
    let private = directory.join("private");
    let root = directory.join("root");
    let log = std::fs::File::create(private.join("server.log"))?;
    let mut command = Command::new(&python.path);
    command
        .args(["-I", "-S", "-c", LAUNCHER])
        .arg(directory)
        .arg(&python.path)
        .args(["-m", "jupyter_server"])
        .args([
            "--no-browser",
            "--allow-root",
            "--ServerApp.ip=127.0.0.1",
            "--ServerApp.port=0",
            "--ServerApp.open_browser=False",
            "--ServerApp.disable_check_xsrf=True",
            "--ContentsManager.allow_hidden=True",
            "--FileContentsManager.delete_to_trash=False",
            "--FileContentsManager.always_delete_dir=True",
            // A kernel that is busy when its session is deleted is killed after this.
            "--KernelManager.shutdown_wait_time=1.0",
        ])
        .arg(format!("--ServerApp.root_dir={}", root.display()))
        .current_dir(root.join("content"))
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log);
    #[cfg(unix)]
    // A Ctrl-C in the terminal is for the emulator, which then ends its runtimes itself.
    command.process_group(0);

    const FOREIGN: [&str; 8] = [
        "COLAB_", "IPYTHON", "IPY_", "JPY_", "JUPYTER", "MPL", "PYTHON", "XDG_",
    ];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if FOREIGN.iter().any(|prefix| text.starts_with(prefix)) || text == "VIRTUAL_ENV" {
            command.env_remove(&name);
        }
    }
    let matplotlib = python.matplotlib.clone();
    command
        .env("HOME", root.join("root"))
        .env("IPYTHONDIR", private.join("ipython"))
        .env("JUPYTER_CONFIG_DIR", private.join("config"))
        .env("JUPYTER_DATA_DIR", private.join("data"))
        .env("JUPYTER_NO_CONFIG", "1")
        .env("JUPYTER_RUNTIME_DIR", private.join("runtime"))
        .env("JUPYTER_TOKEN", token)
        .env("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        .env(
            "MPLCONFIGDIR",
            matplotlib.unwrap_or_else(|| private.join("matplotlib")),
        )
        .env("PATH", search_path(&python.path))
        // What a killed process leaves there goes with the runtime.
        .env(TEMPORARY, root.join("tmp"));
    command.spawn()
}

/// PATH with the interpreter's directory first, so that `!pip` and `!python` in a cell are its own.
fn search_path(python: &Path) -> std::ffi::OsString {
    let current = std::env::var_os("PATH").unwrap_or_default();
    let own = python.parent().map(Path::to_path_buf).into_iter();
    let paths = own.chain(std::env::split_paths(&current));
    // Fails only for a directory whose name holds a separator.
    std::env::join_paths(paths).unwrap_or(current)
}

/// Holds the launcher's standard input open until it is to stop, then sees it end.
async fn mind(mut child: Child, stop: CancellationToken, gone: CancellationToken) {
    let input = child.stdin.take();
    tokio::select! {
        () = stop.cancelled() => {}
        _ = child.wait() => {}
    }
    drop(input);
    if timeout(END, child.wait()).await.is_err() {
        tracing::warn!("a runtime's launcher did not end in time");
        let _ = child.kill().await;
    }
    gone.cancel();
}

/// The port from the file that a Jupyter Server writes once it listens, when it answers there.
async fn find_port(runtime_directory: PathBuf) -> Option<u16> {
    #[derive(Deserialize)]
    struct Info {
        port: u16,
    }
    let deadline = Instant::now() + START;
    while Instant::now() < deadline {
        if let Ok(mut entries) = tokio::fs::read_dir(&runtime_directory).await {
            while let Ok(Some(entry)) = entries.next_entry().await {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                if !name.starts_with("jpserver-") || !name.ends_with(".json") {
                    continue;
                }
                // The file may be seen before it is written out.
                let text = tokio::fs::read(entry.path()).await.unwrap_or_default();
                let Ok(info) = serde_json::from_slice::<Info>(&text) else {
                    continue;
                };
                if tokio::net::TcpStream::connect(("127.0.0.1", info.port))
                    .await
                    .is_ok()
                {
                    return Some(info.port);
                }
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    None
}
