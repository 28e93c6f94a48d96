//! `install` and `uninstall`: what they write, and what they leave alone.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use colab_kernel::cli::kernelspec::Environment;
use colab_kernel::cli::{install, uninstall};
use serde_json::{Value, json};
use tempfile::TempDir;

#[derive(Parser)]
enum Command {
    Install(install::Args),
    Uninstall(uninstall::Args),
}

/// A machine of its own: a home directory, and whatever else a test adds.
struct Machine {
    root: TempDir,
    environment: Environment,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let environment = Environment {
            home: Some(root.path().join("home")),
            jupyter_data: Some(root.path().join("home/jupyter")),
            ..Environment::default()
        };
        Self { root, environment }
    }

    /// Runs a command line, and gives what it printed or its error with everything that hangs on it.
    fn run(&self, line: &[&str]) -> Result<String, String> {
        let arguments = std::iter::once("colab-kernel").chain(line.iter().copied());
        let mut output = Vec::new();
        let done = match Command::try_parse_from(arguments).map_err(|error| error.to_string())? {
            Command::Install(args) => install::install(&args, &self.environment, &mut output),
            Command::Uninstall(args) => uninstall::uninstall(&args, &self.environment, &mut output),
        };
        done.map_err(|error| format!("{error:#}"))?;
        Ok(String::from_utf8(output).unwrap())
    }

    fn data_dir(&self) -> PathBuf {
        self.root.path().join("home/jupyter")
    }

    fn kernel(&self, name: &str) -> PathBuf {
        self.data_dir().join("kernels").join(name)
    }
}

fn kernel_json(directory: &Path) -> Value {
    serde_json::from_slice(&fs::read(directory.join("kernel.json")).unwrap()).unwrap()
}

fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn install_writes_the_kernelspec_that_front_ends_expect() {
    let machine = Machine::new();
    let printed = machine.run(&["install"]).unwrap();
    let directory = machine.kernel("colab");
    assert!(printed.contains(directory.to_str().unwrap()));
    assert!(printed.contains("jupyter lab"));
    assert!(printed.contains("Colab (remote)"));

    let spec = kernel_json(&directory);
    let argv: Vec<&str> = spec["argv"]
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| argument.as_str().unwrap())
        .collect();
    assert!(Path::new(argv[0]).is_absolute());
    assert_eq!(argv[1..], ["kernel", "-f", "{connection_file}"]);
    assert_eq!(spec["display_name"], "Colab (remote)");
    assert_eq!(spec["language"], "python");
    assert_eq!(spec["interrupt_mode"], "message");
    assert_eq!(spec["kernel_protocol_version"], "5.5");
    assert_eq!(spec["metadata"]["debugger"], false);
    assert_eq!(spec.get("env"), None);

    assert_eq!(
        entries(&directory),
        [
            "kernel.json",
            "logo-32x32.png",
            "logo-64x64.png",
            "logo-svg.svg"
        ]
    );
    for (name, start) in [
        ("logo-32x32.png", b"\x89PNG"),
        ("logo-64x64.png", b"\x89PNG"),
        ("logo-svg.svg", b"<svg"),
    ] {
        let logo = fs::read(directory.join(name)).unwrap();
        assert!(logo.starts_with(start) && logo.len() < 10_000, "{name}");
    }
    assert_eq!(entries(&machine.data_dir()), ["kernels"]);
}

#[cfg(unix)]
#[test]
fn other_users_of_a_shared_place_can_read_the_kernelspec() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new();
    machine.run(&["install"]).unwrap();
    let made_here = machine.root.path().join("plain");
    fs::create_dir(&made_here).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&machine.kernel("colab")), mode(&made_here));
}

#[test]
fn options_land_in_the_arguments_and_the_environment() {
    let machine = Machine::new();
    machine
        .run(&[
            "install",
            "--name",
            "Colab-T4",
            "--display-name",
            "Colab T4",
            "--accelerator",
            "T4",
            "--highmem",
            "--runtime",
            "new",
            "--endpoint",
            "http://127.0.0.1:8080/mcp",
            "--env",
            "COLAB_KERNEL_LOG=debug",
            "--env",
            "A=b=c",
        ])
        .unwrap();
    let spec = kernel_json(&machine.kernel("colab-t4"));
    let argv = spec["argv"].as_array().unwrap();
    assert_eq!(
        json!(argv[1..]),
        json!([
            "kernel",
            "-f",
            "{connection_file}",
            "--accelerator",
            "T4",
            "--runtime",
            "new",
            "--endpoint",
            "http://127.0.0.1:8080/mcp",
            "--highmem"
        ])
    );
    assert_eq!(spec["display_name"], "Colab T4");
    assert_eq!(
        spec["env"],
        json!({"COLAB_KERNEL_LOG": "debug", "A": "b=c"})
    );
}

