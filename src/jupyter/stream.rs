//! The coalescer of one cell's text.

use tokio::time::Instant;

use super::iopub::IoPub;
use super::message::Parent;
use crate::backend::StreamName;

/// Gathers one cell's text into few `stream` messages.
#[derive(Debug)]
pub struct Coalescer {}

impl Coalescer {
    /// A coalescer for the cell of this request.
    pub fn new(iopub: IoPub, parent: Parent) -> Self {
        let _ = (iopub, parent);
        todo!()
    }

    /// Takes text; may wait, which is the back-pressure.
    pub async fn push(&mut self, name: StreamName, text: &str) {
        let _ = (name, text);
        todo!()
    }

    /// When [`Self::flush_due`] must be called.
    pub fn due(&self) -> Option<Instant> {
        todo!()
    }

    /// Publishes what is due.
    pub async fn flush_due(&mut self) {
        todo!()
    }

    /// Publishes everything: before any display, result, error or idle.
    pub async fn flush(&mut self) {
        todo!()
    }
}
