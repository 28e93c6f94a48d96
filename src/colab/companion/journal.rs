//! Reading the journal: live messages and replays, brought into their order and handed out.
//!
//! One task owns the sequence. It asks the bootstrap for what is missing, acknowledges what was taken, and finds the end of an activity
//! also where no live message tells it. Invariants:
//!
//! * Nothing is handed out before what has a smaller number, and nothing twice.
//! * A poll adds a busy and an idle to the journal, so it is read up to the end that a poll has told, never "until nothing comes".
//! * Nothing is asked while nothing runs and nothing has been missed: an idle session costs no requests.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::super::until;
use super::activity::{Arrival, Destination, LetGo, Prompt, Routes, TableEntry};
use super::events;
use super::link::{Away, Health, Link, Loss, News};
use super::page::{self, Page};
use super::sequence::Sequence;
use super::wire::{Channel, Message};
use crate::backend::{Event, EventSender};

/// After this long without a message the end of the journal is asked for.
const SILENCE: Duration = Duration::from_secs(2);
/// The same while messages are being dropped.
const BEHIND: Duration = Duration::from_millis(100);
/// How long after an activity, or after messages were dropped, the end is still asked for: threads go on.
const AFTERGLOW: Duration = Duration::from_secs(8);
/// How long a sign of dropped messages counts.
const SIGN: Duration = Duration::from_secs(1);
/// How many bytes of messages one replay brings.
const REPLAY_BYTES: u64 = 4 * 1024 * 1024;
/// The least that this is brought down to where connections are lost over replays: something on the way may refuse large frames.
const SMALL_REPLAY_BYTES: u64 = 64 * 1024;
/// The pieces in which a message is fetched that is too large for the way here.
const SLICE_BYTES: u64 = 1024 * 1024;
/// How often the connection is lost over the same replay until it is fetched in pieces.
const LOST_OVER: u32 = 2;
/// How many bytes are taken before they are acknowledged in the middle of a flood.
const UNACKNOWLEDGED: usize = 8 * 1024 * 1024;

/// What a poll told, as far as others want to know.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// How many polls have been sent.
    pub sent: u64,
    /// Which of them was answered last.
    pub polls: u64,
    /// Whether everything that the last poll told of has been handed out.
    pub caught_up: bool,
}

/// A handle on the reader.
#[derive(Debug, Clone)]
pub struct Journal {
    pokes: mpsc::UnboundedSender<()>,
    told: watch::Receiver<Told>,
    position: watch::Receiver<u64>,
}

impl Journal {
    /// Starts to read behind `position`.
    pub(super) fn start(reader: Reader) -> Self {
        let (pokes, poked) = mpsc::unbounded_channel();
        let (told, telling) = watch::channel(Told::default());
        let (at, position) = watch::channel(reader.position);
        let task = Task {
            sequence: Sequence::new(reader.position),
            reader,
            told,
            at,
            dropped: None,
            last_message: Instant::now(),
            last_poll: Instant::now(),
            lively: Instant::now(),
            poked: false,
            unacknowledged: 0,
            replay_bytes: REPLAY_BYTES,
            replayed: 0,
            lost_over: (0, 0),
            slices: None,
        };
        tokio::spawn(task.run(poked));
        Self {
            pokes,
            told: telling,
            position,
        }
    }

    /// The number of the last message that was handed out.
    pub fn position(&self) -> u64 {
        *self.position.borrow()
    }

    /// Asks for the journal's end now.
    pub fn poke(&self) {
        let _ = self.pokes.send(());
    }

    /// What polls have told.
    pub fn told(&self) -> watch::Receiver<Told> {
        self.told.clone()
    }
}

/// What the reader works with.
pub(super) struct Reader {
    pub link: Link,
    pub inbox: mpsc::UnboundedReceiver<News>,
    pub routes: Arc<Routes>,
    pub background: EventSender,
    pub page: Page,
    /// The journal's id.
    pub id: String,
    pub position: u64,
}

#[derive(Debug, Deserialize)]
struct Status {
    status: String,
    first: u64,
    last: u64,
    #[serde(default)]
    inputs: Vec<Prompt>,
    #[serde(default)]
    requests: Vec<TableEntry>,
}

