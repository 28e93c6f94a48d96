//! The front-ends of the Python world on the whole kernel: each file of `tests/python/` run by pytest.
//!
//! pytest starts the emulator and the kernels itself, from the binary under test; here it gets its environment, and a time limit.

use std::path::PathBuf;
use std::process::Command;

use colab_kernel::emulator::PythonChoice;
use colab_kernel::emulator::python::interpreter;
use colab_kernel::emulator::quirks::Kernels;

use crate::python_env::{python_dir, python_env};

/// Where it is set, every test of the bootstrap runs, which takes minutes.
const ALL: &str = "COLAB_KERNEL_TEST_ALL";

fn pytest(file: &str) {
    pytest_with(file, &[]);
}

fn pytest_with(file: &str, options: &[&str]) {
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
        .args(options)
        .env("COLAB_KERNEL_BIN", env!("CARGO_BIN_EXE_colab-kernel"))
        .env("COLAB_KERNEL_CACHE_DIR", python_dir())
        .env("COLAB_KERNEL_COLAB_PYTHON", colab_python())
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

/// The interpreter with Colab's published versions, which the emulator makes for itself.
fn colab_python() -> PathBuf {
    let choice = PythonChoice::Managed {
        cache_dir: Some(python_dir()),
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime
        .block_on(interpreter(&choice, Kernels::Colab))
        .unwrap()
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

#[test]
fn the_bootstrap_numbers_journals_and_answers_on_both_kernel_stacks() {
    if std::env::var_os(ALL).is_some() {
        return pytest("test_bootstrap.py");
    }
    // Of every subject the tests that tell the most; the slow and the subtle are for runs by hand.
    let some = [
        "threads_are_numbered",
        "flood_that_is_replayed",
        "forked",
        "errors_are_numbered",
        "never_enters",
        "restart_loses",
        "number_one",
        "uninstalling",
        "cannot_be_wrapped",
        "while_a_cell_runs",
        "budget",
        "slices",
        "malformed",
        "executions_ended",
        "by_their_key",
        "debugger",
    ];
    pytest_with("test_bootstrap.py", &["-k", &some.join(" or ")]);
}
