//! `colab-kernel emulate`: the local Colab, until Ctrl-C.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use super::terminal::{Style, paint};
use crate::emulator::{Emulator, EmulatorConfig, PythonChoice, Quirks};

/// The port when none is given.
pub(super) const DEFAULT_PORT: u16 = 8642;

/// Run a local Colab to try things against, without an account.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Port on 127.0.0.1 (0 takes any free one)
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PORT)]
    pub port: u16,

    /// Python that has jupyter_server and ipykernel, instead of an environment made once in the cache directory
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,

    /// Choose how something behaves that Colab's documentation leaves open (repeatable)
    #[arg(long = "quirk", value_name = "NAME=VALUE", long_help = Quirks::help())]
    pub quirks: Vec<String>,
}

/// Serves until Ctrl-C or SIGTERM, then ends every runtime.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut quirks = Quirks::default();
    for setting in &args.quirks {
        quirks.set(setting)?;
    }
    let config = EmulatorConfig {
        quirks,
        ..config(args.port, args.python)
    };
    let mut stop = std::pin::pin!(stop_signal()?);
    let emulator = tokio::select! {
        started = Emulator::start(config) => started?,
        () = &mut stop => return Ok(()),
    };
    let endpoint = emulator.endpoint();
    // A closed terminal is no reason to stop serving.
    let _ = writeln!(
        io::stdout(),
        "Local Colab at {endpoint}\n\n\
         export COLAB_KERNEL_ENDPOINT={endpoint}\n\
         export COLAB_KERNEL_TOKEN=local\n\n\
         Set both in another terminal, then open a notebook there with the kernel \"Colab (remote)\".\n\
         Any token will do; each names an account of its own. Ctrl-C ends the emulator and its runtimes."
    );
    stop.await;
    eprintln!("Ending the runtimes");
    emulator.shutdown().await;
    Ok(())
}

/// An emulator on this port with this Python, its set-up told on standard error.
pub(super) fn config(port: u16, python: Option<PathBuf>) -> EmulatorConfig {
    EmulatorConfig {
        port,
        python: python.map_or_else(PythonChoice::default, PythonChoice::Path),
        progress: Some(Arc::new(|line| {
            eprintln!("{}", paint(line, Style::Faint, &io::stderr()));
        })),
        ..EmulatorConfig::default()
    }
}

/// Resolves at Ctrl-C or SIGTERM. Listening begins with this call, not with the first poll.
pub(super) fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        Ok(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        })
    }
    #[cfg(not(unix))]
    {
        Ok(async {
            // Without the signal the process still ends with its console window.
            let _ = tokio::signal::ctrl_c().await;
        })
    }
}