#[derive(Debug, Deserialize)]
struct Replay {
    status: String,
    #[serde(default)]
    first: u64,
    #[serde(default)]
    messages: Vec<(u64, usize)>,
    #[serde(default)]
    sizes: Vec<usize>,
}

type Asked = Pin<Box<dyn Future<Output = Result<Message, Away>> + Send>>;

enum Question {
    Status,
    Replay { from: u64 },
    Slice,
}

/// A message that is being fetched in pieces.
struct Slices {
    n: u64,
    bytes: Vec<u8>,
}

struct Task {
    reader: Reader,
    sequence: Sequence<Message>,
    told: watch::Sender<Told>,
    at: watch::Sender<u64>,
    /// When messages were dropped last.
    dropped: Option<Instant>,
    last_message: Instant,
    last_poll: Instant,
    /// When something ran last.
    lively: Instant,
    poked: bool,
    unacknowledged: usize,
    /// How many bytes a replay may bring now.
    replay_bytes: u64,
    /// The last number that came in a replay.
    replayed: u64,
    /// How often the connection was lost over the replay of this number.
    lost_over: (u64, u32),
    slices: Option<Slices>,
}

impl Task {
    async fn run(mut self, mut poked: mpsc::UnboundedReceiver<()>) {
        let mut health = self.reader.link.health();
        let mut asked: Option<(Question, Asked)> = None;
        loop {
            if matches!(*health.borrow_and_update(), Health::Lost(_)) {
                // What came before the loss is the last that is seen of the kernel.
                while let Ok(news) = self.reader.inbox.try_recv() {
                    if let News::Message(number, message, _room) = news {
                        self.live(number.n, &number.journal, message);
                    }
                }
                self.hand_out().await;
                return;
            }
            let is_up = *health.borrow() == Health::Up;
            if asked.is_none() && is_up {
                asked = self.question();
            }
            let poll_at = self.poll_at().filter(|_| asked.is_none() && is_up);
            tokio::select! {
                biased;
                reply = answer(&mut asked) => {
                    if let Some((question, _)) = asked.take() {
                        self.answered(question, reply).await;
                    }
                }
                news = self.reader.inbox.recv() => match news {
                    Some(News::Message(number, message, _room)) => {
                        self.live(number.n, &number.journal, message);
                        self.hand_out().await;
                    }
                    Some(News::Dropped) => self.dropped = Some(Instant::now()),
                    None => return,
                },
                poke = poked.recv() => match poke {
                    Some(()) => self.poked = true,
                    None => return,
                },
                () = until(poll_at) => self.poked = true,
                _ = health.changed() => {}
            }
        }
    }

    fn live(&mut self, n: u64, journal: &str, message: Message) {
        if journal != self.reader.id {
            self.reader.link.lose(Loss::AnotherJournal);
            return;
        }
        self.last_message = Instant::now();
        self.unacknowledged += message.size();
        self.sequence.take(n, message.size(), message);
    }

    /// What has to be asked now.
    fn question(&mut self) -> Option<(Question, Asked)> {
        if let Some(slices) = &self.slices {
            let content =
                json!({"from": slices.n, "offset": slices.bytes.len(), "length": SLICE_BYTES});
            return Some((Question::Slice, self.ask("ck_replay_request", content)));
        }
        if let Some(gap) = self.sequence.gap() {
            let from = *gap.start();
            let content = json!({"from": from, "to": gap.end(), "limit": self.replay_bytes});
            return Some((
                Question::Replay { from },
                self.ask("ck_replay_request", content),
            ));
        }
        if std::mem::take(&mut self.poked) || self.unacknowledged > UNACKNOWLEDGED {
            self.last_poll = Instant::now();
            self.told.send_modify(|told| told.sent += 1);
            let since = self.reader.routes.since(self.sequence.position());
            let content = json!({"since": since});
            return Some((Question::Status, self.ask("ck_status_request", content)));
        }
        None
    }

    fn ask(&mut self, kind: &str, mut content: Value) -> Asked {
        content["journal"] = self.reader.id.as_str().into();
        content["ack"] = self.sequence.position().into();
        self.unacknowledged = 0;
        Box::pin(self.reader.link.ask(kind, &content))
    }

