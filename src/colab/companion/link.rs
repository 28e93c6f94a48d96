//! The connection to the session's kernel, kept up for as long as the session lives.
//!
//! One task owns the WebSocket: it opens it, opens it again with a fresh token when it is lost, hands replies to who asked, and the
//! numbered messages to the journal's reader. Invariants:
//!
//! * A request whose connection is lost before its reply ends with [`Away`]; none waits for ever without a connection.
//! * What the reader does not take in time is dropped here, never held without bound: the journal has it still.
//! * Once the bootstrap is in, an unnumbered message on iopub is the server's own, and only its sign is passed on.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::super::api::ConnectionInfo;
use super::super::runtime_http::RuntimeHttp;
use super::channels::{self, Incoming, OpenError, Outgoing, SendError};
use super::wire::{Channel, Message};

/// How many bytes of messages may wait for the journal's reader.
const INBOX_BYTES: usize = 16 * 1024 * 1024;
/// The pauses between attempts to connect again; the last one is kept.
const PAUSES: [u64; 6] = [0, 250, 500, 1000, 2000, 5000];
/// After so many attempts a service that counts requests is asked seldom only.
const MANY: usize = 30;
const LONG_PAUSE: u64 = 30_000;
/// How long an attempt to connect may take.
const OPEN_LIMIT: Duration = Duration::from_secs(15);
/// How long after its `idle` a control request may still get its reply.
const REPLY_GRACE: Duration = Duration::from_secs(1);

/// Why the runtime's address cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAddress {
    /// The runtime does not exist any more.
    #[error("the runtime is gone")]
    Gone,
    /// Something else, in words.
    #[error("{0}")]
    Failed(String),
}

/// A fresh address and token of the runtime.
pub type Address = Arc<
    dyn Fn() -> Pin<Box<dyn Future<Output = Result<ConnectionInfo, NoAddress>> + Send>>
        + Send
        + Sync,
>;

/// How the connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It stands.
    Up,
    /// It has been lost since then; it is being opened again.
    Away(Instant),
    /// The kernel is not the one any more that the bootstrap was put into.
    Lost(Loss),
}

/// By which sign the loss of a kernel showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its messages carry another journal's id.
    AnotherJournal,
    /// It does not know the bootstrap's requests.
    NoBootstrap,
    /// The server does not know it any more.
    AnotherKernel,
    /// Its runtime is gone.
    Runtime,
    /// It said that it ends, or the server said that it is started anew.
    Restarted,
}

/// There is no connection, or it was lost before the reply came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the runtime is lost")]
pub struct Away;

/// A number that the bootstrap gave.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Number {
    pub n: u64,
    pub journal: String,
}

/// What the link passes on to the journal's reader.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Nearly all of them are messages; a box for each would be the cost.
pub(super) enum News {
    /// A numbered message.
    Message(Number, Message, OwnedSemaphorePermit),
    /// Messages may have been dropped: the server said so, or the reader was behind.
    Dropped,
}

enum Command {
    Send(Message),
    Request(Message, oneshot::Sender<Message>),
}

/// A handle on the connection. Its task ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Link {
    commands: mpsc::UnboundedSender<Command>,
    health: watch::Receiver<Health>,
    lost: Arc<watch::Sender<Health>>,
    armed: Arc<AtomicBool>,
    session: Arc<str>,
}

/// Where the link's kernel is.
pub(super) struct Target {
    pub http: RuntimeHttp,
    pub address: Address,
    pub kernel: String,
}

impl Link {
    /// Opens the connection, once, and keeps it up from then on.
    pub(super) async fn open(
        target: Target,
        info: &ConnectionInfo,
    ) -> Result<(Self, mpsc::UnboundedReceiver<News>), OpenError> {
        let session: Arc<str> = uuid::Uuid::new_v4().to_string().into();
        let halves = channels::open(&target.http, info, &target.kernel, &session).await?;
        let (commands, queue) = mpsc::unbounded_channel();
        let (news, inbox) = mpsc::unbounded_channel();
        let health = Arc::new(watch::Sender::new(Health::Up));
        let armed = Arc::new(AtomicBool::new(false));
        let task = Task {
            target,
            session: session.clone(),
            commands: queue,
            news,
            room: Arc::new(Semaphore::new(INBOX_BYTES)),
            health: health.clone(),
            armed: armed.clone(),
            pending: HashMap::new(),
            told_dropped: false,
        };
        tokio::spawn(task.run(halves));
        let link = Self {
            commands,
            health: health.subscribe(),
            lost: health,
            armed,
            session,
        };
        Ok((link, inbox))
    }

