//! The kernel over a scripted backend: what front-ends rely on, whatever runs the cells.

mod cells;
mod comms;
mod outputs;
mod prompts;
mod questions;
mod scripted;