    /// When the journal's end has to be asked for.
    fn poll_at(&self) -> Option<Instant> {
        let behind = self.dropped.filter(|since| since.elapsed() < SIGN);
        if behind.is_some() {
            return Some(self.last_poll + BEHIND);
        }
        let is_active = self.reader.routes.is_active();
        let is_lively = is_active
            || self.lively.elapsed() < AFTERGLOW
            || self
                .dropped
                .is_some_and(|since| since.elapsed() < AFTERGLOW);
        is_lively.then(|| self.last_message.max(self.last_poll) + SILENCE)
    }

    async fn answered(&mut self, question: Question, reply: Result<Message, Away>) {
        let Ok(reply) = reply else {
            if let Question::Replay { from } = question {
                self.replay_bytes = (self.replay_bytes / 8).max(SMALL_REPLAY_BYTES);
                let (n, times) = self.lost_over;
                self.lost_over = (from, if n == from { times + 1 } else { 1 });
                if self.lost_over.1 >= LOST_OVER {
                    tracing::info!(from, "a message is fetched in pieces");
                    self.slices = Some(Slices {
                        n: from,
                        bytes: Vec::new(),
                    });
                }
            }
            return;
        };
        match question {
            Question::Status => self.told_status(&reply).await,
            Question::Replay { .. } => self.told_replay(&reply).await,
            Question::Slice => {
                self.told_slice(&reply);
                self.hand_out().await;
            }
        }
    }

    async fn told_status(&mut self, reply: &Message) {
        let Some(status) = reply
            .content::<Status>()
            .ok()
            .filter(|status| status.status == "ok")
        else {
            self.refused(reply);
            return;
        };
        self.sequence.exists(status.last);
        self.begins_with(status.first).await;
        // An execution that began in what has left the journal is known before what it did is handed out.
        let position = self.sequence.position();
        let routes = Arc::clone(&self.reader.routes);
        if let Some((sender, began)) = routes.compare(&status.requests, position, digest) {
            let _ = sender.send(began).await;
        }
        self.hand_out().await;
        let caught_up = self.sequence.gap().is_none();
        if caught_up {
            // They are open now, and what was printed before them has been handed out.
            for prompt in status.inputs {
                if let Some((sender, prompt)) = routes.prompt(prompt) {
                    let _ = sender.send(prompt).await;
                }
            }
        }
        // Behind all that: who waits for this takes for granted that nothing is on its way.
        self.told.send_modify(|told| {
            told.polls = told.sent;
            told.caught_up = caught_up;
        });
    }

    async fn told_replay(&mut self, reply: &Message) {
        let Some(replay) = reply
            .content::<Replay>()
            .ok()
            .filter(|replay| replay.status == "ok")
        else {
            self.refused(reply);
            return;
        };
        let mut frames = reply.buffers.as_slice();
        for (n, count) in replay.messages {
            if count > frames.len() {
                break;
            }
            let (own, rest) = frames.split_at(count);
            frames = rest;
            if let Some(message) = Message::from_frames(Channel::IoPub, own) {
                self.replayed = self.replayed.max(n);
                self.sequence.take(n, message.size(), message);
            }
        }
        self.replay_bytes = (2 * self.replay_bytes).min(REPLAY_BYTES);
        self.hand_out().await;
        // What the journal has dropped since cannot be had: the next poll says where it begins.
        if replay.first > self.sequence.position() + 1 {
            self.poked = true;
            self.begins_with(replay.first).await;
            self.hand_out().await;
        }
    }

    fn told_slice(&mut self, reply: &Message) {
        let read = reply
            .content::<Replay>()
            .ok()
            .filter(|replay| replay.status == "ok");
        let (Some(read), Some(slices)) = (read, &mut self.slices) else {
            // It has left the journal meanwhile.
            self.slices = None;
            self.lost_over = (0, 0);
            self.poked = true;
            return;
        };
        if let Some(piece) = reply.buffers.first() {
            slices.bytes.extend_from_slice(piece);
        }
        if slices.bytes.len() < read.sizes.iter().sum() {
            return;
        }
        if let Some(slices) = self.slices.take() {
            let mut bytes = Bytes::from(slices.bytes);
            let frames: Vec<Bytes> = read
                .sizes
                .iter()
                .map(|size| bytes.split_to((*size).min(bytes.len())))
                .collect();
            if let Some(message) = Message::from_frames(Channel::IoPub, &frames) {
                self.sequence.take(slices.n, message.size(), message);
            }
        }
        self.lost_over = (0, 0);
    }

