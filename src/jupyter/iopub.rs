//! The iopub publisher: ZMTP 3.1 towards SUB and XSUB sockets, over tcp or ipc.
//!
//! * All subscribers get all messages of their topics in the order in which they were published, except for what the policy in
//!   `subscriber.rs` says of one that does not read.
//! * `iopub_welcome` is sent at each new subscription, before anything else of it (JEP 65).
//! * Publishing waits only for subscribers that read; [`IoPub::flush`] waits until the bytes are in their sockets.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncRead, BufReader};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::files::SocketGuard;
use super::listen::{Accepted, Listener};
use super::message::{OutMessage, Parent, Session};
use super::pace::Pace;
use super::subscriber::{Lost, Published, Room, Subscriber};
use super::zmtp::{self, Frame, Role};

/// What the system may keep for one subscriber. Small, so that progress shows soon when it reads slowly.
pub(super) const SEND_BUFFER: u32 = 256 * 1024;

const XPUB: Role = Role {
    socket_type: "XPUB",
    accepts: &["SUB", "XSUB"],
    minor: 1,
};

/// How long a subscriber may read nothing while others wait for the next message, and while nobody else does. A ZeroMQ client
/// that works slowly through a full queue (1000 messages) does not read before it is half empty.
const PATIENCE_OF_OTHERS: Duration = Duration::from_secs(1);
const PATIENCE_ALONE: Duration = Duration::from_secs(10);

/// Subscribers send topics and heartbeats only.
const FRAME_LIMIT: u64 = 4096;

/// A handle on the publisher.
#[derive(Debug, Clone)]
pub struct IoPub {
    shared: Arc<Shared>,
    _guard: SocketGuard,
}

#[derive(Debug)]
struct Shared {
    session: Arc<Session>,
    subscribers: Mutex<Vec<Arc<Subscriber>>>,
    /// Some subscriber has read, or has left.
    moved: Notify,
    pace: Pace,
}

impl IoPub {
    pub(super) fn new(session: Arc<Session>, listener: Listener, guard: SocketGuard) -> Self {
        let shared = Arc::new(Shared {
            session,
            subscribers: Mutex::default(),
            moved: Notify::new(),
            pace: Pace::default(),
        });
        guard.spawn(shared.clone().run(listener));
        Self {
            shared,
            _guard: guard,
        }
    }

    /// Publishes a message.
    pub async fn publish(&self, parent: &Parent, msg_type: &str, content: &impl Serialize) {
        self.send(OutMessage::new(msg_type, parent, content)).await;
    }

