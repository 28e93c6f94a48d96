//! The front-ends of the Python world on the whole kernel: each file of `tests/python/` run by pytest.
//!
//! pytest starts the emulator and the kernels itself, from the binary under test; here it gets its environment, and a time limit.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use colab_kernel::emulator::PythonChoice;
use colab_kernel::emulator::python::interpreter;
use colab_kernel::emulator::quirks::Kernels;

use crate::python_env::{python_dir, python_env};

/// Where it is set, every test of the bootstrap runs, which takes minutes.
const ALL: &str = "COLAB_KERNEL_TEST_ALL";

/// What the Python that runs most of these files needs.
const FRONTENDS: &str = include_str!("../python/requirements-frontends.txt");

fn pytest(file: &str) {
    pytest_some(file, &[]);
}

fn pytest_some(file: &str, options: &[&str]) {
    let python = python_env("frontends", FRONTENDS);
    pytest_with(&python, file, options);
}

/// What pytest printed, with the reasons of skipped tests.
fn pytest_with(python: &Path, file: &str, options: &[&str]) -> String {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    let output = Command::new(python)
        .args([
            "-m",
            "pytest",
            "-q",
            "-rs",
            "--timeout",
            "600",
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
    String::from_utf8_lossy(&output.stdout).into_owned()
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
    let python = python_env("frontends", FRONTENDS);
    let printed = pytest_with(&python, "test_conformance.py", &[]);
    assert!(!printed.contains("skipped"), "{printed}");
}

#[test]
fn helpers_of_colabs_web_page_fail_at_once_and_variables_are_forwarded() {
    pytest("test_colab_helpers.py");
}

#[test]
fn prompts_and_questions_are_answered_as_by_ipykernel() {
    pytest("test_questions.py");
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
    pytest_some("test_bootstrap.py", &["-k", &some.join(" or ")]);
}

#[test]
fn notebooks_give_what_ipykernel_gives() {
    pytest("test_notebooks.py");
}

#[test]
fn the_companion_loses_repeats_and_mixes_nothing() {
    pytest("test_companion.py");
}

#[test]
fn jupyterlab_in_a_browser_shows_all_that_a_kernel_does() {
    let python = python_env("lab", include_str!("../python/requirements-lab.txt"));
    let printed = pytest_with(&python, "test_lab.py", &[]);
    if printed.contains("skipped: no chromium") {
        // Past the capture of what passing tests print.
        let _ = writeln!(std::io::stderr(), "test_lab.py: skipped: no chromium");
    }
}
