//! `colab-kernel kernel`: what a front-end starts.
//!
//! Everything before the ports are bound is reading two small files: a front-end waits for the first answer, and asks for it
//! before the user has asked for anything remote.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;

use super::terminal;
use crate::auth::{Credentials, Environment};
use crate::backend::Backend;
use crate::colab::companion::CompanionSettings;
use crate::colab::companion::page::Page;
use crate::colab::mcp::Client;
use crate::colab::runtime::BackendSettings;
use crate::colab::session::ColabBackend;
use crate::config::{BackendKind, Flags, Secret, Settings};
use crate::jupyter::ConnectionInfo;
use crate::kernel::{self, Options};
use crate::logging;

/// Serve a front-end (this is what the kernelspec starts).
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Connection file that the front-end has written
    #[arg(short = 'f', long = "connection-file", value_name = "FILE")]
    pub connection_file: PathBuf,

    /// How cells reach Colab: mcp
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,

    /// Accelerator of the runtime, such as T4 or A100
    #[arg(long, value_name = "NAME")]
    pub accelerator: Option<String>,

    /// Use a runtime with more memory
    #[arg(long)]
    pub highmem: bool,

    /// Runtime to use: its name, or `new`
    #[arg(long, value_name = "NAME")]
    pub runtime: Option<String>,

    /// MCP endpoint to use instead of Colab's
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
}

/// Serves until the front-end asks for the end, the process is terminated or its parent dies.
pub fn run(args: Args) -> anyhow::Result<()> {
    let settings = Settings::load(&Flags {
        endpoint: args.endpoint,
        accelerator: args.accelerator,
        highmem: args.highmem,
        runtime: args.runtime,
        backend: args.backend,
    })?;
    let connection = ConnectionInfo::load(&args.connection_file)?;
    logging::start(&settings, "kernel", secrets(&settings))?;
    report_panics();
    super::block_on(async {
        let options = Options {
            state_dir: Some(settings.state_dir.clone()),
            widgets: settings.widgets,
        };
        Ok(kernel::run(connection, backend(settings)?, options).await?)
    })
}

/// What must not be in the log.
fn secrets(settings: &Settings) -> Vec<Secret> {
    let forwarded = settings.forward_env.iter().map(|(_, value)| value.clone());
    settings
        .token
        .clone()
        .into_iter()
        .chain(forwarded)
        .collect()
}

/// The backend that the settings ask for. It contacts nothing yet.
fn backend(settings: Settings) -> anyhow::Result<impl Backend> {
    let BackendKind::Mcp = settings.backend;
    let credentials = Credentials::new(
        settings.token.map(Secret::into_inner),
        settings.quota_project,
        Environment::from_process(),
    );
    let client = Client::new(settings.endpoint, Arc::new(credentials))?;
    let forwarded = settings.forward_env.into_iter();
    let companion = settings.companion.then(|| CompanionSettings {
        journal_bytes: settings.journal_bytes,
        forwarded: Page::new(
            forwarded
                .map(|(name, value)| (name, value.into_inner()))
                .collect(),
        ),
    });
    let wanted = BackendSettings {
        accelerator: settings.accelerator,
        highmem: settings.highmem,
        runtime: settings.runtime,
        companion,
    };
    Ok(ColabBackend::new(client, wanted))
}

/// Standard error is shown to the user when a kernel dies: one line there, the same in the log.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let place = place.as_deref().unwrap_or("an unknown place");
        let what = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(place, what, "panic");
        terminal::report(&anyhow!("Internal error at {place}: {what}"));
    }));
}
