//! A client in Node that speaks to the kernel as VS Code's Jupyter extension does: `tests/node/`.
//!
//! The packages are installed once under `target/node/`. Where there is no Node the tests say so and pass.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use crate::python_env::python_dir;

/// The first run on a machine makes the emulator's Python environment.
const LIMIT: Duration = Duration::from_secs(600);

const PACKAGE_FILES: [(&str, &str); 3] = [
    (".npmrc", include_str!("../node/.npmrc")),
    ("package.json", include_str!("../node/package.json")),
    (
        "package-lock.json",
        include_str!("../node/package-lock.json"),
    ),
];

const PROGRAM: [&str; 4] = ["vscode.mjs", "notebook.mjs", "processes.mjs", "wire.mjs"];

#[test]
fn vs_code_opens_a_notebook_without_starting_a_machine() {
    vscode("before-session");
}

#[test]
fn vs_code_runs_asks_interrupts_and_restarts() {
    vscode("full");
}

/// Runs a stage of `vscode.mjs`.
fn vscode(stage: &str) {
    let Some(packages) = packages() else {
        assert!(std::env::var_os("CI").is_none(), "no node");
        println!("skipped: no node");
        return;
    };
    // A program finds its packages in the directories above it.
    let home = packages.join(stage);
    fs::create_dir_all(&home).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node");
    for file in PROGRAM {
        fs::copy(sources.join(file), home.join(file)).unwrap();
    }
    let mut command = Command::new("node");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("COLAB_KERNEL_") {
            command.env_remove(name);
        }
    }
    command
        .arg(home.join("vscode.mjs"))
        .args(["--stage", stage])
        .env("COLAB_KERNEL_BIN", env!("CARGO_BIN_EXE_colab-kernel"))
        .env("COLAB_KERNEL_CACHE_DIR", python_dir());
    let (succeeded, printed) = run(&mut command);
    assert!(succeeded, "{printed}");
}

/// Where the packages are, after the first call has installed them. `None`: there is no Node.
///
/// As in `python_env`, a lock keeps two test processes from installing at once, and a marker that is written last keeps an
/// installation that was interrupted from being used.
fn packages() -> Option<PathBuf> {
    for program in ["node", "npm"] {
        let version = Command::new(program).arg("--version").output().ok()?;
        version.status.success().then_some(())?;
    }
    let mut hash = Sha256::new();
    for (_, text) in PACKAGE_FILES {
        hash.update(text);
    }
    let hash: String = hash
        .finalize()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let root = python_dir().with_file_name("node");
    let home = root.join(&hash);
    let marker = home.join("complete");
    fs::create_dir_all(&root).unwrap();
    let lock = File::create(root.join(format!("{hash}.lock"))).unwrap();
    // Released when the file is closed.
    lock.lock().unwrap();
    if marker.exists() {
        return Some(home);
    }
    if home.exists() {
        fs::remove_dir_all(&home).unwrap();
    }
    fs::create_dir_all(&home).unwrap();
    for (name, text) in PACKAGE_FILES {
        fs::write(home.join(name), text).unwrap();
    }
    // zeromq brings its native part, so that no package's script has to run.
    let arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
    let (succeeded, printed) = run(Command::new("npm").args(arguments).current_dir(&home));
    assert!(
        succeeded,
        "the tests need the network (or a package registry) to install their Node packages\n{printed}"
    );
    fs::write(&marker, "").unwrap();
    Some(home)
}

/// Runs a program to its end, for [`LIMIT`] at most: whether it succeeded, and all that it printed.
fn run(command: &mut Command) -> (bool, String) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .unwrap();
    // Otherwise this process would hold the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let printed = std::thread::spawn(move || {
        let mut printed = Vec::new();
        reader.read_to_end(&mut printed).unwrap();
        String::from_utf8_lossy(&printed).into_owned()
    });
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            // What it has started may hold the pipe open.
            panic!("{command:?} did not end within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let printed = printed.join().unwrap();
    (status.success(), printed)
}
