//! Integration tests, one binary: the wire against raw clients, the MCP client against foreign servers, the emulator against
//! raw requests, the commands against their contract, and the whole kernel against the emulator.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod backend;
mod client;
mod commands;
mod companion;
mod demo;
mod emulator;
mod kernel;
mod mcp_client;
mod node;
mod python;
mod python_env;
mod wire;
