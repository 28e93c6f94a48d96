//! A runtime's Jupyter Server, with a kernel gateway beside it where the quirk says so, and the few REST calls that the
//! service makes.
//!
//! Invariants: the processes end when [`JupyterServer::end`] is called, when the value is dropped and when the emulator's
//! process ends in any way.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::errors::{Code, Failure, locked};
use super::launch::{self, GATEWAY_PORT, JUPYTER_PORT};
use super::quirks::{Server, SessionsShow};
use super::runtimes::Workshop;

/// A running Jupyter Server.
pub(super) struct JupyterServer {
    /// `http://127.0.0.1:PORT` of the Jupyter Server.
    files: String,
    /// The same of what has the kernels.
    kernels: String,
    /// Their own token, which only the proxy knows.
    pub token: String,
    /// The sessions that the service has opened, where the server lists none.
    opened: Option<Mutex<Vec<JupyterSession>>>,
    show: SessionsShow,
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
        let (python, quirks) = (&workshop.python, &workshop.quirks);
        launch::lay_out(python, &directory, quirks.kernels)
            .await
            .map_err(|error| {
                internal(format!("The runtime's directory cannot be made: {error}"))
            })?;
        let token = Uuid::new_v4().simple().to_string();
        let child = launch::spawn(python, &directory, &token, quirks)
            .map_err(|error| internal(format!("The runtime's server cannot start: {error}")))?;
        let (stop, gone) = (CancellationToken::new(), CancellationToken::new());
        // From here on the process ends with `stop`, whatever becomes of this call.
        let stop_on_drop = stop.clone().drop_guard();
        tokio::spawn(launch::mind(child, stop.clone(), gone.clone()));

        let private = directory.join("private");
        let gateway = quirks.server == Server::Gateway;
        let ports = async {
            let runtime = private.join("runtime");
            let files = launch::find_port(runtime.clone(), JUPYTER_PORT).await?;
            if !gateway {
                return Some((files, files));
            }
            Some((files, launch::find_port(runtime, GATEWAY_PORT).await?))
        };
        let ports = tokio::select! {
            ports = ports => ports,
            () = gone.cancelled() => None,
            () = workshop.closing.cancelled() => None,
        };
        let Some((files, kernels)) = ports else {
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
            files: format!("http://127.0.0.1:{files}"),
            kernels: format!("http://127.0.0.1:{kernels}"),
            token,
            opened: gateway.then(Mutex::default),
            show: quirks.sessions,
            directory,
            http: workshop.http.clone(),
            gone,
            stop,
            _stop_on_drop: stop_on_drop,
        }))
    }

    /// Where a request with this path and query goes.
    pub fn url(&self, target: &str) -> String {
        let is = |place: &str| {
            let rest = target.strip_prefix(place);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
        };
        let files = is("/files") || is("/api/contents");
        format!(
            "{}{target}",
            if files { &self.files } else { &self.kernels }
        )
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

    /// All sessions, whoever opened them; where the server does not list them, those of the service.
    pub async fn sessions(&self) -> Result<Vec<JupyterSession>, Failure> {
        let Some(opened) = &self.opened else {
            let response = self
                .call(reqwest::Method::GET, "/api/sessions", None)
                .await?;
            return read(response).await;
        };
        let sessions = locked(opened).clone();
        let mut found = Vec::new();
        for session in sessions {
            // By its kernel: the gateway cannot answer for a single session.
            let path = format!("/api/kernels/{}", session.kernel.id);
            let response = self.call(reqwest::Method::GET, &path, None).await?;
            if response.status().is_success() {
                found.push(session);
            } else {
                locked(opened).retain(|known| known.id != session.id);
            }
        }
        Ok(found)
    }

    /// Opens a session and starts its kernel in `/content`.
    pub async fn open_session(&self, id: &str) -> Result<JupyterSession, Failure> {
        let other = || format!("nb-{}", Uuid::new_v4().simple());
        let (name, path) = match self.show {
            SessionsShow::Both => (id.to_owned(), id.to_owned()),
            SessionsShow::Name => (id.to_owned(), other()),
            SessionsShow::Path => (other(), id.to_owned()),
            SessionsShow::Hidden => (other(), other()),
        };
        let body = json!({
            "name": name,
            "path": format!("content/{path}"),
            "type": "notebook",
            "kernel": {"name": "python3"},
        });
        let response = self
            .call(reqwest::Method::POST, "/api/sessions", Some(body))
            .await?;
        let session: JupyterSession = read(response).await?;
        if let Some(opened) = &self.opened {
            locked(opened).push(session.clone());
        }
        Ok(session)
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
            .request(method, self.url(path))
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
        // GONE is a session whose kernel went first.
        let absent = [reqwest::StatusCode::NOT_FOUND, reqwest::StatusCode::GONE].contains(&status);
        if status.is_success() || absent {
            return Ok(response);
        }
        Err(Failure::new(
            Code::Unavailable,
            "RUNTIME_ERROR",
            format!("The runtime's server answered {status}"),
        ))
    }
}

async fn read<T: for<'a> Deserialize<'a>>(response: reqwest::Response) -> Result<T, Failure> {
    let body = response.json().await;
    body.map_err(|error| internal(error.to_string()))
}

fn internal(message: impl Into<String>) -> Failure {
    Failure::new(Code::Internal, "INTERNAL", message)
}
