//! The processes of a runtime: a launcher and what it runs, in a directory of its own.
//!
//! ```text
//! DIRECTORY/root           what the server shows as /
//!          /root/content   /content, where kernels start
//!          /root/root      /root, the home directory
//!          /root/tmp       /tmp, for temporary files
//!          /private        Jupyter's, IPython's and the server's own files
//! ```
//!
//! Invariants: no setting of the user's own reaches a runtime; the launcher ends whatever it has started when its standard
//! input closes, which happens when the emulator's process ends in any way.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::python::{Python, TEMPORARY};
use super::quirks::{Kernels, Quirks, Server};

const LAUNCHER: &str = include_str!("launcher.py");
const KERNEL: &str = include_str!("kernel.py");
const GATEWAY: &str = include_str!("gateway.py");

/// How long a server may take until it answers, also on a machine that has much else to do. Its end is noticed at once.
const START: Duration = Duration::from_secs(180);

/// How long the launcher may take to end what it has started.
const END: Duration = Duration::from_secs(10);

/// The names, without ending, of the files in which servers tell their ports.
pub(super) const JUPYTER_PORT: &str = "jpserver-";
/// The same of the gateway.
pub(super) const GATEWAY_PORT: &str = "gateway-";

/// Makes the directories, the kernelspec and Colab's kernel.
pub(super) async fn lay_out(
    python: &Python,
    directory: &Path,
    kernels: Kernels,
) -> std::io::Result<()> {
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
    let kernel = private.join("kernel.py");
    tokio::fs::write(&kernel, KERNEL).await?;
    let argv = match kernels {
        Kernels::Colab => json!([python.path, kernel, "-f", "{connection_file}"]),
        Kernels::Newest => {
            json!([
                python.path,
                "-m",
                "ipykernel_launcher",
                "-f",
                "{connection_file}"
            ])
        }
    };
    let kernelspec = json!({
        "argv": argv,
        "display_name": "Python 3",
        "language": "python",
        "metadata": {"debugger": true},
    });
    tokio::fs::write(spec.join("kernel.json"), kernelspec.to_string()).await
}

/// Starts the launcher with the servers.
pub(super) fn spawn(
    python: &Python,
    directory: &Path,
    token: &str,
    quirks: &Quirks,
) -> std::io::Result<Child> {
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
        ])
        .arg(format!("--ServerApp.root_dir={}", root.display()))
        .args(kernel_options(quirks))
        .current_dir(root.join("content"))
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log);
    if quirks.server == Server::Gateway {
        command
            .arg("--and")
            .arg(&python.path)
            .args(["-c", GATEWAY])
            .args([
                "--KernelGatewayApp.ip=127.0.0.1",
                "--KernelGatewayApp.port=0",
            ])
            .arg(format!(
                "--MappingKernelManager.root_dir={}",
                root.display()
            ))
            .args(kernel_options(quirks));
    }
    #[cfg(unix)]
    // A Ctrl-C in the terminal is for the emulator, which then ends its runtimes itself.
    command.process_group(0);

    const FOREIGN: [&str; 9] = [
        "COLAB_", "IPYTHON", "IPY_", "JPY_", "JUPYTER", "KG_", "MPL", "PYTHON", "XDG_",
    ];
    // The size is that of the user's terminal, and progress bars would be as wide.
    const FOREIGN_NAMES: [&str; 3] = ["COLUMNS", "LINES", "VIRTUAL_ENV"];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if FOREIGN.iter().any(|prefix| text.starts_with(prefix)) || FOREIGN_NAMES.contains(&&*text)
        {
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
        // Searched first: an environment has a kernelspec of the same name.
        .env("JUPYTER_PATH", private.join("data"))
        .env("JUPYTER_RUNTIME_DIR", private.join("runtime"))
        .env("JUPYTER_TOKEN", token)
        .env("KG_AUTH_TOKEN", token)
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

/// What is set for kernels, whichever server has them.
fn kernel_options(quirks: &Quirks) -> Vec<&'static str> {
    // A kernel that is busy when its session is deleted is killed after this.
    let mut options = vec!["--KernelManager.shutdown_wait_time=1.0"];
    if !quirks.limits {
        options.push("--ZMQChannelsWebsocketConnection.limit_rate=False");
    }
    options
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
pub(super) async fn mind(mut child: Child, stop: CancellationToken, gone: CancellationToken) {
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

/// The port from the file of this name that a server writes once it listens, when it answers there.
pub(super) async fn find_port(runtime_directory: PathBuf, prefix: &str) -> Option<u16> {
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
                if !name.starts_with(prefix) || !name.ends_with(".json") {
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
