//! The task that owns a WebSocket: it reads, writes, pings and answers pings, each without waiting for another.
//!
//! * A large message goes out in fragments, so that pings and pongs pass between them, and what the other end sends is read
//!   meanwhile. What comes in waits in a queue bounded in bytes; while that is full nothing is read.
//! * The connection counts as lost when a ping went out and then, for as long as an answer may take, neither the pong nor any other
//!   sign of life came ([`Pulse`]).
//! * A frame that is no message is logged, without its content, and skipped.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink as _, SinkExt as _, Stream as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Error};

use super::channels::{Closed, Timing};
use super::pulse::Pulse;
use super::wire::{self, Message, Protocol};

/// The largest frame and message that is taken.
pub(super) const MAX_MESSAGE: usize = 512 * 1024 * 1024;
/// How many bytes of messages may wait for their reader before nothing more is read.
const INBOX_BYTES: usize = 64 * 1024 * 1024;
/// What goes out in one frame.
const FRAGMENT: usize = 1024 * 1024;
/// How long the end of a connection may take that nobody reads any more.
const FAREWELL: Duration = Duration::from_secs(1);

/// A message on its way to the reader, with its room in the queue.
pub(super) type Delivery = (Message, OwnedSemaphorePermit);
type Room = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// One connection and its two queues.
pub(super) struct Pump<S> {
    socket: WebSocketStream<Pulse<S>>,
    protocol: Protocol,
    timing: Timing,
    requests: mpsc::Receiver<tungstenite::Message>,
    has_sender: bool,
    sending: Option<Fragments>,
    is_flushing: bool,
    inbox: Option<mpsc::UnboundedSender<Delivery>>,
    room: Arc<Semaphore>,
    waiting: Option<(Message, Room)>,
    reader_gone: oneshot::Receiver<()>,
    clock: Pin<Box<Sleep>>,
    next_ping: Instant,
    /// Until when a ping has to be answered, and the signs of life before that.
    unanswered: Option<(Instant, u64)>,
    writes_first: bool,
    /// Whether a frame was skipped: one line in the log is enough for a server that is not understood.
    skipped: bool,
}

/// The reader's and the writer's ends of a pump.
pub(super) struct Ends {
    pub(super) requests: mpsc::Sender<tungstenite::Message>,
    pub(super) inbox: mpsc::UnboundedReceiver<Delivery>,
    pub(super) alive: oneshot::Sender<()>,
}

