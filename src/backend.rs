//! The border between what a kernel is and where its cells run.
//!
//! A third backend is written by reading this file alone. The kernel calls [`Backend::execute`] for one cell at a time; the
//! backend sends what the cell does, in order, into the [`EventSender`] and returns how it ended. Invariants:
//!
//! * Nothing a backend sends is changed: no character is added, dropped or normalised on the way to the front-end.
//! * What belongs to another request than the one that is being served is sent as [`Event::Of`]; between requests it goes to the
//!   sender of [`Backend::attach`]. [`EventSender::settled`] keeps the order where one channel takes over from the other.
//! * [`EventSender::send`] waits while more than [`EVENT_BYTES`] are unread: a backend that awaits it holds back its own source.
//! * Every call ends. A backend that cannot learn how a cell ended returns a [`BackendError`] that says so.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// A JSON object that passes through unread: a MIME bundle, its metadata.
pub type JsonMap = Map<String, Value>;

/// Where cells run.
pub trait Backend: Send + Sync + 'static {
    /// Runs one cell and returns how it ended. Opens the session first where there is none.
    ///
    /// The kernel calls this for one cell at a time.
    fn execute(
        &self,
        cell: Cell,
        events: EventSender,
    ) -> impl Future<Output = Result<Outcome, BackendError>> + Send;

    /// Takes the sender for what the kernel publishes while none of its requests is served: output of threads, updates of
    /// displays. The kernel calls this once, before anything else.
    fn attach(&self, background: EventSender);

    /// Hands a comm message of the front-end to the code, and returns when it has been handled there. `false`: there is no
    /// comm on the remote side that could take it.
    ///
    /// The kernel calls this between cells.
    fn comm(
        &self,
        message: Message,
        origin: Origin,
        interrupt: CancellationToken,
        events: EventSender,
    ) -> impl Future<Output = bool> + Send;

    /// Asks the remote kernel, and returns the content of its reply. `None`: there is nobody to ask.
    fn ask(
        &self,
        question: Question,
        content: Box<RawValue>,
    ) -> impl Future<Output = Option<Box<RawValue>>> + Send;

    /// Whether a session is open, so that uncounted code can run without starting a machine.
    fn has_session(&self) -> bool;

    /// Keeps set-up code of the front-end, to be run silently on every new session before its first cell.
    fn keep_setup(&self, code: String);

    /// The number that the next counted cell is expected to get (the first is 1).
    fn next_execution_count(&self) -> u32;

    /// Gives back what the process holds on the remote side. The caller bounds the time.
    fn shutdown(&self) -> impl Future<Output = ()> + Send;
}

/// What the remote kernel can be asked for. The contents of request and reply are those of the messaging spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Question {
    /// `complete_request`
    Complete,
    /// `inspect_request`
    Inspect,
    /// `comm_info_request`
    CommInfo,
    /// `usage_request` of ipykernel, also answered while a cell runs.
    Usage,
}

/// The front-end's request that something belongs to. Opaque to a backend, which hands it back as it came.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Origin(Bytes);

impl Origin {
    /// The request with this header.
    pub fn new(header: Bytes) -> Self {
        Self(header)
    }

    /// The header, as it was given.
    pub fn header(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin({})", String::from_utf8_lossy(&self.0))
    }
}

/// A message that passes through in the words of the messaging spec: `comm_open`, `comm_msg`, `comm_close`, and whatever the
/// remote kernel publishes beside what [`Event`] names.
#[derive(Debug, Clone)]
pub struct Message {
    /// What it is.
    pub msg_type: String,
    /// The content, unread.
    pub content: Box<RawValue>,
    /// The metadata.
    pub metadata: JsonMap,
    /// Binary buffers.
    pub buffers: Vec<Bytes>,
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.msg_type == other.msg_type
            && self.content.get() == other.content.get()
            && self.metadata == other.metadata
            && self.buffers == other.buffers
    }
}

/// One piece of code to run.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    /// The request that brought it.
    pub origin: Origin,
    /// The source, exactly as the front-end sent it.
    pub code: String,
    /// Whether the code counts: gets a number and enters the history (`store_history` of the messaging spec).
    pub store_history: bool,
    /// Whether nothing of it may be shown (`silent` of the messaging spec).
    pub silent: bool,
    /// Whether the front-end can answer `input()`.
    pub allow_stdin: bool,
    /// Expressions to evaluate after the cell, by name (`user_expressions` of the messaging spec).
    pub user_expressions: JsonMap,
    /// Cancelled when the user interrupts: the backend then stops the cell, or the wait before it, and `execute` returns
    /// how it ended. It belongs to this cell alone, so a late interrupt cannot hit the next one.
    pub interrupt: CancellationToken,
}

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamName {
    /// `stdout`
    Stdout,
    /// `stderr`
    Stderr,
}

