//! The iopub publisher.

use std::time::Duration;

use serde::Serialize;

use super::message::{OutMessage, Parent};

/// A handle on the publisher.
#[derive(Debug, Clone)]
pub struct IoPub {}

impl IoPub {
    /// Publishes a message.
    pub async fn publish(&self, parent: &Parent, msg_type: &str, content: &impl Serialize) {
        let _ = (parent, msg_type, content);
        todo!()
    }

    /// Publishes a message with metadata or buffers.
    pub async fn send(&self, msg: OutMessage) {
        let _ = msg;
        todo!()
    }

    /// Waits until everything published so far has been written to the subscribers' sockets. `false`: not within `limit`.
    pub async fn flush(&self, limit: Duration) -> bool {
        let _ = limit;
        todo!()
    }
}
