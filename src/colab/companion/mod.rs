//! The companion: the session's own kernel, reached through the runtime's Jupyter server beside `execute_code`.
//!
//! [`find`] tells which kernel is ours, [`rest`] asks the server, [`channels`] speaks to the kernel and [`wire`] says how its
//! messages look on a WebSocket.

pub mod channels;
pub mod find;
mod pulse;
mod pump;
pub mod rest;
pub mod wire;