impl StreamName {
    /// The name in a `stream` message.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// What a cell does while it runs, in the order in which it did it.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// One line for the user about the wait before the cell runs. The kernel takes it away again at [`Event::Submitted`],
    /// or before anything else of the cell.
    Notice(String),
    /// The cell has been handed to the service; what follows is its own doing.
    Submitted,
    /// Text that was printed. Chunks may be split anywhere except inside a character.
    Stream {
        /// Which stream.
        name: StreamName,
        /// The text.
        text: String,
    },
    /// `display_data`
    DisplayData {
        /// The MIME bundle.
        data: JsonMap,
        /// Its metadata.
        metadata: JsonMap,
        /// `transient`, with the display id where there is one.
        transient: JsonMap,
    },
    /// `execute_result`
    ExecuteResult {
        /// The MIME bundle.
        data: JsonMap,
        /// Its metadata.
        metadata: JsonMap,
        /// The number that the kernel gave it (`None`: the cell's).
        execution_count: Option<u32>,
    },
    /// `update_display_data`
    UpdateDisplayData {
        /// The MIME bundle.
        data: JsonMap,
        /// Its metadata.
        metadata: JsonMap,
        /// `transient`, with the display id.
        transient: JsonMap,
    },
    /// `clear_output`
    ClearOutput {
        /// Whether to wait for the next output.
        wait: bool,
    },
    /// `error`: the code raised.
    Error(Exception),
    /// The code asks for a line of input.
    InputRequest {
        /// What is asked.
        prompt: String,
        /// Whether the answer is not to be shown.
        password: bool,
        /// Where the answer goes.
        answer: Answerer,
    },
    /// Any other message.
    Message(Message),
    /// What belongs to another request of the front-end: the output of a thread that an earlier cell has started.
    Of(Origin, Box<Event>),
}

/// What a prompt is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputAnswer {
    /// A line of text, without its end.
    Value(String),
    /// End of file (control-D).
    Eof,
    /// Nobody can answer, in words for the user.
    Refused(String),
}

/// Takes the answer to one prompt.
#[derive(Debug, Clone)]
pub struct Answerer(mpsc::Sender<InputAnswer>);

impl Answerer {
    /// An answerer, and where its answer arrives. Dropping the receiver withdraws the prompt.
    pub fn new() -> (Self, mpsc::Receiver<InputAnswer>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    /// Answers. The first answer counts.
    pub fn answer(&self, answer: InputAnswer) {
        let _ = self.0.try_send(answer);
    }

    /// Waits until the prompt is withdrawn.
    pub async fn withdrawn(&self) {
        self.0.closed().await;
    }
}

impl PartialEq for Answerer {
    fn eq(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}

impl Event {
    /// The size that counts against [`EVENT_BYTES`].
    fn weight(&self) -> usize {
        const OVERHEAD: usize = 128;
        let payload = match self {
            Self::Notice(text) | Self::Stream { text, .. } => text.len(),
            Self::Submitted | Self::ClearOutput { .. } => 0,
            Self::DisplayData { data, .. }
            | Self::UpdateDisplayData { data, .. }
            | Self::ExecuteResult { data, .. } => data.values().map(weight_of).sum(),
            Self::InputRequest { prompt, .. } => prompt.len(),
            Self::Message(message) => {
                let buffers: usize = message.buffers.iter().map(Bytes::len).sum();
                message.content.get().len() + buffers
            }
            Self::Of(_, event) => event.weight(),
            Self::Error(exception) => exception.traceback.iter().map(String::len).sum(),
        };
        OVERHEAD + payload
    }
}

fn weight_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight_of).sum(),
        Value::Object(map) => map.values().map(weight_of).sum(),
        _ => 16,
    }
}

/// An exception, in the words of an `error` message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exception {
    /// The exception's class.
    pub ename: String,
    /// Its message.
    pub evalue: String,
    /// The traceback, one frame an entry, with its ANSI colours.
    pub traceback: Vec<String>,
}

