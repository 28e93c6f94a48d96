//! The Python that runs the Jupyter servers: a private environment made once, or one that the user names.
//!
//! The private environment is kept under a key made of its list of packages. Invariants:
//!
//! * An environment is used only with its completion marker; one whose making was interrupted is made anew.
//! * A file lock lets one process make it while others wait.
//! * Nothing outside the cache directory is written.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use etcetera::BaseStrategy as _;
use sha2::{Digest as _, Sha256};
use tokio::process::Command;

use super::ProgressFn;
use super::quirks::Kernels;

const COLAB: &str = include_str!("requirements-colab.txt");
const NEWEST: &str = include_str!("requirements-newest.txt");

/// The minor versions of Python 3 for which every package of [`COLAB`] has a wheel.
const COLAB_PYTHONS: std::ops::RangeInclusive<u32> = 11..=13;

/// Names the cache directory.
const CACHE_DIR_VARIABLE: &str = "COLAB_KERNEL_CACHE_DIR";

/// Names the directory for temporary files, to Python.
pub(super) const TEMPORARY: &str = if cfg!(windows) { "TEMP" } else { "TMPDIR" };

/// Which Python runs the Jupyter servers and their kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PythonChoice {
    /// A private virtual environment, made once.
    Managed {
        /// Where it is kept (`None`: `COLAB_KERNEL_CACHE_DIR`, else the user's cache directory).
        cache_dir: Option<PathBuf>,
    },
    /// An interpreter that has jupyter_server and ipykernel.
    Path(PathBuf),
}

impl Default for PythonChoice {
    fn default() -> Self {
        Self::Managed { cache_dir: None }
    }
}

