//! What the kernel does for one request of ours, and which request a message belongs to.
//!
//! The kernel room runs one thing at a time: a cell, a comm message, a piece of silent code. While it runs it is the one
//! [`Activity`], which gets what the journal says, in order; between activities messages go to the background. Invariants:
//!
//! * A cell that runs through `execute_code` is adopted at the first execution of its code behind its submission, by the client that
//!   is known to be the service. Messages with the parent of anybody else's request are left out.
//! * What belongs to an earlier request of ours is passed on under that one, also while another runs.
//! * After the end of an activity nothing more is read from the journal until its receiver has let go, so that what comes later
//!   cannot overtake it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::wire::{Head, Message};
use crate::backend::{JsonMap, Origin};

/// How many earlier requests are remembered, for what their threads do later.
const PAST: usize = 1000;
/// How many arrivals may wait for a slow receiver; behind them the journal is not read further.
const ARRIVALS: usize = 8;

/// What an activity is told.
#[derive(Debug)]
pub enum Arrival {
    /// The kernel has begun it, with this number.
    Began {
        /// `execution_count` of its `execute_input`.
        count: Option<u32>,
        /// The session by which its request came.
        session: Option<String>,
    },
    /// A message: of this activity, or of an earlier request of ours.
    Message(Option<Origin>, Message),
    /// It asks for input.
    Prompt(Prompt),
    /// What its `execute_reply` says.
    Reply(ExecuteReply),
    /// This many messages have left the journal unread.
    Hole(u64),
    /// It has ended. The journal is read on when this is dropped.
    Ended(LetGo),
}

/// Lets the journal be read on when it is dropped.
#[derive(Debug)]
pub struct LetGo {
    _held: oneshot::Sender<()>,
}

impl LetGo {
    /// With what tells that it was dropped.
    pub(super) fn new() -> (Self, oneshot::Receiver<()>) {
        let (held, dropped) = oneshot::channel();
        (Self { _held: held }, dropped)
    }
}

/// A `ck_input_request` of the bootstrap.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Prompt {
    /// By which it is answered.
    pub key: String,
    /// The message id of the request that asks.
    pub cell: Option<String>,
    /// What is asked.
    pub prompt: String,
    /// Whether the answer is not to be shown.
    pub password: bool,
}

/// The content of an `execute_reply`, as far as it is needed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ExecuteReply {
    /// `ok`, `error` or `aborted`; absent from old kernels' replies.
    pub status: Option<String>,
    /// The number.
    pub execution_count: Option<i64>,
    /// The exception's class.
    pub ename: String,
    /// Its message.
    pub evalue: String,
    /// Its traceback.
    pub traceback: Vec<String>,
    /// `payload`
    pub payload: Vec<serde_json::Value>,
    /// `user_expressions`
    pub user_expressions: JsonMap,
}

/// How an activity's messages are known.
#[derive(Debug, Clone)]
pub enum Expect {
    /// By the message id of the request that we send ourselves.
    Own(String),
    /// By its code, which the service hands to the kernel.
    Code(String),
}

/// What arrives for one request, until its end.
#[derive(Debug)]
pub struct Activity {
    id: u64,
    arrivals: mpsc::Receiver<Arrival>,
    routes: Arc<Routes>,
    ended: bool,
    unseen_for_good: bool,
}

impl Activity {
    /// The next arrival. Cancel-safe. `None`: the journal is read no more.
    pub async fn recv(&mut self) -> Option<Arrival> {
        let arrival = self.arrivals.recv().await;
        self.ended |= matches!(arrival, Some(Arrival::Ended(_)));
        arrival
    }

    /// What has arrived already.
    pub fn try_recv(&mut self) -> Option<Arrival> {
        let arrival = self.arrivals.try_recv().ok();
        self.ended |= matches!(arrival, Some(Arrival::Ended(_)));
        arrival
    }

    /// It is certain that it will not begin any more, or that what it did cannot come any more: nobody has to look out for it.
    pub fn let_go_unseen(&mut self) {
        self.unseen_for_good = true;
    }