#[test]
fn a_token_is_never_stored() {
    let machine = Machine::new();
    for line in [
        ["install", "--env", "COLAB_KERNEL_TOKEN=ya29.secret"],
        ["install", "--env", "colab_kernel_token=ya29.secret"],
        ["install", "--env", "ya29.secret"],
        ["install", "--endpoint", "https://me:ya29.secret@host/mcp"],
    ] {
        let error = machine.run(&line).unwrap_err();
        assert!(!error.contains("ya29.secret"), "{error}");
    }
    let error = machine
        .run(&["install", "--env", "COLAB_KERNEL_TOKEN=x"])
        .unwrap_err();
    assert!(error.contains("COLAB_KERNEL_TOKEN") && error.contains("gcloud auth"));
    assert!(!machine.data_dir().exists());
}

#[test]
fn options_that_cannot_work_are_refused_before_anything_is_written() {
    let machine = Machine::new();
    for line in [
        ["install", "--name", "python3"],
        ["install", "--name", "a/b"],
        ["install", "--name", ".."],
        ["install", "--display-name", "Python 3 (ipykernel)"],
        ["install", "--display-name", " "],
        ["install", "--accelerator", ""],
        ["install", "--endpoint", "colab"],
        ["install", "--endpoint", "ftp://host/mcp"],
        ["install", "--env", "=x"],
        ["uninstall", "--name", "../kernels"],
    ] {
        machine.run(&line).unwrap_err();
    }
    for line in [
        ["install", "--user", "--sys-prefix"].as_slice(),
        &["install", "--user", "--prefix", "x"],
        &["uninstall", "--sys-prefix", "--prefix", "x"],
    ] {
        let error = machine.run(line).unwrap_err();
        assert!(error.contains("cannot be used with"), "{error}");
    }
    assert!(!machine.data_dir().exists());
}

#[test]
fn the_place_is_chosen_by_option() {
    let mut machine = Machine::new();
    let root = machine.root.path().to_owned();
    machine.environment.conda_prefix = Some(root.join("conda"));
    machine.run(&["install", "--sys-prefix"]).unwrap();
    machine.environment.virtual_env = Some(root.join("venv"));
    machine.run(&["install", "--sys-prefix"]).unwrap();
    let prefix = root.join("opt");
    let printed = machine
        .run(&["install", "--prefix", prefix.to_str().unwrap()])
        .unwrap();
    assert!(printed.contains("JUPYTER_PATH"));
    machine.run(&["install", "--user"]).unwrap();
    for place in [
        "conda/share/jupyter",
        "venv/share/jupyter",
        "opt/share/jupyter",
        "home/jupyter",
    ] {
        kernel_json(&root.join(place).join("kernels/colab"));
    }

    machine.environment.virtual_env = None;
    machine.environment.conda_prefix = None;
    let error = machine.run(&["install", "--sys-prefix"]).unwrap_err();
    assert!(error.contains("environment is active"), "{error}");
}

#[test]
fn installing_again_replaces_what_was_there() {
    let machine = Machine::new();
    machine.run(&["install", "--accelerator", "T4"]).unwrap();
    let directory = machine.kernel("colab");
    fs::write(directory.join("old-file"), "").unwrap();
    machine.run(&["install"]).unwrap();
    assert_eq!(kernel_json(&directory)["argv"].as_array().unwrap().len(), 4);
    assert!(!directory.join("old-file").exists());
    assert_eq!(entries(&machine.data_dir()), ["kernels"]);
    assert_eq!(entries(&machine.data_dir().join("kernels")), ["colab"]);
}

#[test]
fn uninstall_removes_what_install_wrote_and_nothing_else() {
    let machine = Machine::new();
    machine.run(&["install"]).unwrap();
    machine.run(&["install", "--name", "colab-t4"]).unwrap();
    let printed = machine.run(&["uninstall"]).unwrap();
    assert!(printed.contains(machine.kernel("colab").to_str().unwrap()));
    assert_eq!(entries(&machine.data_dir()), ["kernels"]);
    assert_eq!(entries(&machine.data_dir().join("kernels")), ["colab-t4"]);

    let error = machine.run(&["uninstall"]).unwrap_err();
    assert!(error.contains("no kernelspec"), "{error}");
}

#[test]
fn a_kernelspec_of_others_is_left_alone() {
    let foreign: [(&str, &str); 4] = [
        (
            "kernel.json",
            r#"{"display_name": "Another", "argv": ["x"]}"#,
        ),
        ("kernel.json", r#"{"metadata": {"debugger": true}}"#),
        ("kernel.json", "not json"),
        ("notes.txt", "kept"),
    ];
    for (file, text) in foreign {
        let machine = Machine::new();
        let directory = machine.kernel("colab");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(file), text).unwrap();
        for command in ["install", "uninstall"] {
            let error = machine.run(&[command]).unwrap_err();
            assert!(error.contains(directory.to_str().unwrap()), "{error}");
            assert!(error.contains("jupyter kernelspec remove colab"), "{error}");
        }
        assert_eq!(entries(&directory), [file]);
        assert_eq!(fs::read_to_string(directory.join(file)).unwrap(), text);
        machine.run(&["install", "--name", "other"]).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_link_is_removed_without_what_it_leads_to() {
    let machine = Machine::new();
    machine.run(&["install", "--name", "real"]).unwrap();
    let real = machine.kernel("real");
    std::os::unix::fs::symlink(&real, machine.kernel("colab")).unwrap();
    machine.run(&["uninstall"]).unwrap();
    assert!(!machine.kernel("colab").exists());
    kernel_json(&real);
}
