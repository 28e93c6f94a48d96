//! The emulator against raw MCP requests.

mod cancel;
mod colab_kernel;
mod companion;
mod execute;
mod files;
mod gateway;
pub mod lab;
mod lifecycle;
mod quirks;
mod reattach;
mod socket;
mod tools;
mod transport;
mod websocket;
