//! Virtual environments of the tests that need Python, each made once under `target/python/`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

/// The interpreter of the environment `name` with these pinned requirements, made at the first call.
///
/// The directory's name holds a hash of the requirements, so that a change makes a new one. A lock keeps two test processes from
/// making it at once, and a marker that is written last keeps one that was interrupted from being used.
pub fn python_env(name: &str, requirements: &str) -> PathBuf {
    let hash = Sha256::digest(requirements.as_bytes());
    let hash: String = hash
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let root = python_dir();
    let home = root.join(format!("{name}-{hash}"));
    let python = home.join(if cfg!(windows) {
        "Scripts/python.exe"
    } else {
        "bin/python"
    });
    let marker = home.join("complete");

    fs::create_dir_all(&root).unwrap();
    let lock = File::create(root.join(format!("{name}-{hash}.lock"))).unwrap();
    // Released when the file is closed.
    lock.lock().unwrap();
    if marker.exists() {
        return python;
    }
    if home.exists() {
        fs::remove_dir_all(&home).unwrap();
    }
    let base = if cfg!(windows) { "python" } else { "python3" };
    run(
        Command::new(base).args(["-m", "venv"]).arg(&home),
        "the tests need Python 3 with its venv module on the path",
    );
    let list = home.join("requirements.txt");
    fs::write(&list, requirements).unwrap();
    run(
        Command::new(&python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "-r",
            ])
            .arg(&list),
        "the tests need the network (or a package index) to install their Python packages",
    );
    fs::write(&marker, "").unwrap();
    python
}

fn run(command: &mut Command, hint: &str) {
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!(
            "{hint}\n{command:?} failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => panic!("{hint}\n{command:?}: {error}"),
    }
}

/// Where all environments are, the emulator's as well: each is made once for all tests.
pub fn python_dir() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_colab-kernel"))
        .ancestors()
        .nth(2);
    target.unwrap().join("python")
}
