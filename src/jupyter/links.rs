//! The client connections of one ROUTER socket, as gate and outbox see them.
//!
//! Each connection has a number, and `zeromq` knows it by a name that begins with this number. So a client that comes back
//! under its old identity takes it over at once (ROUTER handover), whatever still happens to its old connection, and what was
//! written to which connection is known exactly.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

/// Bytes and messages that may wait for one client. Beyond them it is disconnected: it does not read, and others must not wait
/// for it. (`zeromq` itself would block all clients at 100,000 messages.)
const WAITING_BYTES: u64 = 64 * 1024 * 1024;
const WAITING_MESSAGES: u64 = 50_000;

/// `zeromq` takes names of at most 255 bytes.
const NAME_LIMIT: usize = 255;
const NUMBER_LEN: usize = 4;

/// One client connection.
#[derive(Debug)]
pub(super) struct Link {
    number: u32,
    identity: Bytes,
    queued_messages: AtomicU64,
    queued_bytes: AtomicU64,
    progress: watch::Sender<Progress>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// `zeromq` knows the connection, so messages can be sent to it.
    ready: bool,
    closed: bool,
    written_messages: u64,
    written_bytes: u64,
}

impl Link {
    /// The name under which `zeromq` knows the connection.
    pub(super) fn name(&self) -> Bytes {
        let mut name = BytesMut::with_capacity(NUMBER_LEN + self.identity.len());
        name.extend_from_slice(&self.number.to_be_bytes());
        name.extend_from_slice(&self.identity);
        name.truncate(NAME_LIMIT);
        name.freeze()
    }

    /// Counts a message that is about to be sent. `false`: the client has left too much unread, and is disconnected.
    pub(super) fn queue(&self, bytes: usize) -> bool {
        let progress = *self.progress.borrow();
        let messages = self.queued_messages.fetch_add(1, Ordering::Relaxed);
        let before = self.queued_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if before.saturating_sub(progress.written_bytes) <= WAITING_BYTES
            && messages.saturating_sub(progress.written_messages) <= WAITING_MESSAGES
        {
            return true;
        }
        self.close();
        false
    }

    /// Counts what has been written to the client's socket.
    pub(super) fn wrote(&self, messages: u64, bytes: usize) {
        self.progress.send_modify(|progress| {
            progress.written_messages += messages;
            progress.written_bytes += bytes as u64;
        });
    }

    pub(super) fn close(&self) {
        self.progress.send_modify(|progress| progress.closed = true);
    }

    pub(super) async fn closed(&self) {
        self.until(|progress| progress.closed).await;
    }

    fn set_ready(&self) {
        self.progress
            .send_if_modified(|progress| !std::mem::replace(&mut progress.ready, true));
    }

    /// Waits until messages can be sent to it. `false`: it is closed.
    pub(super) async fn ready(&self) -> bool {
        !self
            .until(|progress| progress.ready || progress.closed)
            .await
            .closed
    }

    /// Waits until everything that has been queued so far is written, or the client is gone.
    async fn flushed(&self) {
        let target = self.queued_messages.load(Ordering::Relaxed);
        self.until(|progress| progress.closed || progress.written_messages >= target)
            .await;
    }

    async fn until(&self, done: impl FnMut(&Progress) -> bool) -> Progress {
        let mut progress = self.progress.subscribe();
        // The sender lives in `self`, so the channel cannot be closed here.
        match progress.wait_for(done).await {
            Ok(progress) => *progress,
            Err(_) => Progress {
                closed: true,
                ..Progress::default()
            },
        }
    }
}

/// A connection's place in the table, which it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Entered {
    links: Arc<Links>,
    link: Arc<Link>,
}

impl std::ops::Deref for Entered {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.links.remove(&self.link);
    }
}

/// All connections of one socket.
#[derive(Debug, Default)]
pub(super) struct Links(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last: u32,
    by_number: HashMap<u32, Arc<Link>>,
    by_identity: HashMap<Bytes, Arc<Link>>,
}

impl Links {
    /// Enters a connection. One that had the same identity is closed.
    pub(super) fn enter(self: &Arc<Self>, identity: &Bytes) -> Entered {
        Entered {
            links: self.clone(),
            link: self.add(identity),
        }
    }

