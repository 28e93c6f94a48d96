//! The front-ends of the Python world on the whole kernel: each file of `tests/python/` run by pytest.
//!
//! pytest starts the emulator and the kernels itself, from the binary under test; here it gets its environment, and a time limit.

use std::path::PathBuf;
use std::process::Command;

use crate::python_env::{python_dir, python_env};

fn pytest(file: &str) {
    let python = python_env(
        "frontends",
        include_str!("../python/requirements-frontends.txt"),
    );
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    let output = Command::new(python)
        .args([
            "-m",
            "pytest",
            "-q",
            "--timeout",
            "300",
            "-p",
            "no:cacheprovider",
        ])
        .arg(tests.join(file))
        .env("COLAB_KERNEL_BIN", env!("CARGO_BIN_EXE_colab-kernel"))
        .env("COLAB_KERNEL_CACHE_DIR", python_dir())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{file}:\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn jupyter_kernel_test_passes() {
    pytest("test_conformance.py");
}

#[test]
fn nbconvert_and_papermill_run_notebooks() {
    pytest("test_batch.py");
}

#[test]
fn text_is_prompt_complete_and_in_order() {
    pytest("test_streams.py");
}

#[test]
fn endless_loops_are_interrupted_in_every_era() {
    pytest("test_interrupt.py");
}