    /// Publishes a message with metadata or buffers.
    pub async fn send(&self, message: OutMessage) {
        if self.shared.subscribers().is_empty() {
            return;
        }
        let message = self.shared.encode(message);
        loop {
            let moved = self.shared.moved.notified();
            tokio::pin!(moved);
            // Progress between the look and the wait must not be missed.
            moved.as_mut().enable();
            let Some(until) = self.shared.deliver(&message) else {
                break;
            };
            tokio::select! {
                () = moved => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
        // A publisher with much to say must let the writers write.
        tokio::task::yield_now().await;
    }

    /// Waits until everything published so far has been written to the subscribers' sockets; those that are gone or stalled do
    /// not count. `false`: not within `limit`.
    pub async fn flush(&self, limit: Duration) -> bool {
        let targets: Vec<_> = self
            .shared
            .subscribers()
            .iter()
            .map(|subscriber| (subscriber.clone(), subscriber.pushed()))
            .collect();
        let settled = async {
            loop {
                let moved = self.shared.moved.notified();
                tokio::pin!(moved);
                moved.as_mut().enable();
                if targets.iter().all(|(who, target)| who.settled(*target)) {
                    return;
                }
                moved.await;
            }
        };
        tokio::time::timeout(limit, settled).await.is_ok()
    }

    /// Waits until one more `stream` message, of so many bytes of text, may be published.
    pub(super) async fn pace(&self, bytes: usize) {
        self.shared.pace.wait(bytes).await;
    }
}

impl Shared {
    /// Lets subscribers in, for ever.
    async fn run(self: Arc<Self>, listener: Listener) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                client = listener.accept() => {
                    connections.spawn(self.clone().serve(client));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn serve(self: Arc<Self>, client: Accepted) {
        let Accepted {
            mut stream,
            slot: _slot,
        } = client;
        if let Err(error) = zmtp::handshake(&mut stream, XPUB).await {
            tracing::debug!(%error, "a connection was no subscriber's");
            return;
        }
        let entered = Entered::new(&self);
        let subscriber = &entered.subscriber;
        let (reader, writer) = tokio::io::split(stream);
        let end = tokio::select! {
            end = self.listen_to(subscriber, reader) => end,
            end = subscriber.write_to(writer, &self.moved) => end,
            () = subscriber.closed() => Ok(()),
        };
        if let Err(error) = end {
            tracing::debug!(%error, "a subscriber's connection ended");
        }
    }

    /// Reads a subscriber's subscriptions and heartbeats.
    async fn listen_to(
        &self,
        subscriber: &Subscriber,
        reader: impl AsyncRead + Unpin,
    ) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(1024, reader);
        let mut within_message = false;
        loop {
            let frame = zmtp::read_frame(&mut reader, FRAME_LIMIT).await?;
            let whole = frame.command || !(frame.more || within_message);
            if !frame.command {
                within_message = frame.more;
            }
            // A message of several frames is no subscription.
            if whole {
                self.act_on(subscriber, &frame);
            }
        }
    }

    fn act_on(&self, subscriber: &Subscriber, frame: &Frame) {
        let body = &frame.body;
        let after = |prefix: &[u8]| body.starts_with(prefix).then(|| body.slice(prefix.len()..));
        if frame.command {
            if let Some(topic) = after(b"\x09SUBSCRIBE") {
                self.subscribe(subscriber, topic);
            } else if let Some(topic) = after(b"\x06CANCEL") {
                subscriber.cancel(&topic);
            } else if let Some(pong) = zmtp::pong(body) {
                subscriber.answer(pong);
            }
        } else if let Some(topic) = after(b"\x01") {
            self.subscribe(subscriber, topic);
        } else if let Some(topic) = after(b"\x00") {
            subscriber.cancel(&topic);
        }
    }

    fn subscribe(&self, subscriber: &Subscriber, topic: Bytes) {
        let content = json!({"subscription": String::from_utf8_lossy(&topic)});
        let welcome = OutMessage::new("iopub_welcome", &Parent::none(), &content);
        let welcome = self.wire(topic.clone(), welcome);
        subscriber.subscribe(topic, welcome);
    }

    /// Gives the message to everybody who wants it. `Some`: not yet; look again at that time or when somebody has moved.
    fn deliver(&self, message: &Published) -> Option<Instant> {
        let subscribers = self.subscribers();
        let now = Instant::now();
        let patience = if subscribers.iter().any(|other| other.keeps_up()) {
            PATIENCE_OF_OTHERS
        } else {
            PATIENCE_ALONE
        };
        let wait = subscribers
            .iter()
            .filter_map(|subscriber| match subscriber.room(message, now, patience) {
                Room::Free => None,
                Room::Wait(until) => Some(until),
            })
            .min();
        if wait.is_some() {
            return wait;
        }
        for subscriber in subscribers.iter() {
            if let Some(lost) = subscriber.take_lost() {
                subscriber.take(&self.notice(&lost));
            }
            subscriber.take(message);
        }
        None
    }

    /// Tells a subscriber what it has missed.
    fn notice(&self, lost: &Lost) -> Published {
        let text = format!(
            "\n[colab-kernel: about {} KB of output were not delivered to this client because it did not read them]\n",
            lost.bytes.div_ceil(1000)
        );
        let content = json!({"name": "stderr", "text": text});
        self.encode(OutMessage::new("stream", &lost.parent, &content))
    }

    fn encode(&self, message: OutMessage) -> Published {
        let topic = format!("kernel.{}.{}", self.session.id(), message.msg_type);
        Published {
            text: message.msg_type == "stream",
            parent: message.parent.clone(),
            wire: self.wire(topic.clone().into(), message),
            topic,
        }
    }

    fn wire(&self, topic: Bytes, message: OutMessage) -> Bytes {
        let mut frames = self.session.encode(message);
        frames.insert(0, topic);
        zmtp::message(&frames)
    }

    fn subscribers(&self) -> MutexGuard<'_, Vec<Arc<Subscriber>>> {
        self.subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscriber's place in the list, which it leaves when this is dropped.
struct Entered<'a> {
    shared: &'a Shared,
    subscriber: Arc<Subscriber>,
}

impl<'a> Entered<'a> {
    fn new(shared: &'a Shared) -> Self {
        let subscriber = Arc::new(Subscriber::new());
        shared.subscribers().push(subscriber.clone());
        Self { shared, subscriber }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.subscriber.leave();
        self.shared
            .subscribers()
            .retain(|other| !Arc::ptr_eq(other, &self.subscriber));
        self.shared.moved.notify_waiters();
    }
}
