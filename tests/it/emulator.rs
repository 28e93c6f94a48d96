//! The emulator against raw MCP requests.

mod cancel;
mod execute;
mod files;
pub mod lab;
mod lifecycle;
mod quirks;
mod reattach;
mod socket;
mod tools;
mod transport;
mod websocket;
