//! `colab-kernel demo`: the whole product in one command, from a notebook file to a notebook file.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::python_env::python_dir;

/// The first run on a machine makes the emulator's Python environment.
const LIMIT: Duration = Duration::from_secs(600);

/// A demo that runs in a directory of its own, and what it has printed.
struct Demo {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: String,
    deadline: Instant,
}

impl Demo {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let temporary = directory.join("tmp");
        fs::create_dir_all(&temporary).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_colab-kernel"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("COLAB_KERNEL_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .arg("demo")
            .args(arguments)
            .env("COLAB_KERNEL_CACHE_DIR", python_dir())
            .env("TMPDIR", temporary)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let mut line = String::new();
            while stdout.read_line(&mut line).unwrap_or(0) > 0 {
                if sender.send(std::mem::take(&mut line)).is_err() {
                    // Nobody looks any more; the demo must not block on a full pipe all the same.
                    let _ = stdout.read_to_end(&mut Vec::new());
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            seen: String::new(),
            deadline: Instant::now() + LIMIT,
        }
    }

    /// Waits until this has been printed.
    fn wait_for(&mut self, text: &str) {
        while !self.seen.contains(text) {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("{text:?} was never printed, but:\n{}", self.seen);
            };
            self.seen += &line;
        }
    }

    /// Waits for the end; the exit code and all that was printed.
    fn finish(mut self) -> (Option<i32>, String) {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen += &line,
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    self.child.kill().unwrap();
                    panic!("the demo did not end, but printed:\n{}", self.seen);
                }
            }
        }
        let code = self.child.wait().unwrap().code();
        (code, self.seen)
    }
}

/// Writes a notebook with these code cells.
fn write_notebook(directory: &Path, cells: &[&str]) -> PathBuf {
    let cells: Vec<Value> = cells
        .iter()
        .map(|source| {
            json!({"cell_type": "code", "metadata": {}, "source": source, "outputs": [], "execution_count": null})
        })
        .collect();
    let notebook =
        json!({"cells": cells, "metadata": {"mine": 1}, "nbformat": 4, "nbformat_minor": 4});
    let path = directory.join("mine.ipynb");
    fs::write(&path, notebook.to_string()).unwrap();
    path
}

fn read_notebook(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Processes whose temporary files go to this directory, or below it: a runtime has a place of its own.
#[cfg(target_os = "linux")]
fn processes_of(directory: &Path) -> Vec<String> {
    let mark = format!("TMPDIR={}", directory.join("tmp").display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| {
            let environment = fs::read(process.path().join("environ")).ok()?;
            let ours = String::from_utf8_lossy(&environment)
                .split('\0')
                .any(|variable| variable.starts_with(&mark));
            let command = fs::read_to_string(process.path().join("cmdline")).ok()?;
            // A zombie has no command line.
            (ours && !command.is_empty()).then(|| command.replace('\0', " "))
        })
        .collect()
}

/// Nothing may be left: no process (it may take a moment to be gone) and no file.
#[cfg(target_os = "linux")]
fn assert_nothing_left(directory: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let left = processes_of(directory);
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "left running: {left:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let files: Vec<_> = fs::read_dir(directory.join("tmp"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert!(files.is_empty(), "left behind: {files:#?}");
}

#[cfg(not(target_os = "linux"))]
fn assert_nothing_left(_directory: &Path) {}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn the_bundled_notebook_runs_is_shown_and_is_written() {
    let directory = directory();
    let (code, text) = Demo::start(directory.path(), &[]).finish();
    assert_eq!(code, Some(0), "{text}");
    for shown in [
        "[1/5] import time …",
        "step 5 of 5\n",
        "'Python 3.",
        "[text/html, ",
        "[image/png, ",
        "There is no planet called 'Vulcan'\n",
        "Wrote colab-kernel-demo.ipynb",
        "emulate\n",
        "COLAB_KERNEL_ENDPOINT=http://127.0.0.1:",
        "jupyter lab colab-kernel-demo.ipynb",
    ] {
        assert!(text.contains(shown), "{shown:?} is not in:\n{text}");
    }

    let notebook = read_notebook(&directory.path().join("colab-kernel-demo.ipynb"));
    let cells = notebook["cells"].as_array().unwrap();
    let code: Vec<&Value> = cells
        .iter()
        .filter(|cell| cell["cell_type"] == "code")
        .collect();
    for (index, cell) in code.iter().enumerate() {
        assert_eq!(cell["execution_count"], index + 1);
    }
    // Nothing but what the cell printed: no line of ours about the wait.
    assert_eq!(code[0]["outputs"].as_array().unwrap().len(), 1);
    assert_eq!(code[0]["outputs"][0]["text"][0], "step 1 of 5\n");
    let order = [
        "radius_km, from 2440 to 6371:\n[image/png, ",
        "\nmoons, from 0 to 2:\n[image/png, ",
        "\nthat was all\n",
    ];
    let places: Vec<_> = order.iter().map(|shown| text.find(shown)).collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{text}"
    );
    let table = &code[2]["outputs"][0];
    assert_eq!(table["output_type"], "execute_result");
    assert!(table["data"]["text/html"].is_array(), "{table}");
    // The figures are where the code shows them, between the lines.
    let plots = code[3]["outputs"].as_array().unwrap();
    let kinds: Vec<&Value> = plots.iter().map(|output| &output["output_type"]).collect();
    let (text_of, figure) = ("stream", "display_data");
    assert_eq!(kinds, [text_of, figure, text_of, figure, text_of]);
    for plot in [&plots[1], &plots[3]] {
        let png = plot["data"]["image/png"].as_str().unwrap();
        assert!(png.starts_with("iVBOR"), "{png}");
    }
    assert_eq!(
        notebook["metadata"]["language_info"]["pygments_lexer"],
        "ipython3"
    );
    assert_nothing_left(directory.path());
}

#[test]
fn text_is_shown_while_the_cell_runs() {
    let directory = directory();
    let answer = directory.path().join("seen");
    let cell = format!(
        "import os, time\nprint('first')\nwhile not os.path.exists({answer:?}): time.sleep(0.01)\nprint('second')"
    );
    let path = write_notebook(directory.path(), &[&cell]);
    let mut demo = Demo::start(directory.path(), &[path.to_str().unwrap()]);
    demo.wait_for("first\n");
    fs::write(&answer, "").unwrap();
    let (code, text) = demo.finish();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("first\nsecond\n"), "{text}");
}

