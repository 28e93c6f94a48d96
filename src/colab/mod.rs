//! Running cells on Colab through its MCP server.
//!
//! [`mcp`] speaks the protocol, [`api`] names the ten tools, [`retry`] says what is tried again; [`runtime`] picks a machine,
//! [`session`] keeps the one session of this process, [`execution`] runs one cell, [`text`] publishes what it printed exactly
//! once, [`files`] fetches rich outputs. [`session::ColabBackend`] is the [`crate::backend::Backend`].

pub mod api;
pub mod bundle;
mod cell;
pub mod execution;
pub mod files;
pub mod helper;
pub mod mcp;
pub mod names;
pub mod progress;
pub mod reconcile;
pub mod retry;
pub mod runtime;
pub mod service;
pub mod session;
pub mod text;
pub mod waiting;

#[cfg(test)]
mod backend_tests;
#[cfg(test)]
mod fake;
