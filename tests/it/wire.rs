//! The wire against raw clients and against the `zeromq` crate's sockets.
//!
//! The kernel behind it here is a parrot: every request on shell and control gets busy, a reply with its content, and idle.

mod client;
mod parrot;
mod peers;
mod publisher;
mod strangers;
mod text;

use std::time::Duration;

/// No test takes longer.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a test body within the time limit.
async fn within<T>(body: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, body)
        .await
        .expect("the test took too long")
}
