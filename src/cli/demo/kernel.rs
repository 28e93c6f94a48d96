//! The kernel as a front-end starts it: a connection file, and this same binary as a process of its own.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use url::Url;
use uuid::Uuid;

use super::client::KernelClient;
use crate::jupyter::connection::ConnectionInfo;

/// How long the kernel may take to answer. Far more than it needs: the machine may be busy.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long the kernel may take to end: it gives its session back first.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Settings that are meant for the real service.
const FOREIGN_SETTINGS: [&str; 5] = [
    "COLAB_KERNEL_ACCELERATOR",
    "COLAB_KERNEL_BACKEND",
    "COLAB_KERNEL_HIGHMEM",
    "COLAB_KERNEL_QUOTA_PROJECT",
    "COLAB_KERNEL_RUNTIME",
];

/// A kernel that runs, and the line to it. Dropping it kills it.
pub(super) struct Kernel {
    child: Child,
    client: KernelClient,
    /// Holds the connection file; private (0700), because the file holds the key.
    _directory: TempDir,
}

impl Kernel {
    /// Starts a kernel that runs its cells at this endpoint, and connects to it.
    pub(super) async fn start(endpoint: &Url) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("colab-kernel-demo-")
            .tempdir()
            .context("No temporary directory can be made")?;
        let connection_file = directory.path().join("connection.json");
        write_connection_file(&connection_file).context("The connection file cannot be written")?;

        let program = std::env::current_exe().context("This program cannot be found again")?;
        let mut command = Command::new(program);
        command
            .args(["kernel", "-f"])
            .arg(&connection_file)
            .env("COLAB_KERNEL_ENDPOINT", endpoint.as_str())
            .env("COLAB_KERNEL_TOKEN", "demo")
            // The user's config file is for the real service as well.
            .env("XDG_CONFIG_HOME", directory.path())
            // Everything it talks to is on this machine.
            .env("NO_PROXY", "*")
            .env("no_proxy", "*")
            // So that it ends with this process, however this process ends.
            .env("JPY_PARENT_PID", std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        for name in FOREIGN_SETTINGS {
            command.env_remove(name);
        }
        // The demo's cells have no place in the user's history; a log that was asked for is kept.
        let keep = ["COLAB_KERNEL_STATE_DIR", "COLAB_KERNEL_LOG"];
        if keep.iter().all(|name| std::env::var_os(name).is_none()) {
            command.env("COLAB_KERNEL_STATE_DIR", directory.path());
        }
        // Ctrl-C in the terminal is for this command, which then ends the kernel; Jupyter does it the same way.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().context("The kernel cannot be started")?;

        let info = ConnectionInfo::load(&connection_file)?;
        let connecting = timeout(START_LIMIT, KernelClient::connect(&info));
        let client = alive(&mut child, async {
            connecting.await.context("The kernel does not answer")?
        })
        .await?;
        Ok(Self {
            child,
            client,
            _directory: directory,
        })
    }

    /// What the kernel says about itself.
    pub(super) async fn info(&mut self) -> anyhow::Result<Value> {
        alive(&mut self.child, self.client.kernel_info()).await
    }

    /// Runs a cell, handing on what it shows, and returns the content of its reply.
    pub(super) async fn execute(
        &mut self,
        code: &str,
        show: impl FnMut(&str, &Value) -> io::Result<()>,
    ) -> anyhow::Result<Value> {
        alive(&mut self.child, self.client.execute(code, show)).await
    }

    /// Asks the kernel to end, also in the middle of a cell, and sees it to its end.
    pub(super) async fn stop(mut self) {
        let ended = timeout(STOP_LIMIT, async {
            if self.client.request_shutdown().await.is_ok() {
                // An error would say that it is gone already.
                let _ = self.child.wait().await;
            }
        });
        if ended.await.is_err() || !matches!(self.child.try_wait(), Ok(Some(_))) {
            // Nothing is left to do if it cannot be killed.
            let _ = self.child.kill().await;
        }
    }
}

/// Awaits something of the kernel, but not beyond the kernel's end.
async fn alive<T>(
    child: &mut Child,
    wait: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        outcome = wait => outcome,
        status = child.wait() => bail!("The kernel has ended ({})", status?),
    }
}

/// Takes free ports as Jupyter does: they are free again until the kernel binds them.
fn write_connection_file(path: &Path) -> io::Result<()> {
    let listeners = (0..5)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<Vec<_>, _>>()?;
    let ports = listeners
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()))
        .collect::<io::Result<Vec<_>>>()?;
    let content = json!({
        "transport": "tcp",
        "ip": "127.0.0.1",
        "shell_port": ports[0],
        "iopub_port": ports[1],
        "stdin_port": ports[2],
        "control_port": ports[3],
        "hb_port": ports[4],
        "key": Uuid::new_v4().to_string(),
        "signature_scheme": "hmac-sha256",
        "kernel_name": "colab",
    });
    let mut options = std::fs::File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    serde_json::to_writer(options.open(path)?, &content)?;
    Ok(())
}
