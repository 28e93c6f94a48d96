//! The `zeromq` crate's ROUTER sockets, each owned by two tasks, and the thread on which all of this runs.
//!
//! The crate keeps its peers in a map whose lock is taken both by tasks that may be suspended and by calls that block their
//! thread. On a runtime with several threads a client that comes while another goes can so stop a worker thread for good (seen
//! with version 0.7.0). On a single thread the lock is never contended, as long as no peer's queue of 100,000 messages is full,
//! which the [`links`](super::links) see to. So all calls of the crate are made on one thread; the gate is there too, and the
//! heartbeat answers whatever the rest of the process does.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use zeromq::{
    RouterRecvHalf, RouterSendHalf, SocketEvent, SocketRecv, SocketSend, ZmqError, ZmqMessage,
};

use super::links::{Link, Links};
use super::zmtp;

/// Messages that may wait for the kernel; the rest waits in the clients' sockets.
pub(super) const WAITING: usize = 8;

/// Starts the thread. It ends when the sender is dropped.
pub(super) fn thread() -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel();
    std::thread::Builder::new()
        .name("jupyter-wire".into())
        .spawn(move || {
            // An error is the sender's end as well.
            let _ = runtime.block_on(stopped);
        })?;
    Ok((handle, stop))
}

/// Tells the links which connections `zeromq` knows.
pub(super) async fn follow(
    mut events: impl futures_util::Stream<Item = SocketEvent> + Unpin,
    links: Arc<Links>,
) {
    while let Some(event) = events.next().await {
        if let SocketEvent::Accepted(_, name) = event {
            links.mark_ready(&name);
        }
    }
}

/// Hands on what comes in.
pub(super) async fn receive(mut router: RouterRecvHalf, inbox: mpsc::Sender<Vec<Bytes>>) {
    while let Some(message) = next(&mut router).await {
        if inbox.send(message.into_vec()).await.is_err() {
            return;
        }
    }
}

/// Sends what is to go out.
pub(super) async fn send(
    mut router: RouterSendHalf,
    mut outbox: mpsc::UnboundedReceiver<(Arc<Link>, Vec<Bytes>)>,
) {
    while let Some((link, frames)) = outbox.recv().await {
        let mut message = ZmqMessage::from(link.name());
        for frame in frames {
            message.push_back(frame);
        }
        pass_on(&mut router, &link, message).await;
    }
}

/// The heartbeat: every message goes back as it came.
pub(super) async fn echo(
    mut receiver: RouterRecvHalf,
    mut sender: RouterSendHalf,
    links: Arc<Links>,
) {
    while let Some(message) = next(&mut receiver).await {
        let link = message.get(0).and_then(|name| links.named(name));
        let Some(link) = link else {
            continue;
        };
        let size = message.iter().skip(1).map(Bytes::len).sum();
        if link.queue(size) {
            pass_on(&mut sender, &link, message).await;
        }
    }
}

async fn pass_on(router: &mut RouterSendHalf, link: &Link, message: ZmqMessage) {
    if let Err(error) = router.send(message).await {
        // The crate has lost the connection: nothing more will be written to it.
        tracing::debug!(%error, "could not send");
        link.close();
    }
}

/// The next message of any client; one client's bad connection ends nothing.
async fn next(router: &mut RouterRecvHalf) -> Option<ZmqMessage> {
    loop {
        match router.recv().await {
            Ok(message) => return Some(message),
            Err(ZmqError::NoMessage) => return None,
            Err(error) => tracing::debug!(%error, "a connection ended badly"),
        }
    }
}

/// Counts the message and hands it to the socket's sender. `false`: the client reads nothing and is disconnected.
pub(super) fn enqueue(
    outbox: &mpsc::UnboundedSender<(Arc<Link>, Vec<Bytes>)>,
    link: Arc<Link>,
    frames: Vec<Bytes>,
) -> bool {
    if !link.queue(zmtp::wire_len(&frames)) {
        return false;
    }
    if let Err(unsent) = outbox.send((link, frames)) {
        // The socket is closed.
        unsent.0.0.close();
    }
    true
}