    /// Whether the kernel is known to have begun it.
    pub fn is_adopted(&self) -> bool {
        self.routes
            .lock()
            .active
            .as_ref()
            .is_some_and(|active| active.id == self.id && active.msg_id.is_some())
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        let mut state = self.routes.lock();
        let Some(active) = state.active.take_if(|active| active.id == self.id) else {
            return;
        };
        if self.ended {
            return;
        }
        match active.msg_id {
            // It was settled without the journal: what the journal says of it until its end has been told.
            Some(msg_id) => state.silence(&msg_id),
            None if self.unseen_for_good => {}
            // It may begin yet, and must not be taken for the next one with the same code.
            None => state.strays.extend(active.code),
        }
        while state.strays.len() > PAST {
            state.strays.pop_front();
        }
    }
}

/// Who gets which message.
#[derive(Debug, Default)]
pub(super) struct Routes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    active: Option<Active>,
    past: HashMap<String, Past>,
    order: VecDeque<String>,
    /// Requests of ours of which nothing is shown, until their end.
    discarded: HashSet<String>,
    latest: Option<Origin>,
    /// Code that was submitted, given up, and has not been seen to begin.
    strays: VecDeque<String>,
    /// The session in the headers of the service's own requests, where it is known.
    service: Option<String>,
    /// Whether that proved not to be the same for all of them.
    service_varies: bool,
    /// Whether the journal is read no more.
    closed: bool,
}

#[derive(Debug)]
struct Active {
    id: u64,
    origin: Origin,
    code: Option<String>,
    /// The message id of its request in the kernel, once it is known.
    msg_id: Option<String>,
    /// It begins after this number of the journal.
    after: u64,
    /// The number of its last message, where the table has told.
    last: Option<u64>,
    keys: Vec<String>,
    /// Whether its reply has been passed on.
    replied: bool,
    /// What the table says of its reply, for one that has left the journal.
    told_reply: Option<ExecuteReply>,
    sender: mpsc::Sender<Arrival>,
}

#[derive(Debug, Clone)]
struct Past {
    origin: Origin,
    /// Whether its output was published in another way.
    silent: bool,
}

/// Where a message goes.
#[derive(Debug)]
pub(super) enum Destination {
    /// To the running activity, in these forms.
    Active(mpsc::Sender<Arrival>, Vec<Arrival>),
    /// It is the running activity's last one.
    End(mpsc::Sender<Arrival>),
    /// The kernel has said that it ends.
    Farewell,
    /// To the background, under this request.
    Background(Origin, Message),
    /// It is nobody's here.
    Nobody,
}

#[derive(Deserialize)]
struct ExecuteInput {
    code: String,
    execution_count: Option<u32>,
}

#[derive(Deserialize)]
struct RepliedOnIoPub {
    cell: String,
    reply: ExecuteReply,
}

/// An entry of the bootstrap's table of executions.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TableEntry {
    pub cell: String,
    pub session: Option<String>,
    pub code: Option<String>,
    pub count: Option<u32>,
    pub first: u64,
    pub last: Option<u64>,
    #[serde(default)]
    pub status: Option<String>,
    #[serde(default)]
    pub ename: Option<String>,
}