enum Step {
    Came(Option<Result<tungstenite::Message, Error>>),
    Room(Option<OwnedSemaphorePermit>),
    Request(Option<tungstenite::Message>),
    Flushed(Result<(), Error>),
    Clock,
    ReaderGone,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pump<S> {
    /// Takes over a connection on which the upgrade is done.
    pub(super) async fn new(stream: S, protocol: Protocol, timing: Timing) -> (Self, Ends) {
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE));
        let stream = Pulse::new(stream);
        let socket = WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await;
        let (requests, outgoing) = mpsc::channel(16);
        let (incoming, inbox) = mpsc::unbounded_channel();
        let (alive, reader_gone) = oneshot::channel();
        let next_ping = Instant::now() + timing.ping_every;
        let pump = Self {
            socket,
            protocol,
            timing,
            requests: outgoing,
            has_sender: true,
            sending: None,
            is_flushing: false,
            inbox: Some(incoming),
            room: Arc::new(Semaphore::new(INBOX_BYTES)),
            waiting: None,
            reader_gone,
            clock: Box::pin(sleep_until(next_ping)),
            next_ping,
            unanswered: None,
            writes_first: false,
            skipped: false,
        };
        let ends = Ends {
            requests,
            inbox,
            alive,
        };
        (pump, ends)
    }

    /// Runs until the connection ends.
    pub(super) async fn run(mut self, tell: impl FnOnce(&Closed)) {
        let why = loop {
            let step = poll_fn(|cx| self.poll_step(cx)).await;
            if let Err(why) = self.take(step) {
                break why;
            }
        };
        tell(&why);
        self.inbox = None;
        self.requests.close();
        // Of a connection that is lost no leave is taken, and after a close nothing but its answer may be sent.
        let _ = match why {
            Closed::Here => timeout(FAREWELL, self.finish()).await,
            Closed::ByServer(_) => timeout(FAREWELL, self.socket.flush()).await,
            Closed::Broken(_) | Closed::Silent => return,
        };
    }

    fn take(&mut self, step: Step) -> Result<(), Closed> {
        match step {
            Step::Came(None) => return Err(Closed::ByServer(None)),
            Step::Came(Some(frame)) => self.receive(frame?)?,
            Step::Room(room) => {
                if let (Some((message, _)), Some(room)) = (self.waiting.take(), room) {
                    self.deliver(message, room);
                }
            }
            Step::Request(None) => self.has_sender = false,
            Step::Request(Some(message)) => {
                self.sending = Fragments::of(message);
                self.start_next()?;
            }
            Step::Flushed(flushed) => {
                flushed?;
                self.is_flushing = false;
                self.start_next()?;
            }
            Step::Clock => self.tick()?,
            Step::ReaderGone => return Err(Closed::Here),
        }
        Ok(())
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if Pin::new(&mut self.reader_gone).poll(cx).is_ready() {
            return Poll::Ready(Step::ReaderGone);
        }
        if self.clock.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Step::Clock);
        }
        // In turns, so that neither direction starves the other.
        self.writes_first = !self.writes_first;
        if self.writes_first {
            if let Poll::Ready(step) = self.poll_write(cx) {
                return Poll::Ready(step);
            }
            return self.poll_read(cx);
        }
        if let Poll::Ready(step) = self.poll_read(cx) {
            return Poll::Ready(step);
        }
        self.poll_write(cx)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if let Some((_, room)) = &mut self.waiting {
            return room.as_mut().poll(cx).map(Step::Room);
        }
        Pin::new(&mut self.socket).poll_next(cx).map(Step::Came)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if self.is_flushing {
            let flushed = ready!(Pin::new(&mut self.socket).poll_flush(cx));
            return Poll::Ready(Step::Flushed(flushed));
        }
        if !self.has_sender {
            return Poll::Pending;
        }
        self.requests.poll_recv(cx).map(Step::Request)
    }

    fn receive(&mut self, frame: tungstenite::Message) -> Result<(), Closed> {
        match frame {
            // The pong is queued already.
            tungstenite::Message::Ping(_) => self.is_flushing = true,
            tungstenite::Message::Pong(_) => self.unanswered = None,
            tungstenite::Message::Close(close) => {
                return Err(Closed::ByServer(close.map(|close| close.code.into())));
            }
            frame => {
                let size = frame.len();
                match wire::decode(self.protocol, frame) {
                    Ok(message) => self.make_room(message),
                    Err(error) if self.skipped => {
                        tracing::debug!(%error, size, "a frame of the kernel's channels is skipped");
                    }
                    Err(error) => {
                        self.skipped = true;
                        tracing::warn!(%error, size, "a frame of the kernel's channels is skipped");
                    }
                }
            }
        }
        Ok(())
    }

    fn make_room(&mut self, message: Message) {
        let weight = message.size().clamp(1, INBOX_BYTES);
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        match Arc::clone(&self.room).try_acquire_many_owned(weight) {
            Ok(room) => self.deliver(message, room),
            Err(_) => {
                let room = Arc::clone(&self.room).acquire_many_owned(weight);
                self.waiting = Some((message, Box::pin(async { room.await.ok() })));
            }
        }
    }

    fn deliver(&self, message: Message, room: OwnedSemaphorePermit) {
        if let Some(inbox) = &self.inbox {
            // Without a reader the pump is about to end.
            let _ = inbox.send((message, room));
        }
    }

    /// Hands the next fragment to the socket.
    fn start_next(&mut self) -> Result<(), Error> {
        let Some(sending) = &mut self.sending else {
            return Ok(());
        };
        let (frame, is_last) = sending.next();
        if is_last {
            self.sending = None;
        }
        self.start(tungstenite::Message::Frame(frame))
    }

    fn start(&mut self, frame: tungstenite::Message) -> Result<(), Error> {
        self.is_flushing = true;
        // It is appended to what is still being written.
        Pin::new(&mut self.socket).start_send(frame)
    }

    fn tick(&mut self) -> Result<(), Closed> {
        let now = Instant::now();
        let beats = self.socket.get_ref().beats();
        if let Some((by, before)) = self.unanswered
            && now >= by
        {
            // While there is no room for messages, no pong is read.
            if beats == before && self.waiting.is_none() {
                return Err(Closed::Silent);
            }
            self.unanswered = Some((now + self.timing.ping_answer, beats));
        }
        if now >= self.next_ping {
            self.next_ping = now + self.timing.ping_every;
            if self.unanswered.is_none() {
                self.start(tungstenite::Message::Ping(Bytes::new()))?;
                self.unanswered = Some((now + self.timing.ping_answer, beats));
            }
        }
        let next = self
            .unanswered
            .map_or(self.next_ping, |(by, _)| by.min(self.next_ping));
        self.clock.as_mut().reset(next);
        Ok(())
    }

    /// Sends what was taken before, and closes.
    async fn finish(&mut self) -> Result<(), Error> {
        loop {
            if self.sending.is_none() {
                let Ok(message) = self.requests.try_recv() else {
                    break;
                };
                self.sending = Fragments::of(message);
            }
            self.start_next()?;
            self.socket.flush().await?;
        }
        self.socket.close(None).await
    }
}

/// A message that goes out piece by piece.
struct Fragments {
    kind: OpCode,
    rest: Bytes,
}

impl Fragments {
    fn of(message: tungstenite::Message) -> Option<Self> {
        let (kind, rest) = match message {
            tungstenite::Message::Text(text) => (Data::Text, text.into()),
            tungstenite::Message::Binary(bytes) => (Data::Binary, bytes),
            _ => return None,
        };
        Some(Self {
            kind: OpCode::Data(kind),
            rest,
        })
    }

    /// The next piece, and whether it is the last.
    fn next(&mut self) -> (Frame, bool) {
        let piece = self.rest.split_to(self.rest.len().min(FRAGMENT));
        let is_last = self.rest.is_empty();
        let frame = Frame::message(piece, self.kind, is_last);
        self.kind = OpCode::Data(Data::Continue);
        (frame, is_last)
    }
}
