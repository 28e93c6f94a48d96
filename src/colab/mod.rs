//! Running cells on Colab through its MCP server.
//!
//! [`mcp`] speaks the protocol, [`api`] names the ten tools, [`retry`] says what is tried again and [`waiting`] carries that out;
//! [`names`] turns what the service refuses into what the user reads. [`runtime`] picks a machine, [`session`] keeps the one
//! session of this process, `cell` runs one cell through [`execution`] (the call itself, its repetition, its interrupt), with
//! [`helper`] for the Python that is ours. [`progress`] reads what was printed, [`text`] publishes it exactly once,
//! [`reconcile`] finds what the result adds; [`files`] fetches rich outputs (over [`runtime_http`]) and [`bundle`] reads them.
//! [`companion`] reaches the session's own kernel. All of it asks for Colab through [`service`]. [`session::ColabBackend`] is the
//! [`crate::backend::Backend`].

pub mod api;
mod beside;
pub mod bundle;
mod cell;
pub mod companion;
pub mod execution;
pub mod files;
pub mod helper;
pub mod ledger;
mod live;
pub mod mcp;
pub mod names;
mod own;
pub mod progress;
mod prompt;
pub mod reconcile;
pub mod retry;
pub mod runtime;
pub mod runtime_http;
pub mod service;
pub mod session;
pub mod text;
pub mod waiting;

use tokio::time::{Instant, sleep_until};

/// Waits until then; for ever, where there is no such time.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod backend_tests;
#[cfg(test)]
mod fake;