impl Routes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an activity behind this position of the journal.
    pub fn begin(self: &Arc<Self>, expect: Expect, origin: Origin, after: u64) -> Activity {
        let (sender, arrivals) = mpsc::channel(ARRIVALS);
        let mut state = self.lock();
        state.next_id += 1;
        let id = state.next_id;
        let (code, msg_id) = match expect {
            Expect::Own(msg_id) => (None, Some(msg_id)),
            Expect::Code(code) => (Some(code), None),
        };
        if let Some(msg_id) = &msg_id {
            state.remember(msg_id, origin.clone());
        }
        if code.is_some() {
            state.latest = Some(origin.clone());
        }
        state.active = Some(Active {
            id,
            origin,
            code,
            msg_id,
            after,
            last: None,
            keys: Vec::new(),
            replied: false,
            told_reply: None,
            sender,
        });
        if state.closed {
            state.active = None;
        }
        drop(state);
        Activity {
            id,
            arrivals,
            routes: self.clone(),
            ended: false,
            unseen_for_good: false,
        }
    }

    /// Whether something runs.
    pub fn is_active(&self) -> bool {
        self.lock().active.is_some()
    }

    /// Where the running activity's arrivals go.
    pub fn sender(&self) -> Option<mpsc::Sender<Arrival>> {
        let state = self.lock();
        state.active.as_ref().map(|active| active.sender.clone())
    }

    /// If the table says that everything of the running activity lies before this position: its sender, and what the table says of
    /// its reply, should that have left the journal.
    pub fn is_over(&self, position: u64) -> Option<(mpsc::Sender<Arrival>, Option<ExecuteReply>)> {
        let mut state = self.lock();
        let active = state.active.as_mut()?;
        if active.last? > position {
            return None;
        }
        let reply = active.told_reply.take().filter(|_| !active.replied);
        Some((active.sender.clone(), reply))
    }

    /// The journal is read no more: what runs, and what is begun from now on, is told nothing.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.active = None;
    }

    /// From where on the table of executions matters, at this position of the journal.
    pub fn since(&self, position: u64) -> u64 {
        let state = self.lock();
        let active = state.active.as_ref();
        active.map_or(position, |active| active.after.min(position))
    }

    /// The running activity is over: what comes now belongs to the background.
    pub fn end(&self, sender: &mpsc::Sender<Arrival>) {
        let mut state = self.lock();
        state
            .active
            .take_if(|active| active.sender.same_channel(sender));
    }

    /// The number that the service gave a cell confirms that the execution by this session was its own.
    pub fn confirm_service(&self, session: &str) {
        let mut state = self.lock();
        if !state.service_varies {
            state.service.get_or_insert_with(|| session.to_owned());
        }
    }

    /// The service has run a cell by another session than the one that is known as its own: it is not always the same.
    pub fn forget_service(&self) {
        let mut state = self.lock();
        state.service_varies |= state.service.take().is_some();
    }

    /// Nothing of this request of ours is shown, however late it is read.
    pub fn discard(&self, msg_id: String) {
        self.lock().discarded.insert(msg_id);
    }

    /// Tells where message `n` goes. `own`: the session of our own requests.
    pub fn destination(&self, n: u64, message: Message, own: &str) -> Destination {
        let Some(head) = message.head() else {
            return Destination::Nobody;
        };
        let parent = message.parent().unwrap_or(Head {
            msg_id: String::new(),
            msg_type: String::new(),
            session: String::new(),
        });
        let mut state = self.lock();
        let message = state.in_front_end_words(message, &head.msg_type);
        state.destination(n, message, &head.msg_type, &parent, own)
    }

    /// What the table of executions tells of the running activity: where it ends, and that it has begun, if the message that says so
    /// lies before this position unseen. `hash`: that of its code.
    pub fn compare(
        &self,
        table: &[TableEntry],
        position: u64,
        hash: impl Fn(&str) -> String,
    ) -> Option<(mpsc::Sender<Arrival>, Arrival)> {
        self.lock().compare(table, position, hash)
    }

    /// Where a prompt goes, if it has not gone there before.
    pub fn prompt(&self, prompt: Prompt) -> Option<(mpsc::Sender<Arrival>, Arrival)> {
        self.lock().prompt(prompt)
    }
}

impl State {
    fn remember(&mut self, msg_id: &str, origin: Origin) {
        let past = Past {
            origin,
            silent: false,
        };
        if self.past.insert(msg_id.to_owned(), past).is_none() {
            self.order.push_back(msg_id.to_owned());
        }
        while self.order.len() > PAST {
            if let Some(oldest) = self.order.pop_front() {
                self.past.remove(&oldest);
            }
        }
    }

    fn silence(&mut self, msg_id: &str) {
        if let Some(past) = self.past.get_mut(msg_id) {
            past.silent = true;
        }
    }

