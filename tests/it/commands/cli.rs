//! The command line's contract: what other programs may start this one with, and what it says when it is used wrongly.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than any of these commands may take, on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(20);

/// The command with a home of its own and no settings from outside.
fn colab_kernel(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_colab-kernel"));
    command
        .env_clear()
        .env("HOME", home)
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir(home)
        .stdin(Stdio::null());
    command
}

/// Runs the command to its end, which must come in time.
fn run(command: &mut Command) -> Output {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("still running after {LIMIT:?}: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A connection file on free ports.
fn connection_file(directory: &Path) -> String {
    let path = directory.join("connection.json");
    let listeners: Vec<_> = (0..5)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let port = |index: usize| listeners[index].local_addr().unwrap().port();
    let content = serde_json::json!({
        "transport": "tcp", "ip": "127.0.0.1", "key": "secret", "signature_scheme": "hmac-sha256",
        "shell_port": port(0), "iopub_port": port(1), "stdin_port": port(2), "control_port": port(3), "hb_port": port(4),
    });
    std::fs::write(&path, content.to_string()).unwrap();
    path.to_string_lossy().into_owned()
}

/// Editors that look for Python interpreters try the first element of a kernelspec's `argv`.
#[test]
fn arguments_meant_for_python_end_it_without_a_word() {
    let home = home();
    for arguments in [
        &["-I", "/ext/interpreterInfo.py"][..],
        &["-c", "import sys; print(sys.executable)"],
        &["-I", "-c", "print(1)"],
        &["-m", "ipykernel_launcher", "-f", "x.json"],
        &["/ext/printEnvVariables.py"],
        &["-E", "-m", "pip"],
        &["-"],
    ] {
        let output = run(colab_kernel(home.path()).args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
}

#[test]
fn help_names_the_commands_and_their_options() {
    let home = home();
    let help = |arguments: &[&str]| {
        let output = run(colab_kernel(home.path()).args(arguments));
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let overview = help(&["--help"]);
    for command in ["kernel", "install", "uninstall", "emulate", "demo"] {
        assert!(overview.contains(&format!("\n  {command} ")), "{overview}");
    }
    // Commands that do not exist yet are not promised.
    for command in ["login", "doctor", "runtimes", "exec", "\n  cp"] {
        assert!(!overview.contains(command), "{overview}");
    }
    let kernel = help(&["kernel", "--help"]);
    for option in [
        "-f, ",
        "--backend",
        "--accelerator",
        "--highmem",
        "--runtime",
        "--endpoint",
    ] {
        assert!(kernel.contains(option), "{kernel}");
    }
    let demo = help(&["demo", "--help"]);
    for option in ["[NOTEBOOK]", "--output", "--port"] {
        assert!(demo.contains(option), "{demo}");
    }
    assert!(help(&["--version"]).starts_with("colab-kernel 0."));
}

#[test]
fn wrong_usage_is_exit_code_2_and_a_sentence_on_stderr() {
    let home = home();
    for arguments in [
        &["frobnicate"][..],
        &["kernel"],
        &["demo", "--port", "many"],
        &[],
    ] {
        let output = run(colab_kernel(home.path()).args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains("help"), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_bad_setting_is_named_with_what_is_allowed() {
    let home = home();
    let file = connection_file(home.path());
    for (name, value, allowed) in [
        ("COLAB_KERNEL_BACKEND", "tab", "not part of this version"),
        ("COLAB_KERNEL_BACKEND", "carrier-pigeon", "`mcp`"),
        ("COLAB_KERNEL_ENDPOINT", "colab", "https://"),
        (
            "COLAB_KERNEL_ENDPOINT",
            "http://example.com/mcp",
            "loopback",
        ),
        ("COLAB_KERNEL_COMPANION", "perhaps", "`off`"),
        ("COLAB_KERNEL_LOG", "loud", "`debug`"),
    ] {
        let mut command = colab_kernel(home.path());
        let output = run(command.args(["kernel", "-f", &file]).env(name, value));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.starts_with("error: "), "{text}");
        assert!(text.contains(name) && text.contains(value), "{text}");
        assert!(text.contains("\nAllowed: "), "{text}");
        assert!(text.contains(allowed), "{text}");
    }
}

#[test]
fn a_bad_quirk_is_named_with_what_is_allowed() {
    let home = home();
    for (setting, allowed) in [
        ("era", "NAME=VALUE"),
        ("weather=fine", "\nThere are: era, "),
        ("era=1", "\nIt can be: any|"),
    ] {
        let output = run(colab_kernel(home.path()).args(["emulate", "--quirk", setting]));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(allowed), "{text}");
    }
}

#[test]
fn a_bad_flag_is_named_as_it_was_written() {
    let home = home();
    let file = connection_file(home.path());
    let mut command = colab_kernel(home.path());
    // The flag is stronger than a good value in the environment.
    command.env("COLAB_KERNEL_BACKEND", "mcp");
    let output = run(command.args(["-f", &file, "--backend", "tab"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--backend"), "{}", stderr(&output));
}

#[test]
fn the_config_file_is_read_and_named() {
    let home = home();
    let file = connection_file(home.path());
    let config = home.path().join(".config/colab-kernel");
    std::fs::create_dir_all(&config).unwrap();
    for (content, said) in [
        (r#"{"backend": "tab"}"#, "\"backend\" of "),
        (r#"{"acelerator": "T4"}"#, "\"acelerator\" of "),
        ("{", "is not a JSON object"),
    ] {
        std::fs::write(config.join("config.json"), content).unwrap();
        let output = run(colab_kernel(home.path()).args(["kernel", "-f", &file]));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.contains(said) && text.contains("config.json"),
            "{text}"
        );
    }
}

#[test]
fn a_missing_connection_file_is_named() {
    let home = home();
    let output = run(colab_kernel(home.path()).args(["kernel", "-f", "nowhere.json"]));
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("error: ") && text.contains("nowhere.json"),
        "{text}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn the_demo_refuses_what_is_no_notebook_before_it_starts_anything() {
    let home = home();
    let text = home.path().join("text.ipynb");
    std::fs::write(&text, "print(1)").unwrap();
    let old = home.path().join("old.ipynb");
    std::fs::write(&old, r#"{"nbformat": 3, "worksheets": []}"#).unwrap();
    for (name, said) in [
        ("missing.ipynb", "missing.ipynb cannot be read"),
        ("text.ipynb", "text.ipynb is not a notebook"),
        ("old.ipynb", "Convert it with: jupyter nbconvert"),
    ] {
        let output = run(colab_kernel(home.path()).args(["demo", name]));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn the_demo_refuses_a_place_it_cannot_write_to_before_it_starts_anything() {
    let home = home();
    let output = run(colab_kernel(home.path()).args(["demo", "--output", "none/x.ipynb"]));
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot be written to none/x.ipynb"), "{text}");
    assert!(
        text.ends_with("\nName another place with --output FILE\n"),
        "{text}"
    );
}
