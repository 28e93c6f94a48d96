//! A Jupyter kernel whose cells run on Google Colab.
//!
//! ```text
//! front-end ──ZeroMQ──► jupyter ──requests──► kernel ──Backend──► colab ──MCP over HTTPS──► Colab
//!     ▲                                         │                   │
//!     └───────────── iopub ◄────────────────────┴────── Event ◄─────┘
//! ```
//!
//! * [`jupyter`] is the wire: connection file, signing, the gate, the sockets, the iopub publisher. It knows nothing of Colab.
//! * [`kernel`] is what makes a process a kernel: busy and idle, the queue, counters, history, interrupts.
//! * [`backend`] is the border: one trait whose executions yield events and end in an outcome.
//! * [`colab`] runs cells through Colab's MCP server. It knows nothing of ZeroMQ.
//! * [`auth`] finds a bearer token, [`config`] gathers the settings, [`logging`] keeps the log, [`cli`] holds one file per
//!   command.
//! * [`emulator`] is a local Colab for trying, testing and CI.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod auth;
pub mod backend;
pub mod cli;
pub mod colab;
pub mod config;
pub mod emulator;
pub mod jupyter;
pub mod kernel;
pub mod logging;
