//! What makes a process a kernel: start order, busy and idle, the queue, counters, history, interrupts, shutdown.

pub mod frontends;
pub mod history;
pub mod is_complete;