#[test]
fn a_cell_that_raises_ends_the_run_with_code_1() {
    let directory = directory();
    let cells = ["x = 1", "x / 0", "print('not reached')"];
    let path = write_notebook(directory.path(), &cells);
    let (code, text) = Demo::start(directory.path(), &[path.to_str().unwrap()]).finish();
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("ZeroDivisionError: division by zero"),
        "{text}"
    );
    assert!(text.contains("Cell 2 raised ZeroDivisionError"), "{text}");

    let notebook = read_notebook(&directory.path().join("mine.executed.ipynb"));
    assert_eq!(notebook["metadata"]["mine"], 1);
    assert_eq!(notebook["cells"][0]["execution_count"], 1);
    let error = &notebook["cells"][1]["outputs"][0];
    assert_eq!(error["output_type"], "error");
    assert_eq!(error["ename"], "ZeroDivisionError");
    assert_eq!(notebook["cells"][2]["execution_count"], Value::Null);
    assert_nothing_left(directory.path());
}

#[test]
fn a_cell_may_update_what_an_earlier_one_has_shown() {
    let directory = directory();
    let cells = [
        "from IPython.display import display\nhandle = display('first', display_id='mine')",
        "handle.update('second')",
    ];
    let path = write_notebook(directory.path(), &cells);
    let (code, text) = Demo::start(directory.path(), &[path.to_str().unwrap()]).finish();
    assert_eq!(code, Some(0), "{text}");
    let notebook = read_notebook(&directory.path().join("mine.executed.ipynb"));
    let shown = &notebook["cells"][0]["outputs"];
    assert_eq!(shown.as_array().unwrap().len(), 1);
    assert_eq!(shown[0]["data"]["text/plain"][0], "'second'");
    assert_eq!(notebook["cells"][1]["outputs"], json!([]));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_it_in_the_middle_of_a_cell_and_leaves_nothing() {
    let directory = directory();
    let path = write_notebook(
        directory.path(),
        &["print('spinning', flush=True)\nwhile True: pass"],
    );
    let mut demo = Demo::start(directory.path(), &[path.to_str().unwrap()]);
    demo.wait_for("spinning\n");
    let pid = demo.child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(sent.success());
    let (code, text) = demo.finish();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("Stopped"), "{text}");
    assert_nothing_left(directory.path());
}