/// Why there is no usable Python.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// No Python 3 was found.
    #[error(
        "Python 3 was not found\nInstall Python 3.11 or newer, or name an interpreter that has jupyter_server and ipykernel with --python PATH"
    )]
    Missing,
    /// The interpreter that the user named cannot be used.
    #[error(
        "{path} cannot run Jupyter: {cause}\nInstall what is missing: {path} -m pip install jupyter_server ipykernel"
    )]
    Unusable {
        /// The interpreter.
        path: String,
        /// What it said.
        cause: String,
    },
    /// `python -m venv` failed.
    #[error(
        "Cannot make a virtual environment with {python}: {cause}\nOn Debian and Ubuntu: apt install python3-venv. Or name an interpreter that has jupyter_server and ipykernel with --python PATH"
    )]
    Venv {
        /// The interpreter.
        python: String,
        /// What it said.
        cause: String,
    },
    /// The packages could not be fetched.
    #[error(
        "Cannot fetch the Python packages of the local Colab; this needs the network once: {0}\nCheck the connection or pip's proxy settings and start again, or name an interpreter that has jupyter_server and ipykernel with --python PATH"
    )]
    Network(String),
    /// pip failed for another reason.
    #[error(
        "Cannot install the Python packages of the local Colab: {0}\nTry another Python 3 first on PATH, or name an interpreter that has jupyter_server and ipykernel with --python PATH"
    )]
    Install(String),
    /// The cache directory cannot be used.
    #[error(
        "Cannot use the cache directory {path}: {source}\nSet {CACHE_DIR_VARIABLE} to a directory that can be written"
    )]
    Cache {
        /// The directory.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

/// An interpreter that can run a Jupyter Server.
#[derive(Debug, Clone)]
pub(super) struct Python {
    /// The interpreter.
    pub path: PathBuf,
    /// matplotlib's own directory, shared by all runtimes, because its index of fonts takes seconds to make.
    pub matplotlib: Option<PathBuf>,
}

/// The interpreter that an emulator of this choice runs its kernels with, checked or made.
pub async fn interpreter(choice: &PythonChoice, kernels: Kernels) -> Result<PathBuf, PythonError> {
    let progress: ProgressFn = std::sync::Arc::new(|line| tracing::info!("{line}"));
    resolve(choice, kernels, &progress)
        .await
        .map(|python| python.path)
}

/// The same, with what comes with it.
pub(super) async fn resolve(
    choice: &PythonChoice,
    kernels: Kernels,
    progress: &ProgressFn,
) -> Result<Python, PythonError> {
    match choice {
        PythonChoice::Path(path) => {
            check(path).await?;
            Ok(Python {
                path: path.clone(),
                matplotlib: None,
            })
        }
        PythonChoice::Managed { cache_dir } => {
            let cache = cache_directory(cache_dir.as_deref())?;
            managed(&cache, kernels, progress).await
        }
    }
}

async fn check(python: &Path) -> Result<(), PythonError> {
    let unusable = |cause: String| PythonError::Unusable {
        path: python.display().to_string(),
        cause,
    };
    let output = Command::new(python)
        .args(["-c", "import jupyter_server, ipykernel"])
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| unusable(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(unusable(last_line(&output.stderr)))
}

fn cache_directory(chosen: Option<&Path>) -> Result<PathBuf, PythonError> {
    if let Some(chosen) = chosen {
        return Ok(chosen.to_owned());
    }
    if let Some(named) = std::env::var_os(CACHE_DIR_VARIABLE).filter(|name| !name.is_empty()) {
        return Ok(PathBuf::from(named));
    }
    let base = etcetera::choose_base_strategy().map_err(|_| PythonError::Cache {
        path: "of the user".to_owned(),
        source: io::Error::new(io::ErrorKind::NotFound, "there is no home directory"),
    })?;
    Ok(base.cache_dir().join("colab-kernel"))
}

/// One list of packages and where its environment is.
struct Environment {
    packages: &'static str,
    label: &'static str,
    directory: PathBuf,
}

impl Environment {
    fn new(cache: &Path, packages: &'static str, label: &'static str) -> Self {
        let hash = Sha256::digest(packages.as_bytes());
        let key: String = hash[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            packages,
            label,
            directory: cache.join(format!("emulator-{label}-{key}")),
        }
    }

    fn python(&self) -> PathBuf {
        let venv = self.directory.join("venv");
        if cfg!(windows) {
            venv.join("Scripts").join("python.exe")
        } else {
            venv.join("bin").join("python")
        }
    }

    fn matplotlib(&self) -> PathBuf {
        self.directory.join("matplotlib")
    }

    fn ready(&self) -> Python {
        Python {
            path: self.python(),
            matplotlib: Some(self.matplotlib()),
        }
    }

    fn marker(&self) -> PathBuf {
        self.directory.join("complete")
    }

    /// Remembers that these packages do not install here, so that it is not tried at every start.
    fn refusal(&self) -> PathBuf {
        self.directory.join("does-not-install")
    }

    /// Whether it is complete, and its interpreter still runs (a Python may be upgraded or removed under it).
    async fn is_usable(&self) -> bool {
        self.marker().exists()
            && Command::new(self.python())
                .args(["-I", "-S", "-c", ""])
                .stdin(Stdio::null())
                .output()
                .await
                .is_ok_and(|output| output.status.success())
    }
}

async fn managed(
    cache: &Path,
    kernels: Kernels,
    progress: &ProgressFn,
) -> Result<Python, PythonError> {
    let colab = Environment::new(cache, COLAB, "colab");
    let newest = Environment::new(cache, NEWEST, "newest");
    if kernels == Kernels::Newest {
        return prepare(&newest, progress).await;
    }
    if colab.is_usable().await {
        return Ok(colab.ready());
    }
    if !colab.refusal().exists() {
        let (python, minor) = find_python().await?;
        if COLAB_PYTHONS.contains(&minor) {
            match prepare(&colab, progress).await {
                Err(PythonError::Install(cause)) => {
                    tracing::warn!(cause, "Colab's package versions do not install");
                    let _ = tokio::fs::write(colab.refusal(), cause).await;
                }
                done => return done,
            }
        } else {
            tracing::debug!(python, minor, "not a Python for Colab's versions");
        }
    }
    progress(
        "Colab's package versions do not install on this Python; the newest ones are used instead",
    );
    prepare(&newest, progress).await
}

/// Makes the environment where it is missing, one process at a time.
async fn prepare(environment: &Environment, progress: &ProgressFn) -> Result<Python, PythonError> {
    if environment.is_usable().await {
        return Ok(environment.ready());
    }
    let failed = |source| PythonError::Cache {
        path: environment.directory.display().to_string(),
        source,
    };
    tokio::fs::create_dir_all(&environment.directory)
        .await
        .map_err(failed)?;
    let lock = take_lock(environment.directory.join("lock"), progress)
        .await
        .map_err(failed)?;
    // Another process may have made it while this one waited.
    if !environment.is_usable().await {
        make(environment, progress).await?;
    }
    drop(lock);
    Ok(environment.ready())
}

/// The lock is given back when the file is closed, also by a process that dies.
async fn take_lock(path: PathBuf, progress: &ProgressFn) -> io::Result<File> {
    let file = File::create(&path)?;
    if file.try_lock().is_ok() {
        return Ok(file);
    }
    progress("Waiting for another process that is making the Python environment");
    let waiting = tokio::task::spawn_blocking(move || file.lock().map(|()| file));
    waiting.await.map_err(io::Error::other)?
}

async fn make(environment: &Environment, progress: &ProgressFn) -> Result<(), PythonError> {
    let failed = |source| PythonError::Cache {
        path: environment.directory.display().to_string(),
        source,
    };
    let (python, minor) = find_python().await?;
    let venv = environment.directory.join("venv");
    let _ = tokio::fs::remove_file(environment.marker()).await;
    if venv.exists() {
        tokio::fs::remove_dir_all(&venv).await.map_err(failed)?;
    }
    progress(&format!(
        "Making a Python 3.{minor} environment in {} (once)",
        environment.directory.display()
    ));
    run(Command::new(&python).args(["-m", "venv"]).arg(&venv))
        .await
        .map_err(|cause| PythonError::Venv { python, cause })?;

    let list = environment.directory.join("requirements.txt");
    tokio::fs::write(&list, environment.packages)
        .await
        .map_err(failed)?;
    let count = environment
        .packages
        .lines()
        .filter(|line| line.contains("=="))
        .count();
    progress(&format!(
        "Installing {count} packages of the {} versions; this takes a minute",
        environment.label
    ));
    // The list is complete, so nothing is resolved: what Colab has is what is installed.
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
        "--only-binary=:all:",
        "-r",
    ];
    // In the environment, where what an interrupted pip leaves is removed with it.
    let scratch = venv.join("tmp");
    tokio::fs::create_dir_all(&scratch).await.map_err(failed)?;
    let mut install = Command::new(environment.python());
    install.args(pip).arg(&list).env(TEMPORARY, &scratch);
    run(&mut install).await.map_err(pip_error)?;
    tokio::fs::remove_dir_all(&scratch).await.map_err(failed)?;
    let imports = "import jupyter_server.serverapp, ipykernel.kernelapp, kernel_gateway.gatewayapp, matplotlib.font_manager";
    run(Command::new(environment.python())
        .args(["-c", imports])
        .env("MPLCONFIGDIR", environment.matplotlib()))
    .await
    .map_err(PythonError::Install)?;
    tokio::fs::write(environment.marker(), "")
        .await
        .map_err(failed)?;
    progress("The Python environment is ready");
    Ok(())
}

/// Runs a step; an error is what it said last.
async fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .env_remove("PYTHONHOME")
        .env_remove("PYTHONPATH")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    tracing::debug!(
        stderr = %String::from_utf8_lossy(&output.stderr),
        stdout = %String::from_utf8_lossy(&output.stdout),
        "a set-up step failed"
    );
    let said = if output.stderr.is_empty() {
        &output.stdout
    } else {
        &output.stderr
    };
    Err(String::from_utf8_lossy(said).trim().to_owned())
}

