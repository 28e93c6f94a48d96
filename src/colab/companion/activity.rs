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
            // It may begin yet, and must not be taken for the next one with the same code.
            None => state.strays.extend(active.code),
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
    /// The session in the headers of the service's own requests, once it was confirmed.
    service: Option<String>,
    service_varies: bool,
}

#[derive(Debug)]
struct Active {
    id: u64,
    origin: Origin,
    code: Option<String>,
    /// The message id of its request in the kernel, once it is known.
    msg_id: Option<String>,
    /// Executions of its code by others than the service, as far as that is known: their numbers and message ids.
    passed_over: Vec<(u32, String)>,
    /// It begins after this number of the journal.
    after: u64,
    /// The number of its last message, where the table has told.
    last: Option<u64>,
    keys: Vec<String>,
    sender: mpsc::Sender<Arrival>,
}

impl Active {
    /// Whether an execution of this code at this place of the journal may be this one.
    fn waits_for(&self, n: u64, code: &str) -> bool {
        self.msg_id.is_none()
            && n > self.after
            && self
                .code
                .as_ref()
                .is_some_and(|own| code.contains(own.as_str()))
    }
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
            passed_over: Vec::new(),
            after,
            last: None,
            keys: Vec::new(),
            sender,
        });
        drop(state);
        Activity {
            id,
            arrivals,
            routes: self.clone(),
            ended: false,
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

    /// The running activity's sender, if the table says that everything of it lies before this position.
    pub fn is_over(&self, position: u64) -> Option<mpsc::Sender<Arrival>> {
        let state = self.lock();
        let active = state.active.as_ref()?;
        (active.last? <= position).then(|| active.sender.clone())
    }

    /// The running activity is over: what comes now belongs to the background.
    pub fn end(&self, sender: &mpsc::Sender<Arrival>) {
        let mut state = self.lock();
        state
            .active
            .take_if(|active| active.sender.same_channel(sender));
    }

    /// The number that the service gave the running activity confirms, or denies, that it was ours.
    pub fn confirm_service(&self, session: &str, is_ours: bool) {
        let mut state = self.lock();
        if !is_ours {
            // Where nothing was known, a stranger's execution may have been adopted, which proves nothing of the service.
            state.service_varies |= state.service.take().is_some();
        } else if !state.service_varies {
            state.service.get_or_insert_with(|| session.to_owned());
        }
    }

    /// The running activity was settled without the journal, and the service tells its number. If it is that of an execution
    /// that was taken for a stranger's, the service is not known by one session.
    pub fn settled(&self, count: u32) {
        let mut state = self.lock();
        let Some(active) = state.active.as_mut() else {
            return;
        };
        let Some((_, msg_id)) = active.passed_over.iter().find(|(told, _)| *told == count) else {
            return;
        };
        let (msg_id, origin) = (msg_id.clone(), active.origin.clone());
        // It has begun: it is no stray.
        active.code = None;
        state.remember(&msg_id, origin);
        state.service = None;
        state.service_varies = true;
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

    /// What the table of executions, and the open prompts, tell of the running activity. `hash`: that of its code.
    pub fn compare(
        &self,
        table: &[TableEntry],
        prompts: Vec<Prompt>,
        position: u64,
        hash: impl Fn(&str) -> String,
    ) -> Option<(mpsc::Sender<Arrival>, Vec<Arrival>)> {
        self.lock().compare(table, prompts, position, hash)
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
                return self.prompt(prompt);
            }
            "ck_execute_reply" => {
                let Ok(replied) = message.content::<RepliedOnIoPub>() else {
                    return Destination::Nobody;
                };
                return match self.active_of(&replied.cell) {
                    Some(active) => Destination::Active(
                        active.sender.clone(),
                        vec![Arrival::Reply(replied.reply)],
                    ),
                    None => Destination::Nobody,
                };
            }
            "status" => return self.status(&message, &parent.msg_id),
            "iopub_welcome" | "shutdown_reply" => return Destination::Nobody,
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

    fn active_of(&self, msg_id: &str) -> Option<&Active> {
        self.active
            .as_ref()
            .filter(|active| active.msg_id.as_deref() == Some(msg_id))
    }

    fn execute_input(&mut self, n: u64, message: &Message, parent: &Head) -> Destination {
        let Ok(input) = message.content::<ExecuteInput>() else {
            return Destination::Nobody;
        };
        if let Some(active) = self.active_of(&parent.msg_id) {
            let began = Arrival::Began {
                count: input.execution_count,
                session: Some(parent.session.clone()),
            };
            return Destination::Active(active.sender.clone(), vec![began]);
        }
        let is_service = match &self.service {
            Some(service) => *service == parent.session,
            None => true,
        };
        if !is_service {
            if let Some(active) = &mut self.active
                && active.waits_for(n, &input.code)
                && let Some(count) = input.execution_count
            {
                active.passed_over.push((count, parent.msg_id.clone()));
            }
            return Destination::Nobody;
        }
        if let Some(stray) = self
            .strays
            .iter()
            .position(|code| input.code.contains(code.as_str()))
        {
            self.strays.remove(stray);
            return Destination::Nobody;
        }
        let active = self.active.as_mut();
        let Some(active) = active.filter(|active| active.waits_for(n, &input.code)) else {
            return Destination::Nobody;
        };
        active.msg_id = Some(parent.msg_id.clone());
        let (sender, origin) = (active.sender.clone(), active.origin.clone());
        self.remember(&parent.msg_id, origin);
        let began = Arrival::Began {
            count: input.execution_count,
            session: Some(parent.session.clone()),
        };
        Destination::Active(sender, vec![began])
    }

    fn prompt(&mut self, prompt: Prompt) -> Destination {
        let Some(active) = self.active.as_mut() else {
            return Destination::Nobody;
        };
        // A prompt of a thread names whatever request was the latest.
        if active.msg_id.is_none() || active.keys.contains(&prompt.key) {
            return Destination::Nobody;
        }
        if active.msg_id != prompt.cell
            && !prompt
                .cell
                .as_ref()
                .is_some_and(|cell| self.past.contains_key(cell))
        {
            return Destination::Nobody;
        }
        active.keys.push(prompt.key.clone());
        Destination::Active(active.sender.clone(), vec![Arrival::Prompt(prompt)])
    }

    fn status(&mut self, message: &Message, parent: &str) -> Destination {
        #[derive(Deserialize)]
        struct Status {
            execution_state: String,
        }
        let idle = message
            .content::<Status>()
            .is_ok_and(|status| status.execution_state == "idle");
        if !idle {
            return Destination::Nobody;
        }
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

    fn compare(
        &mut self,
        table: &[TableEntry],
        prompts: Vec<Prompt>,
        position: u64,
        hash: impl Fn(&str) -> String,
    ) -> Option<(mpsc::Sender<Arrival>, Vec<Arrival>)> {
        let mut arrivals = Vec::new();
        let service = self.service.clone();
        let active = self.active.as_mut()?;
        // Only what has left the journal needs the table to be seen at all.
        if active.msg_id.is_none()
            && let Some(code) = &active.code
        {
            let hash = hash(code);
            let mut of_code = table.iter().filter(|entry| {
                entry.first > active.after
                    && entry.first <= position
                    && entry.code.as_deref() == Some(hash.as_str())
            });
            if let Some(entry) = of_code.find(|entry| service.is_none() || entry.session == service)
            {
                active.msg_id = Some(entry.cell.clone());
                arrivals.push(Arrival::Began {
                    count: entry.count,
                    session: entry.session.clone(),
                });
            }
        }
        let msg_id = active.msg_id.clone()?;
        active.last = table
            .iter()
            .find(|entry| entry.cell == msg_id)
            .and_then(|entry| entry.last);
        for prompt in prompts {
            if prompt.cell.as_ref() == Some(&msg_id) && !active.keys.contains(&prompt.key) {
                active.keys.push(prompt.key.clone());
                arrivals.push(Arrival::Prompt(prompt));
            }
        }
        let (sender, origin) = (active.sender.clone(), active.origin.clone());
        self.remember(&msg_id, origin);
        Some((sender, arrivals))
    }
}
