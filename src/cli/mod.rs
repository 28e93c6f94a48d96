//! The command line: one file per command.
//!
//! A command gets its parsed arguments and returns what went wrong, if anything; this file parses, prints and maps errors to exit
//! codes (0 done, 1 failed, 2 wrong usage). Invariants:
//!
//! * Arguments meant for a Python interpreter end the process at once, non-zero and without a word: editors try the first
//!   element of a kernelspec's `argv` as an interpreter, with `-I script.py`, `-c …` or `-m …`.
//! * A front-end may add arguments for ipykernel to a kernel's command line (`--HistoryManager.hist_file=:memory:`). They are
//!   passed over, wherever they stand.

mod demo;
mod emulate;
pub mod install;
mod kernel;
pub mod kernelspec;
mod terminal;
pub mod uninstall;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

use crate::config::ConfigError;
use crate::emulator::quirks::QuirkError;

/// Wrong usage, as for clap's own errors.
const USAGE: u8 = 2;

/// How long a finished command waits for what cannot be cancelled.
const LAST_TASKS: Duration = Duration::from_millis(100);

/// A Jupyter kernel that runs its cells on Google Colab.
#[derive(Debug, Parser)]
#[command(name = "colab-kernel", version, arg_required_else_help = true)]
#[command(after_help = "To try it without an account: colab-kernel demo\n\
                        To use it from a notebook: colab-kernel install")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Kernel(kernel::Args),
    Install(install::Args),
    Uninstall(uninstall::Args),
    Emulate(emulate::Args),
    Demo(demo::Args),
}

/// Runs the command that the arguments name and maps its error to an exit code.
pub fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if is_for_python(arguments.get(1).map(OsString::as_os_str)) {
        return ExitCode::from(USAGE);
    }
    // A kernelspec may name the connection file alone, as ipykernel's does.
    if arguments
        .get(1)
        .is_some_and(|first| starts_with(first, "-f"))
    {
        arguments.insert(1, "kernel".into());
    }
    if arguments.get(1).is_some_and(|first| first == "kernel") {
        arguments = without_foreign(arguments);
    }
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let code = error.exit_code();
            // A closed terminal is no reason to fail differently.
            let _ = error.print();
            return ExitCode::from(u8::try_from(code).unwrap_or(USAGE));
        }
    };
    let outcome = match cli.command {
        Command::Kernel(args) => kernel::run(args).map(|()| ExitCode::SUCCESS),
        Command::Install(args) => install::run(args).map(|()| ExitCode::SUCCESS),
        Command::Uninstall(args) => uninstall::run(args).map(|()| ExitCode::SUCCESS),
        Command::Emulate(args) => block_on(emulate::run(args)).map(|()| ExitCode::SUCCESS),
        Command::Demo(args) => block_on(demo::run(args)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            terminal::report(&error);
            if error.is::<ConfigError>() || error.is::<QuirkError>() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Runs a command's future. Two threads: one for what a cell sends, one for what the front-end asks meanwhile.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("The threads could not be started")?;
    let outcome = runtime.block_on(command);
    // Tasks hold what is to be removed at the end, so they are dropped first. A question to a name server cannot be cancelled, and
    // nobody waits for its answer any more.
    runtime.shutdown_timeout(LAST_TASKS);
    outcome
}

/// Whether the first argument is one of the Python interpreter's: a script, or an option that none of ours is spelt like.
fn is_for_python(first: Option<&OsStr>) -> bool {
    let Some(first) = first.map(OsStr::to_string_lossy) else {
        return false;
    };
    if first.ends_with(".py") || first == "-" {
        return true;
    }
    first.starts_with('-')
        && !first.starts_with("--")
        && !["-f", "-h", "-V"]
            .iter()
            .any(|ours| first.starts_with(ours))
}

/// The kernel's arguments without those that are not ours.
fn without_foreign(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut command = Cli::command();
    // Building adds `--help`.
    command.build();
    let known = command.find_subcommand("kernel");
    let takes_value = |name: &str| -> Option<bool> {
        let argument = known?.get_arguments().find(|argument| {
            let long = argument.get_long_and_visible_aliases().unwrap_or_default();
            let short = argument.get_short().map(|c| format!("-{c}"));
            short.as_deref() == Some(name)
                || name
                    .strip_prefix("--")
                    .is_some_and(|name| long.contains(&name))
        })?;
        Some(argument.get_action().takes_values())
    };
    let mut ours = Vec::with_capacity(arguments.len());
    let mut arguments = arguments.into_iter();
    ours.extend(arguments.by_ref().take(2));
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy().into_owned();
        let (name, attached) = match text.split_once('=') {
            Some((name, _)) => (name, true),
            None if starts_with(&argument, "-f") => ("-f", text.len() > 2),
            None => (text.as_str(), false),
        };
        match takes_value(name) {
            Some(true) if !attached => {
                ours.push(argument);
                ours.extend(arguments.next());
            }
            Some(_) => ours.push(argument),
            // Options of ipykernel's are named after its classes. What is not may be one of ours, misspelt.
            None if !text.contains('.') => terminal::warn(&format!("Ignored argument {text}")),
            None => {}
        }
    }
    ours
}

fn starts_with(argument: &OsStr, prefix: &str) -> bool {
    argument.as_encoded_bytes().starts_with(prefix.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_for_an_interpreter_are_known() {
        for first in ["-I", "-c", "-m", "-Ic", "-E", "-X", "-u", "/x/info.py", "-"] {
            assert!(is_for_python(Some(OsStr::new(first))), "{first}");
        }
        for first in [
            "kernel",
            "-f",
            "-fx.json",
            "-h",
            "-V",
            "--help",
            "--version",
        ] {
            assert!(!is_for_python(Some(OsStr::new(first))), "{first}");
        }
        assert!(!is_for_python(None));
    }

    #[test]
    fn foreign_options_of_a_kernel_are_passed_over_wherever_they_stand() {
        let line = "colab-kernel kernel --HistoryManager.hist_file=:memory: -f a.json --IPKernelApp.x=1 --highmem \
                    --accelerator=T4 --Session.debug --runtime new --endpoint https://x/mcp --a.b=c";
        let arguments = line.split_whitespace().map(OsString::from).collect();
        let ours: Vec<OsString> = without_foreign(arguments);
        let expected = "colab-kernel kernel -f a.json --highmem --accelerator=T4 --runtime new --endpoint https://x/mcp";
        let expected: Vec<OsString> = expected.split_whitespace().map(OsString::from).collect();
        assert_eq!(ours, expected);
    }

    #[test]
    fn the_connection_file_may_be_attached_to_its_option() {
        for file in ["-f=a.json", "-fa.json", "--connection-file=a.json"] {
            let arguments = ["colab-kernel", "kernel", file]
                .map(OsString::from)
                .to_vec();
            let cli = Cli::try_parse_from(without_foreign(arguments)).unwrap();
            let Command::Kernel(args) = cli.command else {
                panic!("{file} is not for the kernel command");
            };
            assert_eq!(args.connection_file.to_str(), Some("a.json"));
        }
    }
}