    fn destination(
        &mut self,
        n: u64,
        message: Message,
        kind: &str,
        parent: &Head,
        own: &str,
    ) -> Destination {
        match kind {
            "execute_input" => return self.execute_input(n, &message, parent),
            "ck_input_request" => {
                let Ok(prompt) = message.content::<Prompt>() else {
                    return Destination::Nobody;
                };
                return match self.prompt(prompt) {
                    Some((sender, arrival)) => Destination::Active(sender, vec![arrival]),
                    None => Destination::Nobody,
                };
            }
            "ck_execute_reply" => {
                let Ok(replied) = message.content::<RepliedOnIoPub>() else {
                    return Destination::Nobody;
                };
                let Some(active) = self.active_of(&replied.cell) else {
                    return Destination::Nobody;
                };
                active.replied = true;
                let arrival = Arrival::Reply(replied.reply);
                return Destination::Active(active.sender.clone(), vec![arrival]);
            }
            "status" => return self.status(&message, &parent.msg_id),
            "iopub_welcome" => return Destination::Nobody,
            "shutdown_reply" => return Destination::Farewell,
            _ => {}
        }
        if self.discarded.contains(&parent.msg_id) {
            return Destination::Nobody;
        }
        if let Some(active) = self.active_of(&parent.msg_id) {
            return Destination::Active(
                active.sender.clone(),
                vec![Arrival::Message(None, message)],
            );
        }
        let origin = match self.past.get(&parent.msg_id) {
            Some(past) if past.silent => return Destination::Nobody,
            Some(past) => past.origin.clone(),
            // Output of a thread carries the parent of the latest request, which may be one of our helpers.
            None if parent.session == own => match &self.latest {
                Some(latest) => latest.clone(),
                None => return Destination::Nobody,
            },
            None => return Destination::Nobody,
        };
        match &self.active {
            Some(active) if active.origin == origin => {
                Destination::Active(active.sender.clone(), vec![Arrival::Message(None, message)])
            }
            Some(active) => Destination::Active(
                active.sender.clone(),
                vec![Arrival::Message(Some(origin), message)],
            ),
            None => Destination::Background(origin, message),
        }
    }

    /// A comm message in which the id of one of our requests in the kernel is the front-end's own id of it: an Output widget
    /// captures what has this request as its parent.
    fn in_front_end_words(&self, mut message: Message, kind: &str) -> Message {
        let mentions_request = kind.starts_with("comm_")
            && message
                .content
                .windows(8)
                .any(|bytes| bytes == b"\"msg_id\"");
        if !mentions_request {
            return message;
        }
        let Ok(mut content) = message.content::<Value>() else {
            return message;
        };
        let Some(id) = content.pointer_mut("/data/state/msg_id") else {
            return message;
        };
        let own = id
            .as_str()
            .and_then(|id| self.past.get(id))
            .and_then(|past| serde_json::from_slice::<Head>(past.origin.header()).ok());
        if let Some(own) = own {
            *id = own.msg_id.into();
            message.content = content.to_string().into();
        }
        message
    }

    fn active_of(&mut self, msg_id: &str) -> Option<&mut Active> {
        self.active
            .as_mut()
            .filter(|active| active.msg_id.as_deref() == Some(msg_id))
    }

    fn execute_input(&mut self, n: u64, message: &Message, parent: &Head) -> Destination {
        let Ok(input) = message.content::<ExecuteInput>() else {
            return Destination::Nobody;
        };
        let began = Arrival::Began {
            count: input.execution_count,
            session: Some(parent.session.clone()),
        };
        if let Some(active) = self.active_of(&parent.msg_id) {
            return Destination::Active(active.sender.clone(), vec![began]);
        }
        if !self.may_be_service(Some(&parent.session)) {
            return Destination::Nobody;
        }
        // The same code is looked for first: short code is contained in much that somebody else runs.
        let is_same = |code: &str| input.code == code;
        let contains = |code: &str| input.code.contains(code);
        if self.take_stray(is_same) {
            return Destination::Nobody;
        }
        if !self.awaits(n, is_same) && (self.take_stray(contains) || !self.awaits(n, contains)) {
            return Destination::Nobody;
        }
        let Some(sender) = self.adopt(&parent.msg_id) else {
            return Destination::Nobody;
        };
        // The service runs one call after the other: what was submitted before this one does not begin any more.
        self.strays.clear();
        Destination::Active(sender, vec![began])
    }

    fn may_be_service(&self, session: Option<&str>) -> bool {
        self.service.is_none() || self.service.as_deref() == session
    }