    fn refused(&mut self, reply: &Message) {
        #[derive(Deserialize)]
        struct Refusal {
            journal: Option<String>,
            evalue: Option<String>,
        }
        let refusal = reply.content::<Refusal>().ok();
        if refusal
            .as_ref()
            .and_then(|refusal| refusal.journal.as_ref())
            != Some(&self.reader.id)
        {
            self.reader.link.lose(Loss::AnotherJournal);
            return;
        }
        let why = refusal.and_then(|refusal| refusal.evalue);
        tracing::info!(why, "the journal refused a request");
        // It was evicted between two requests: where the journal begins now has to be asked for.
        self.sequence.forget_end();
        self.poked = true;
    }

    async fn begins_with(&mut self, first: u64) {
        let missing = self.sequence.begins_with(first);
        if missing == 0 {
            return;
        }
        tracing::warn!(
            missing,
            "messages have left the journal before they were read"
        );
        if let Some(sender) = self.reader.routes.sender() {
            let _ = sender.send(Arrival::Hole(missing)).await;
        }
    }

    /// Hands out what is in order.
    async fn hand_out(&mut self) {
        while let Some((n, message)) = self.sequence.advance() {
            if self.reader.routes.is_active() {
                self.lively = Instant::now();
            }
            // A prompt that comes late may have been answered or interrupted: the next poll tells which are open.
            if n <= self.replayed && is_prompt(&message) {
                self.poked = true;
                self.at.send_replace(n);
                continue;
            }
            let destination =
                self.reader
                    .routes
                    .destination(n, message, self.reader.link.session());
            match destination {
                Destination::Active(sender, arrivals) => {
                    for arrival in arrivals {
                        self.arrive(&sender, arrival).await;
                    }
                }
                Destination::End(sender) => self.end(&sender).await,
                Destination::Background(origin, message) => {
                    if !self.is_for_the_page(&message)
                        && let Some(event) = events::event(&message)
                    {
                        let event = Event::Of(origin, Box::new(event));
                        self.reader.background.send(event).await;
                    }
                }
                Destination::Farewell => self.reader.link.lose(Loss::Restarted),
                Destination::Nobody => {}
            }
            self.at.send_replace(n);
        }
        if let Some((sender, reply)) = self.reader.routes.is_over(self.sequence.position()) {
            if let Some(reply) = reply {
                let _ = sender.send(Arrival::Reply(reply)).await;
            }
            self.end(&sender).await;
        }
        if self.sequence.gap().is_none() {
            self.told
                .send_if_modified(|told| !std::mem::replace(&mut told.caught_up, true));
        }
    }

    async fn arrive(&self, sender: &mpsc::Sender<Arrival>, arrival: Arrival) {
        if let Arrival::Message(_, message) = &arrival
            && self.is_for_the_page(message)
        {
            return;
        }
        // Without a receiver the activity was settled in another way.
        let _ = sender.send(arrival).await;
    }

    /// Answers what Colab's web page is asked, and tells whether it was that.
    fn is_for_the_page(&self, message: &Message) -> bool {
        if !page::is_request(message) {
            return false;
        }
        if let Some(answer) = self.reader.page.answer(message) {
            let session = self.reader.link.session();
            self.reader.link.send(Message::new(
                Channel::Stdin,
                session,
                "input_reply",
                &answer,
            ));
        }
        true
    }

    async fn end(&mut self, sender: &mpsc::Sender<Arrival>) {
        let (let_go, dropped) = LetGo::new();
        self.reader.routes.end(sender);
        if sender.send(Arrival::Ended(let_go)).await.is_ok() {
            let _ = dropped.await;
        }
        self.lively = Instant::now();
    }
}

/// Who waits for the end of something learns that it will not be told.
impl Drop for Task {
    fn drop(&mut self) {
        self.reader.routes.close();
    }
}

fn is_prompt(message: &Message) -> bool {
    message
        .head()
        .is_some_and(|head| head.msg_type == "ck_input_request")
}

pub(super) fn digest(code: &str) -> String {
    Sha256::digest(code.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

async fn answer(asked: &mut Option<(Question, Asked)>) -> Result<Message, Away> {
    match asked {
        Some((_, answer)) => answer.await,
        None => std::future::pending().await,
    }
}