    fn add(&self, identity: &Bytes) -> Arc<Link> {
        let mut table = self.table();
        table.last = table.last.wrapping_add(1);
        let number = table.last;
        // A client without a name gets one of the kind that ZeroMQ keeps for this: it begins with a zero byte.
        let identity = if identity.first().is_none_or(|byte| *byte == 0) {
            let mut name = BytesMut::from(&[0][..]);
            name.extend_from_slice(&number.to_be_bytes());
            name.freeze()
        } else {
            identity.clone()
        };
        let link = Arc::new(Link {
            number,
            identity: identity.clone(),
            queued_messages: AtomicU64::new(0),
            queued_bytes: AtomicU64::new(0),
            progress: watch::Sender::default(),
        });
        table.by_number.insert(number, link.clone());
        if let Some(old) = table.by_identity.insert(identity, link.clone()) {
            old.close();
        }
        link
    }

    fn remove(&self, link: &Arc<Link>) {
        link.close();
        let mut table = self.table();
        table.by_number.remove(&link.number);
        if table
            .by_identity
            .get(&link.identity)
            .is_some_and(|latest| latest.number == link.number)
        {
            table.by_identity.remove(&link.identity);
        }
    }

    /// The connection to which messages for this identity go.
    pub(super) fn find(&self, identity: &[u8]) -> Option<Arc<Link>> {
        self.table().by_identity.get(identity).cloned()
    }

    /// The connection that `zeromq` knows by this name.
    pub(super) fn named(&self, name: &[u8]) -> Option<Arc<Link>> {
        let number = number_of(name)?;
        self.table().by_number.get(&number).cloned()
    }

    /// The client's identity, from the name under which `zeromq` has delivered a message of its. Also of one that is gone: what
    /// it sent before is still delivered.
    pub(super) fn identity(&self, name: &Bytes) -> Option<Bytes> {
        let number = number_of(name)?;
        if let Some(link) = self.table().by_number.get(&number) {
            link.set_ready();
            return Some(link.identity.clone());
        }
        Some(name.slice(NUMBER_LEN..))
    }

    /// Notes that `zeromq` knows the connection of this name.
    pub(super) fn mark_ready(&self, name: &[u8]) {
        if let Some(link) = self.named(name) {
            link.set_ready();
        }
    }

    /// Waits until everything queued so far has been written to its client, or its client is gone.
    pub(super) async fn flushed(&self) {
        let all: Vec<_> = self.table().by_number.values().cloned().collect();
        for link in all {
            link.flushed().await;
        }
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn number_of(name: &[u8]) -> Option<u32> {
    name.first_chunk().copied().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn a_second_connection_of_an_identity_takes_it_over() {
        let links = Links::default();
        let identity = Bytes::from_static(b"client");
        let old = links.add(&identity);
        let new = links.add(&identity);
        old.closed().await;
        assert_eq!(links.find(&identity).unwrap().number, new.number);
        links.remove(&old);
        assert_eq!(links.find(&identity).unwrap().number, new.number);
        links.remove(&new);
        assert!(links.find(&identity).is_none());
        assert_eq!(
            links.identity(&new.name()).unwrap(),
            identity,
            "of one that is gone"
        );
    }

    #[test]
    fn anonymous_clients_are_told_apart_and_long_names_survive() {
        let links = Links::default();
        let first = links.add(&Bytes::new());
        let second = links.add(&Bytes::new());
        assert_ne!(first.identity, second.identity);
        let long = Bytes::from(vec![b'x'; 255]);
        let link = links.add(&long);
        assert!(link.name().len() <= NAME_LIMIT);
        assert_eq!(links.identity(&link.name()).unwrap(), long);
    }

    #[tokio::test]
    async fn flushing_waits_for_what_was_queued_and_not_for_who_is_gone() {
        let links = Links::default();
        let reader = links.add(&Bytes::from_static(b"reader"));
        let gone = links.add(&Bytes::from_static(b"gone"));
        assert!(reader.queue(10) && gone.queue(10));
        let mut flushed = std::pin::pin!(links.flushed());
        let mut context = Context::from_waker(Waker::noop());
        assert!(flushed.as_mut().poll(&mut context).is_pending());
        reader.wrote(1, 10);
        assert!(flushed.as_mut().poll(&mut context).is_pending());
        links.remove(&gone);
        flushed.await;
    }

    #[test]
    fn a_client_that_leaves_too_much_unread_is_disconnected() {
        let links = Links::default();
        let link = links.add(&Bytes::from_static(b"x"));
        assert!(
            link.queue(300 * 1024 * 1024),
            "one large reply is no backlog"
        );
        assert!(!link.queue(1));
    }
}