/// How a cell ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The number that the kernel gave the cell, where it is known.
    pub execution_count: Option<u32>,
    /// The exception that ended it. It has been sent as [`Event::Error`] already.
    pub exception: Option<Exception>,
    /// Results of `user_expressions`, by name.
    pub user_expressions: JsonMap,
    /// `payload` of the reply.
    pub payload: Vec<Value>,
}

/// Why a cell could not be run to its end, in words for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {message}")]
pub struct BackendError {
    /// The cause; the `ename` that the user sees.
    pub name: ErrorName,
    /// What happened, and what to do next.
    pub message: String,
}

impl BackendError {
    /// An error of this cause with this text.
    pub fn new(name: ErrorName, message: impl Into<String>) -> Self {
        Self {
            name,
            message: message.into(),
        }
    }
}

/// The causes that the kernel names, each shown as `ename`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ErrorName {
    ColabAuthRequired,
    ColabPermissionDenied,
    ColabQuotaExceeded,
    ColabAcceleratorUnavailable,
    ColabRateLimited,
    ColabRuntimeLost,
    ColabSessionLost,
    ColabCellStopped,
    ColabUnreachable,
    ColabProtocolError,
    ColabCompanionUnavailable,
    /// An interrupt ended the wait before the cell was submitted, or the stop could not be confirmed.
    KeyboardInterrupt,
}

impl fmt::Display for ErrorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How many bytes of events may wait to be published before [`EventSender::send`] waits.
pub const EVENT_BYTES: usize = 32 * 1024 * 1024;

/// The backend's end of a cell's events.
#[derive(Debug, Clone)]
pub struct EventSender {
    queue: mpsc::UnboundedSender<(Event, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
    hurry: Arc<Notify>,
}

/// The kernel's end of a cell's events.
#[derive(Debug)]
pub struct EventReceiver {
    queue: mpsc::UnboundedReceiver<(Event, OwnedSemaphorePermit)>,
    /// What the event in hand weighs: it counts until the next one is asked for.
    in_hand: Option<OwnedSemaphorePermit>,
    /// What an event weighs that is gathered with others and not published yet.
    gathered: Option<OwnedSemaphorePermit>,
    hurry: Arc<Notify>,
}

/// A channel for one cell's events, bounded in bytes.
pub fn events() -> (EventSender, EventReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(EVENT_BYTES));
    let hurry = Arc::new(Notify::new());
    (
        EventSender {
            queue: sender,
            room,
            hurry: hurry.clone(),
        },
        EventReceiver {
            queue: receiver,
            in_hand: None,
            gathered: None,
            hurry,
        },
    )
}

impl EventSender {
    /// Sends an event, waiting while the kernel is behind. Returns at once when nobody listens any more.
    pub async fn send(&self, event: Event) {
        let weight = u32::try_from(event.weight().min(EVENT_BYTES)).unwrap_or(u32::MAX);
        if let Ok(permit) = self.room.clone().acquire_many_owned(weight).await {
            // The receiver is gone only when the kernel has given the cell up.
            let _ = self.queue.send((event, permit));
        }
    }

    /// Waits until everything sent so far has been published.
    pub async fn settled(&self) {
        self.hurry.notify_one();
        let all = u32::try_from(EVENT_BYTES).unwrap_or(u32::MAX);
        let everything = self.room.acquire_many(all);
        tokio::select! {
            _ = everything => {}
            () = self.queue.closed() => {}
        }
    }
}

impl EventReceiver {
    /// The next event, or `None` when the cell has sent its last.
    pub async fn recv(&mut self) -> Option<Event> {
        self.in_hand = None;
        let (event, weight) = self.queue.recv().await?;
        self.in_hand = Some(weight);
        Some(event)
    }

    /// Says that the event in hand is not published yet. It counts as one that is waiting until [`Self::published`], or until
    /// a later event takes its place.
    pub fn gather(&mut self) {
        if let Some(weight) = self.in_hand.take() {
            self.gathered = Some(weight);
        }
    }

    /// Says that all events so far have been published.
    pub fn published(&mut self) {
        self.in_hand = None;
        self.gathered = None;
    }

    /// Notified when somebody waits in [`EventSender::settled`]: what is gathered has to be published now.
    pub fn hurry(&self) -> Arc<Notify> {
        self.hurry.clone()
    }

    /// The next event if one is waiting.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.in_hand = None;
        let (event, weight) = self.queue.try_recv().ok()?;
        self.in_hand = Some(weight);
        Some(event)
    }
}
