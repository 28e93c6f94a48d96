//! `colab-kernel demo`: a notebook run by the real kernel on a local Colab, without an account.
//!
//! The emulator runs in this process. The kernel is a process of its own, the same binary started as a front-end starts it, and
//! this command is its front-end: it speaks ZeroMQ to it, prints outputs as they arrive and writes the executed notebook.
//! Invariant: however the command ends, the kernel and the emulator's processes end with it.

mod client;
mod kernel;
mod notebook;
mod outputs;

use std::io::{self, Stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;

use self::kernel::Kernel;
use self::notebook::Notebook;
use self::outputs::{Outputs, Printer};
use super::emulate::{self, stop_signal};
use super::terminal::{Style, paint, wants_colour};
use crate::emulator::Emulator;

/// Run a notebook on a local Colab: no account, no network once it is set up.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Notebook to run, instead of the one that comes with the program
    pub notebook: Option<PathBuf>,

    /// Where the executed notebook goes [default: NAME.executed.ipynb in the current directory]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Port of the local Colab on 127.0.0.1 (0 takes any free one)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub port: u16,

    /// Python that has jupyter_server and ipykernel, instead of an environment made once in the cache directory
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
}

/// How the notebook's run ended.
enum Ending {
    Done,
    /// A cell raised; its name for the user, and the exception's.
    Raised {
        cell: usize,
        exception: String,
    },
    Stopped,
}

/// Runs the notebook. Exit code 1 if a cell raised or the user stopped the run.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut notebook = match &args.notebook {
        Some(path) => Notebook::read(path)?,
        None => Notebook::bundled(),
    };
    let output = args
        .output
        .clone()
        .unwrap_or_else(|| notebook.default_output());
    let unwritable = || {
        format!(
            "The executed notebook cannot be written to {}\nName another place with --output FILE",
            output.display()
        )
    };
    notebook::check_writable(&output).with_context(unwritable)?;
    let mut stop = std::pin::pin!(stop_signal()?);

    let emulator = tokio::select! {
        started = Emulator::start(emulate::config(args.port, args.python.clone())) => started?,
        () = &mut stop => {
            printer().line("Stopped")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let endpoint = emulator.endpoint();
    let outcome = tokio::select! {
        started = Kernel::start(&endpoint) => match started {
            Ok(mut kernel) => {
                let outcome = tokio::select! {
                    outcome = run_cells(&mut kernel, &mut notebook) => outcome,
                    () = &mut stop => Ok(Ending::Stopped),
                };
                kernel.stop().await;
                outcome
            }
            Err(error) => Err(error),
        },
        () = &mut stop => Ok(Ending::Stopped),
    };
    emulator.shutdown().await;

    let ending = outcome?;
    let mut printer = printer();
    if let Ending::Stopped = ending {
        printer.line("Stopped")?;
        return Ok(ExitCode::FAILURE);
    }
    notebook.write(&output).with_context(unwritable)?;
    printer.line("")?;
    if let Ending::Raised { cell, exception } = &ending {
        printer.line(&format!(
            "Cell {cell} raised {exception}: the cells after it did not run"
        ))?;
    }
    printer.line(&format!("Wrote {}", output.display()))?;
    printer.line(&next_steps(&args, &output))?;
    Ok(match ending {
        Ending::Done => ExitCode::SUCCESS,
        Ending::Raised { .. } | Ending::Stopped => ExitCode::FAILURE,
    })
}

/// Runs the cells one by one until one raises, and puts what they show into the notebook.
async fn run_cells(kernel: &mut Kernel, notebook: &mut Notebook) -> anyhow::Result<Ending> {
    notebook.set_language(kernel.info().await?["language_info"].clone());
    notebook.clear();
    let cells = notebook.code_cells();
    let mut printer = printer();
    let mut ending = Ending::Done;
    // All of them until the end: a cell may update what an earlier one has shown.
    let mut shown: Vec<Outputs> = Vec::new();
    let mut counts = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        let number = number + 1;
        let title = format!("[{number}/{}] {}", cells.len(), cell.title());
        printer.line("")?;
        printer.line(&paint(&title, Style::Strong, &io::stdout()))?;

        let mut outputs = Outputs::default();
        let show = |msg_type: &str, content: &Value| {
            outputs.message(msg_type, content);
            for earlier in &mut shown {
                earlier.update(msg_type, content);
            }
            printer.message(msg_type, content)
        };
        let reply = kernel.execute(&cell.source, show).await?;
        shown.push(outputs);
        counts.push(reply["execution_count"].clone());
        if reply["status"] != "ok" && !cell.may_raise {
            let exception = reply["ename"].as_str().unwrap_or("an exception");
            ending = Ending::Raised {
                cell: number,
                exception: exception.to_owned(),
            };
            break;
        }
    }
    for ((cell, count), outputs) in cells.iter().zip(counts).zip(shown) {
        notebook.set_outputs(cell, count, outputs.into_nbformat());
    }
    Ok(ending)
}

fn printer() -> Printer<Stdout> {
    Printer::new(io::stdout(), wants_colour(&io::stdout()))
}

/// How to go on in JupyterLab, in lines that can be copied.
fn next_steps(args: &Args, notebook: &Path) -> String {
    let program = program();
    let (port, option) = match args.port {
        0 => (emulate::DEFAULT_PORT, String::new()),
        port => (port, format!(" --port {port}")),
    };
    format!(
        "\nTo open it in JupyterLab on the same local Colab, start that in one terminal:\n\
         \n  {program} emulate{option}\n\
         \nand JupyterLab in another:\n\
         \n  export COLAB_KERNEL_ENDPOINT=http://127.0.0.1:{port}/mcp COLAB_KERNEL_TOKEN=local\
         \n  {program} install\
         \n  jupyter lab {notebook}",
        notebook = quoted(&notebook.to_string_lossy()),
    )
}

/// How this program is called from here: by its name if the search path finds it, else by its place.
fn program() -> String {
    const NAME: &str = "colab-kernel";
    let Ok(this) = std::env::current_exe() else {
        return NAME.to_owned();
    };
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&search)
        .filter_map(|directory| directory.join(NAME).canonicalize().ok())
        .next();
    if found == this.canonicalize().ok() {
        return NAME.to_owned();
    }
    let here = std::env::current_dir().unwrap_or_default();
    let place = this
        .strip_prefix(&here)
        .map_or(this.clone(), Path::to_owned);
    quoted(&place.to_string_lossy())
}

/// The text as one word of a POSIX shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