/// pip has no code for "no network"; its warnings tell. That an index lists no versions is no sign: where only wheels are
/// taken, it also means that there are none for this machine.
fn pip_error(said: String) -> PythonError {
    const NETWORK: [&str; 7] = [
        "ConnectTimeout",
        "Max retries exceeded",
        "NameResolutionError",
        "NewConnectionError",
        "ProtocolError",
        "ProxyError",
        "ReadTimeout",
    ];
    let mut lines = said.lines().rev();
    match lines.find(|line| NETWORK.iter().any(|sign| line.contains(sign))) {
        Some(line) => {
            let (_, cause) = line.split_once("broken by ").unwrap_or(("", line));
            PythonError::Network(cause.trim().to_owned())
        }
        None => PythonError::Install(last_line(said.as_bytes())),
    }
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.unwrap_or("it said nothing").trim().to_owned()
}

/// The first Python 3 on PATH and its minor version.
async fn find_python() -> Result<(String, u32), PythonError> {
    for name in ["python3", "python"] {
        let output = Command::new(name)
            .args([
                "-c",
                "import sys; print(sys.executable); print(*sys.version_info[:2])",
            ])
            .stdin(Stdio::null())
            .output()
            .await;
        let Ok(output) = output else { continue };
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines = text.lines();
        let (Some(path), Some(version)) = (lines.next(), lines.next()) else {
            continue;
        };
        if let Some(minor) = version
            .strip_prefix("3 ")
            .and_then(|minor| minor.parse().ok())
        {
            return Ok((path.to_owned(), minor));
        }
    }
    Err(PythonError::Missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_index_is_told_from_a_package_that_does_not_install() {
        let offline = "WARNING: Retrying after connection broken by 'NewConnectionError'\nERROR: No matching distribution found for x==1 (from versions: none)";
        assert!(matches!(
            pip_error(offline.to_owned()),
            PythonError::Network(cause) if cause == "'NewConnectionError'"
        ));
        let refused = "ERROR: Could not find a version that satisfies the requirement numpy==2.1.3 (from versions: 1.0)\nERROR: No matching distribution found";
        assert!(matches!(
            pip_error(refused.to_owned()),
            PythonError::Install(_)
        ));
    }

    #[tokio::test]
    async fn an_environment_whose_making_was_interrupted_is_not_used() {
        let cache = tempfile::tempdir().expect("a temporary directory");
        let environment = Environment::new(cache.path(), COLAB, "colab");
        let venv = environment.directory.join("venv").join("bin");
        std::fs::create_dir_all(venv).expect("a directory");
        assert!(!environment.is_usable().await, "no marker");
        std::fs::write(environment.marker(), "").expect("a marker");
        assert!(!environment.is_usable().await, "no interpreter");
    }

    #[test]
    fn both_lists_pin_every_package() {
        for list in [COLAB, NEWEST] {
            for line in list.lines().filter(|line| !line.starts_with('#')) {
                assert!(line.contains("=="), "{line}");
            }
            assert!(list.contains("jupyter_server==") && list.contains("ipykernel=="));
        }
    }

    #[tokio::test]
    async fn an_interpreter_without_jupyter_is_refused_with_the_next_step() {
        let choice = PythonChoice::Path(PathBuf::from("/nonexistent/python"));
        let quiet: ProgressFn = std::sync::Arc::new(|_| {});
        let error = resolve(&choice, Kernels::Colab, &quiet)
            .await
            .expect_err("there is no such interpreter");
        assert!(
            error
                .to_string()
                .contains("pip install jupyter_server ipykernel")
        );
    }
}