    /// Whether this was submitted before the running activity, and given up.
    fn take_stray(&mut self, is_it: impl Fn(&str) -> bool) -> bool {
        let found = self.strays.iter().position(|code| is_it(code));
        found.is_some_and(|at| self.strays.remove(at).is_some())
    }

    /// Whether the running activity has not begun before number `n` and is this.
    fn awaits(&self, n: u64, is_it: impl Fn(&str) -> bool) -> bool {
        self.active.as_ref().is_some_and(|active| {
            let code = active.code.as_deref();
            active.msg_id.is_none() && n > active.after && code.is_some_and(is_it)
        })
    }

    fn adopt(&mut self, msg_id: &str) -> Option<mpsc::Sender<Arrival>> {
        let active = self.active.as_mut()?;
        active.msg_id = Some(msg_id.to_owned());
        let (sender, origin) = (active.sender.clone(), active.origin.clone());
        self.remember(msg_id, origin);
        Some(sender)
    }

    fn prompt(&mut self, prompt: Prompt) -> Option<(mpsc::Sender<Arrival>, Arrival)> {
        let is_ours = |cell: &String| self.past.contains_key(cell);
        // A prompt of a thread names whatever request was the latest.
        if !prompt.cell.as_ref().is_some_and(is_ours) {
            return None;
        }
        let active = self.active.as_mut()?;
        if active.msg_id.is_none() || active.keys.contains(&prompt.key) {
            return None;
        }
        active.keys.push(prompt.key.clone());
        Some((active.sender.clone(), Arrival::Prompt(prompt)))
    }

    fn status(&mut self, message: &Message, parent: &str) -> Destination {
        #[derive(Deserialize)]
        struct Status {
            execution_state: String,
        }
        let Ok(status) = message.content::<Status>() else {
            return Destination::Nobody;
        };
        match status.execution_state.as_str() {
            // Of code that does not count nothing else tells that it has begun.
            "busy" => match self.active_of(parent) {
                Some(active) if active.code.is_none() => {
                    let began = Arrival::Began {
                        count: None,
                        session: None,
                    };
                    Destination::Active(active.sender.clone(), vec![began])
                }
                _ => Destination::Nobody,
            },
            "idle" => {
                self.discarded.remove(parent);
                if let Some(past) = self.past.get_mut(parent) {
                    // What its threads do from now on has not been told in another way.
                    past.silent = false;
                }
                match self.active_of(parent) {
                    Some(active) => Destination::End(active.sender.clone()),
                    None => Destination::Nobody,
                }
            }
            _ => Destination::Nobody,
        }
    }

    fn compare(
        &mut self,
        table: &[TableEntry],
        position: u64,
        hash: impl Fn(&str) -> String,
    ) -> Option<(mpsc::Sender<Arrival>, Arrival)> {
        let active = self.active.as_ref()?;
        let (known, code, after) = (active.msg_id.clone(), active.code.clone(), active.after);
        let entry = match (known, code) {
            (Some(msg_id), _) => table.iter().find(|entry| entry.cell == msg_id)?,
            // Only what has left the journal needs the table to be seen at all. What was aborted has not run: how that is dealt
            // with is the service's affair.
            (None, Some(code)) => {
                let hash = hash(&code);
                table.iter().find(|entry| {
                    entry.first > after
                        && entry.first <= position
                        && entry.code.as_deref() == Some(hash.as_str())
                        && entry.status.as_deref() != Some("aborted")
                        && self.may_be_service(entry.session.as_deref())
                })?
            }
            (None, None) => return None,
        };
        let is_new = self.active_of(&entry.cell).is_none();
        let sender = self.adopt(&entry.cell)?;
        let active = self.active.as_mut()?;
        active.last = entry.last.or(active.last);
        active.told_reply = entry.status.as_ref().map(|status| ExecuteReply {
            status: Some(status.clone()),
            ename: entry.ename.clone().unwrap_or_default(),
            ..ExecuteReply::default()
        });
        let began = Arrival::Began {
            count: entry.count,
            session: entry.session.clone(),
        };
        is_new.then_some((sender, began))
    }
}

#[cfg(test)]
mod tests;