    /// The session that our requests name.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// How the connection is, and how it changes.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// The bootstrap is in: from now on the kernel's own messages have numbers.
    pub(super) fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
    }

    /// Notes that the kernel is gone.
    pub(super) fn lose(&self, loss: Loss) {
        set(&self.lost, Health::Lost(loss));
    }

    /// Sends a message that gets no reply.
    pub fn send(&self, message: Message) {
        // Without a task there is no connection, which a sender of such a message cannot mend.
        let _ = self.commands.send(Command::Send(message));
    }

    /// Asks on the control channel, where requests are answered also while a cell runs.
    pub(super) fn ask(
        &self,
        msg_type: &str,
        content: &Value,
    ) -> impl Future<Output = Result<Message, Away>> + Send + use<> {
        let message = Message::new(Channel::Control, &self.session, msg_type, content);
        let link = self.clone();
        async move { link.request(message).await }
    }

    /// Waits while the connection is away; whether it stands then, or the kernel is lost.
    pub(super) async fn is_back(&self) -> bool {
        let mut health = self.health();
        let back = health.wait_for(|health| !matches!(health, Health::Away(_)));
        matches!(back.await.as_deref(), Ok(Health::Up))
    }

    /// Sends a request and waits for its reply, for as long as the connection stands.
    pub async fn request(&self, message: Message) -> Result<Message, Away> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(Command::Request(message, reply))
            .map_err(|_| Away)?;
        answer.await.map_err(|_| Away)
    }
}

/// Changes the health; a loss is final.
fn set(health: &watch::Sender<Health>, new: Health) {
    health.send_if_modified(|health| {
        let changes = !matches!(health, Health::Lost(_)) && *health != new;
        if changes {
            *health = new;
        }
        changes
    });
}

struct Pending {
    reply: oneshot::Sender<Message>,
    /// Set when `idle` came for it: the reply is due, if there will be one.
    idle_since: Option<Instant>,
    /// Whether nothing but the bootstrap answers it.
    of_bootstrap: bool,
    /// The question behind it that every kernel answers, once it has been asked. Replies keep their order.
    probe: Option<String>,
}

struct Task {
    target: Target,
    session: Arc<str>,
    commands: mpsc::UnboundedReceiver<Command>,
    news: mpsc::UnboundedSender<News>,
    room: Arc<Semaphore>,
    health: Arc<watch::Sender<Health>>,
    armed: Arc<AtomicBool>,
    pending: HashMap<String, Pending>,
    /// Whether the last that the reader was told is that messages were dropped.
    told_dropped: bool,
}

/// Why a connection is served no more.
enum End {
    Closed,
    Dropped,
}

impl Task {
    async fn run(mut self, mut halves: (Outgoing, Incoming)) {
        loop {
            let end = self.serve(halves).await;
            if matches!(end, End::Dropped) || self.is_lost() {
                return;
            }
            tracing::info!("the companion's connection is lost");
            // First, so that who is told by the end of a request finds it so.
            set(&self.health, Health::Away(Instant::now()));
            self.pending.clear();
            let Some(again) = self.reconnect().await else {
                return;
            };
            halves = again;
            tracing::info!("the companion is connected again");
            set(&self.health, Health::Up);
            self.tell_dropped();
        }
    }

    fn is_lost(&self) -> bool {
        matches!(*self.health.borrow(), Health::Lost(_))
    }

    async fn serve(&mut self, (outgoing, mut incoming): (Outgoing, Incoming)) -> End {
        let (writes, queue) = mpsc::unbounded_channel();
        let mut writer = tokio::spawn(write(outgoing, queue));
        let mut health = self.health.subscribe();
        let mut tick = tokio::time::interval(REPLY_GRACE / 2);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let end = loop {
            tokio::select! {
                _ = &mut writer => break End::Closed,
                message = incoming.recv() => match message {
                    Ok(message) => self.route(message),
                    Err(_) => break End::Closed,
                },
                command = self.commands.recv() => match command {
                    Some(Command::Send(message)) => { let _ = writes.send(message); }
                    Some(Command::Request(message, reply)) => {
                        self.expect_reply(&message, reply);
                        let _ = writes.send(message);
                    }
                    None => break End::Dropped,
                },
                // Noted by the reader.
                _ = health.wait_for(|health| matches!(health, Health::Lost(_))) => break End::Dropped,
                _ = tick.tick(), if !self.pending.is_empty() => self.look_for_silence(&writes),
            }
            if self.is_lost() {
                break End::Dropped;
            }
        };
        writer.abort();
        end
    }

    fn expect_reply(&mut self, message: &Message, reply: oneshot::Sender<Message>) {
        let Some(id) = message.id() else {
            return;
        };
        let pending = Pending {
            reply,
            idle_since: None,
            of_bootstrap: message
                .head()
                .is_some_and(|head| head.msg_type.starts_with("ck_")),
            probe: None,
        };
        self.pending.insert(id, pending);
        self.pending.retain(|_, pending| !pending.reply.is_closed());
    }

    /// A request to the bootstrap that came back `busy` and `idle` without a reply, for there may be no bootstrap any more. Or the reply is
    /// large and on its way yet: what is asked now is answered behind it.
    fn look_for_silence(&mut self, writes: &mpsc::UnboundedSender<Message>) {
        for pending in self.pending.values_mut() {
            let is_due = pending.of_bootstrap
                && pending.probe.is_none()
                && pending
                    .idle_since
                    .is_some_and(|since| since.elapsed() >= REPLY_GRACE);
            if is_due {
                let probe = Message::new(
                    Channel::Control,
                    &self.session,
                    "kernel_info_request",
                    &serde_json::json!({}),
                );
                pending.probe = probe.id();
                let _ = writes.send(probe);
            }
        }
    }

