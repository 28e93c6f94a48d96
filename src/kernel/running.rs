//! What is being served: `busy` and `idle` around it, and the token by which an interrupt reaches it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::jupyter::iopub::IoPub;
use crate::jupyter::message::Parent;

/// Publishes `busy`, awaits the work, publishes `idle`: on every path, a panic included.
pub async fn while_busy<T>(
    iopub: &IoPub,
    parent: &Parent,
    work: impl Future<Output = T>,
) -> Option<T> {
    let status = |state: &str| json!({"execution_state": state});
    iopub.publish(parent, "status", &status("busy")).await;
    let result = AssertUnwindSafe(work).catch_unwind().await;
    iopub.publish(parent, "status", &status("idle")).await;
    result.ok()
}

/// The request of the queue that is served now, as far as an interrupt needs to know it.
#[derive(Debug, Default)]
pub struct Running {
    current: Mutex<Option<CancellationToken>>,
    closing: CancellationToken,
}

impl Running {
    /// Interrupts what runs; harmless when nothing does.
    pub fn interrupt(&self) {
        if let Some(token) = &*self.current() {
            token.cancel();
        }
    }

    /// Interrupts what runs and lets nothing further begin.
    pub fn close(&self) {
        self.closing.cancel();
        self.interrupt();
    }

    /// Waits until [`Self::close`] has been called.
    pub async fn closed(&self) {
        self.closing.cancelled().await;
    }

    /// A token for the next request. After [`Self::close`] it is cancelled from the start.
    pub(super) fn begin(&self) -> CancellationToken {
        let token = self.closing.child_token();
        *self.current() = Some(token.clone());
        token
    }

    pub(super) fn end(&self) {
        *self.current() = None;
    }

    fn current(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