    /// Tells the reader once, however often it happens, that messages were dropped.
    fn tell_dropped(&mut self) {
        if !std::mem::replace(&mut self.told_dropped, true) {
            let _ = self.news.send(News::Dropped);
        }
    }

    fn route(&mut self, message: Message) {
        let parent = message.parent().map(|parent| parent.msg_id);
        match message.channel {
            Channel::Shell | Channel::Control => {
                let is_probed = |pending: &Pending| {
                    pending.probe.is_some() && pending.probe == parent && !pending.reply.is_closed()
                };
                if self.pending.values().any(is_probed) {
                    set(&self.health, Health::Lost(Loss::NoBootstrap));
                    return;
                }
                if let Some(pending) = parent.and_then(|id| self.pending.remove(&id)) {
                    let _ = pending.reply.send(message);
                }
            }
            Channel::IoPub => self.published(message, parent),
            // The bootstrap asks on iopub; what comes here is of another client's time.
            Channel::Stdin => {}
        }
    }

    fn published(&mut self, message: Message, parent: Option<String>) {
        #[derive(Deserialize)]
        struct Metadata {
            ck: Option<Number>,
        }
        #[derive(Deserialize)]
        struct Status {
            execution_state: String,
        }
        let state = || {
            message
                .content::<Status>()
                .map(|status| status.execution_state)
        };
        let number = message.metadata::<Metadata>().ok().and_then(|read| read.ck);
        let kind = message.head().map(|head| head.msg_type).unwrap_or_default();
        if kind == "status"
            && let Some(pending) = parent.and_then(|id| self.pending.get_mut(&id))
            && state().is_ok_and(|state| state == "idle")
        {
            pending.idle_since = Some(Instant::now());
        }
        if let Some(number) = number {
            let bytes = u32::try_from(message.size()).unwrap_or(u32::MAX);
            let bytes = bytes.min(INBOX_BYTES as u32);
            match self.room.clone().try_acquire_many_owned(bytes) {
                Ok(room) => {
                    self.told_dropped = false;
                    let _ = self.news.send(News::Message(number, message, room));
                }
                Err(_) => self.tell_dropped(),
            }
            return;
        }
        // Before that the kernel itself speaks without numbers.
        if !self.armed.load(Ordering::Relaxed) {
            return;
        }
        match kind.as_str() {
            "status" if state().is_ok_and(|state| matches!(&*state, "restarting" | "dead")) => {
                set(&self.health, Health::Lost(Loss::Restarted));
            }
            "shutdown_reply" => set(&self.health, Health::Lost(Loss::Restarted)),
            // The server's notice that it drops messages.
            "stream" => {
                self.told_dropped = false;
                self.tell_dropped();
            }
            _ => {}
        }
    }

    /// Opens the connection again; `None` when nobody needs it any more.
    async fn reconnect(&mut self) -> Option<(Outgoing, Incoming)> {
        let usual = PAUSES
            .into_iter()
            .chain(std::iter::repeat(PAUSES[PAUSES.len() - 1]));
        for pause in usual.take(MANY).chain(std::iter::repeat(LONG_PAUSE)) {
            let attempt = async {
                sleep(Duration::from_millis(pause)).await;
                let info = match (self.target.address)().await {
                    Ok(info) => info,
                    Err(NoAddress::Gone) => return Ok(Err(Loss::Runtime)),
                    Err(NoAddress::Failed(why)) => return Err(why),
                };
                let open =
                    channels::open(&self.target.http, &info, &self.target.kernel, &self.session);
                let opened = timeout(OPEN_LIMIT, open).await;
                let opened = opened.map_err(|_| "it took too long".to_owned())?;
                match opened {
                    // Sessions that are opened anew get another kernel.
                    Err(OpenError::NoKernel) => Ok(Err(Loss::AnotherKernel)),
                    opened => opened.map(Ok).map_err(|error| error.to_string()),
                }
            };
            let mut attempt = std::pin::pin!(attempt);
            let outcome = loop {
                tokio::select! {
                    outcome = &mut attempt => break outcome,
                    command = self.commands.recv() => {
                        // Dropped: the sender is told by its reply's end.
                        command?;
                    }
                }
            };
            if self.is_lost() {
                return None;
            }
            match outcome {
                Ok(Ok(halves)) => return Some(halves),
                Ok(Err(loss)) => {
                    set(&self.health, Health::Lost(loss));
                    return None;
                }
                Err(error) => tracing::debug!(error, "the companion cannot be connected again yet"),
            }
        }
        None
    }
}

async fn write(mut outgoing: Outgoing, mut queue: mpsc::UnboundedReceiver<Message>) {
    while let Some(message) = queue.recv().await {
        match outgoing.send(&message).await {
            Ok(()) => {}
            Err(SendError::TooLarge) => tracing::warn!(?message, "too large to be sent"),
            Err(SendError::Closed(_)) => return,
        }
    }
    // Not at the end of the handles but of the connection: its other half decides.
    std::future::pending().await
}
