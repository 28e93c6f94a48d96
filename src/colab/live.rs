//! A cell with a companion: what it is, the journal says; the call only makes it run.
//!
//! The cell's `execute_code` call and the journal are followed side by side. Text, displays, prompts and the end come from the
//! journal; the call's progress is counted, and published only while the companion is away or has not found the cell. Invariants:
//!
//! * Nothing is published twice and nothing out of order, whichever of the two tells it (see [`Ledger`]).
//! * A call whose answer was lost is repeated only if the journal does not say that its code has ended.
//! * The call outlives the cell: its stream stays open until its own result comes, because closing it can be an interrupt.

mod call;
mod end;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) use self::call::Tail;
use self::call::{Feed, News, Target, View};
use super::cell::{Run, Shown};
use super::companion::activity::{Activity, Arrival, ExecuteReply, LetGo};
use super::companion::journal::Told;
use super::companion::link::Health;
use super::companion::{Companion, events};
use super::execution::{Lost, Reply};
use super::ledger::Ledger;
use super::mcp::errors::{Code, Origin, Status};
use super::progress::Chunk;
use super::service::Service;
use super::session::{Counts, OpenSession};
use super::text::Publisher;
use super::until;
use crate::backend::{self, BackendError, Cell, Event, EventReceiver, Exception, Outcome};

/// How long the companion may be away before progress is published instead.
pub(super) const AWAY: Duration = Duration::from_secs(5);
/// How long the journal may take to tell the end of a cell whose call is over.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// How long after an interrupt the kernel itself is interrupted, if the service has not done it.
const STUBBORN: Duration = Duration::from_secs(2);
/// How long after an interrupt the cell is given up.
const GIVEN_UP: Duration = Duration::from_secs(7);
/// How long a cell may have text and not be found in the journal.
const UNFOUND: Duration = Duration::from_millis(500);
/// How many of the call's news may wait.
const NEWS: usize = 64;

/// A cell while it runs.
struct Live<'a, S: Service> {
    run: &'a Run<'a, S>,
    session: &'a OpenSession,
    cell: &'a Cell,
    companion: &'a Companion,
    activity: Activity,
    publisher: Publisher,
    ledger: Ledger,
    view: Arc<View>,
    /// The attempt of the call that was heard last.
    attempt: u32,
    /// Whether the call was repeated: what progress tells from then on has no known place.
    reattached: bool,
    /// Whether progress is published in spite of that, as text of a repeated call.
    replaying: bool,
    after: Vec<Chunk>,
    shown: Shown,
    /// Whether the front-end was told that the cell is handed over.
    submitted: bool,
    count: Option<u32>,
    /// By which session the kernel got the adopted request.
    service: Option<String>,
    /// The error is the last thing that is published.
    raised: Option<Exception>,
    reply: Option<ExecuteReply>,
    holes: u64,
    over: Option<Result<Reply, Lost>>,
    over_at: Instant,
    polls_at_over: u64,
    unfound_since: Option<(Instant, u64)>,
    interrupted_at: Option<Instant>,
    interrupting: Option<JoinHandle<()>>,
    prompts: JoinSet<()>,
}

/// How the following of a cell ends.
enum End {
    /// The journal says that it has ended.
    Told(LetGo),
    /// The call's result has to do.
    Result,
    /// It cannot be followed any more.
    Lost(Lost),
}

impl<S: Service> Run<'_, S> {
    /// Runs a counted cell.
    pub(super) async fn live(
        &self,
        session: &OpenSession,
        cell: &Cell,
        companion: &Companion,
    ) -> Result<Result<Outcome, BackendError>, Lost> {
        let mut behind_a_stop = session.stopping;
        if let Some(mut tail) = self.backend.take_tail() {
            let ended = tokio::select! {
                biased;
                () = self.stop.cancelled() => None,
                ended = tail.end() => Some(ended),
            };
            let Some(ended) = ended else {
                self.backend.keep_tail(tail);
                return Err(Lost::InterruptedBefore);
            };
            behind_a_stop |= ended.stopping;
            if ended.counts_rise {
                self.backend.state().counts = Counts::Rise;
            }
        }
        if companion.is_lost() {
            return Err(lost_with(companion));
        }
        self.backend.background().settled().await;
        let mut publisher = Publisher::new(
            Some(self.waiting.events.clone()),
            self.backend.state().shape,
        );
        self.preface(&mut publisher);
        let view = Arc::new(View::default());
        let activity = companion.expect(cell.code.clone(), cell.origin.clone());
        let (sender, mut news) = mpsc::channel(NEWS);
        let feed = Feed {
            news: sender,
            attempt: 0,
            view: view.clone(),
            companion: companion.clone(),
        };
        let stop = CancellationToken::new();
        let (notices, noticed) = backend::events();
        let execution = Target {
            session: session.name.clone(),
            exists: session.created || session.proven,
            behind_a_stop,
        };
        let mut call = self.start(execution, cell, feed, notices, stop.clone());
        let now = Instant::now();
        let mut live = Live {
            run: self,
            session,
            cell,
            companion,
            activity,
            publisher,
            ledger: Ledger::default(),
            view,
            attempt: 0,
            reattached: false,
            replaying: false,
            after: Vec::new(),
            shown: Shown::default(),
            submitted: false,
            count: None,
            service: None,
            raised: None,
            reply: None,
            holes: 0,
            over: None,
            over_at: now,
            polls_at_over: 0,
            unfound_since: None,
            interrupted_at: None,
            interrupting: None,
            prompts: JoinSet::new(),
        };
        let end = live.follow(&mut news, noticed, &mut call, &stop).await;
        let outcome = match end {
            End::Told(let_go) => {
                let outcome = live.told(let_go).await;
                if live.over.is_none() {
                    self.backend.keep_tail(Tail {
                        done: call,
                        companion: companion.clone(),
                        count: live.count,
                        session: live.service.take(),
                        by: Instant::now() + LAST_WORDS,
                    });
                }
                Ok(outcome)
            }
            End::Result => live.settle().await,
            End::Lost(lost) => {
                // What has been cancelled has ended by now, and of what is lost nothing comes any more.
                call.abort();
                live.note_lost(&lost);
                Err(lost)
            }
        };
        {
            let mut state = self.backend.state();
            state.shape = live.publisher.shape();
            state.lost &= live.publisher.has_preface();
        }
        self.take_out_if_it_disturbs(session, companion, &live.over)
            .await;
        outcome
    }
}

/// What is lost with this companion's kernel.
fn lost_with(companion: &Companion) -> Lost {
    if !companion.is_without_runtime() {
        return Lost::Session;
    }
    let status = Status::new(
        Code::NotFound,
        Origin::Service,
        "get_runtime does not know it",
    );
    Lost::Runtime {
        status,
        begun: true,
    }
}

impl<S: Service> Live<'_, S> {
    /// Follows the journal and the call until the cell has ended.
    async fn follow(
        &mut self,
        news: &mut mpsc::Receiver<News>,
        mut notices: EventReceiver,
        call: &mut JoinHandle<Result<Reply, Lost>>,
        stop: &CancellationToken,
    ) -> End {
        let mut health = self.companion.health();
        let mut told = self.companion.journal().told();
        let mut has_news = true;
        loop {
            let now = *health.borrow_and_update();
            let read = told.borrow_and_update().clone();
            self.listen_to_progress(now, &read).await;
            if let Some(end) = self.conclusion(now, &told) {
                // What has arrived already comes first.
                let Some(arrival) = self.activity.try_recv() else {
                    return end;
                };
                if let Some(let_go) = self.arrived(arrival).await {
                    return End::Told(let_go);
                }
                continue;
            }
            let deadline = self.deadline(now);
            tokio::select! {
                biased;
                () = self.run.stop.cancelled(), if self.interrupted_at.is_none() => {
                    self.interrupted_at = Some(Instant::now());
                    stop.cancel();
                }
                arrival = self.activity.recv() => match arrival {
                    Some(arrival) => {
                        if let Some(let_go) = self.arrived(arrival).await {
                            return End::Told(let_go);
                        }
                    }
                    // The journal is read no more, because the kernel is lost; what came before has arrived.
                    None => return End::Lost(lost_with(self.companion)),
                },
                heard = news.recv(), if has_news => match heard {
                    Some(heard) => self.heard(heard, &told).await,
                    None => has_news = false,
                },
                done = &mut *call, if self.over.is_none() => {
                    self.over = Some(done.unwrap_or(Err(Lost::Interrupted { confirmed: false })));
                    self.over_at = Instant::now();
                    self.polls_at_over = told.borrow().sent;
                    self.companion.journal().poke();
                }
                // The call outlives the cell, and with it a sender of its own.
                Some(notice) = notices.recv() => self.publisher.send(notice).await,
                _ = health.changed() => {}
                _ = told.changed() => {}
                () = until(deadline) => self.interrupt_kernel(),
            }
        }
    }

    async fn heard(&mut self, news: News, told: &watch::Receiver<Told>) {
        match news {
            News::Submitted => self.submitted().await,
            News::Progress(progress, attempt) => {
                if attempt != self.attempt {
                    self.attempt = attempt;
                    self.reattached = true;
                    self.replaying = false;
                    self.ledger.forget_progress();
                    self.after.clear();
                }
                for chunk in self.publisher.decode(progress) {
                    if self.replaying {
                        self.replay(chunk).await;
                    } else if self.reattached {
                        self.after.push(chunk);
                    } else {
                        self.ledger.progress(chunk);
                    }
                }
                if !self.activity.is_adopted() && self.unfound_since.is_none() {
                    self.unfound_since = Some((Instant::now(), told.borrow().sent));
                    self.companion.journal().poke();
                }
            }
        }
    }

    async fn submitted(&mut self) {
        self.submitted = true;
        self.publisher.submitted().await;
    }

    async fn replay(&mut self, chunk: Chunk) {
        self.publisher.take(chunk).await;
        self.ledger.set_published(self.publisher.published());
    }

    /// Publishes progress where the journal does not tell the text itself.
    async fn listen_to_progress(&mut self, health: Health, told: &Told) {
        let listens = match health {
            Health::Away(since) => since.elapsed() >= AWAY,
            Health::Up => self.is_unfound(told),
            Health::Lost(_) => false,
        };
        if !listens {
            // What the journal tells now has been told by progress, as far as that went.
            self.replaying = false;
            return;
        }
        for chunk in self.ledger.surplus() {
            self.publish(chunk).await;
        }
        if self.reattached && !self.replaying && !self.after.is_empty() {
            self.replaying = true;
            self.publisher.reattach();
        }
        for chunk in std::mem::take(&mut self.after) {
            self.replay(chunk).await;
        }
    }

    /// Whether the journal has been read to its end and the cell was not in it, though it has text.
    fn is_unfound(&self, told: &Told) -> bool {
        !self.activity.is_adopted()
            && self.unfound_since.is_some_and(|(since, polls)| {
                since.elapsed() >= UNFOUND && told.polls > polls && told.caught_up
            })
    }

    /// When the state has to be looked at again.
    fn deadline(&self, health: Health) -> Option<Instant> {
        let away = match health {
            Health::Away(since) => Some(since + AWAY),
            _ => None,
        };
        let over = self.over.as_ref().map(|_| self.over_at + LAST_WORDS);
        let interrupt = self.interrupted_at.map(|since| {
            if self.interrupting.is_some() {
                since + GIVEN_UP
            } else {
                since + STUBBORN
            }
        });
        let unfound = self
            .unfound_since
            .filter(|_| !self.activity.is_adopted())
            .map(|(since, _)| since + UNFOUND);
        let now = Instant::now();
        [away, over, interrupt, unfound]
            .into_iter()
            .flatten()
            .filter(|deadline| *deadline > now || Some(*deadline) == interrupt)
            .min()
    }

    /// The service has not stopped the cell: its kernel is asked.
    fn interrupt_kernel(&mut self) {
        let is_due = self
            .interrupted_at
            .is_some_and(|since| since.elapsed() >= STUBBORN);
        if is_due && self.interrupting.is_none() {
            let (companion, is_adopted) = (self.companion.clone(), self.activity.is_adopted());
            self.interrupting = Some(tokio::spawn(async move {
                if is_adopted {
                    companion.interrupt().await;
                }
            }));
        }
    }

    /// Takes in what the journal says; at the end of the cell, what lets it be read on.
    async fn arrived(&mut self, arrival: Arrival) -> Option<LetGo> {
        match arrival {
            Arrival::Began { count, session } => {
                // The call's own word of it may be on its way yet.
                if !self.submitted {
                    self.submitted().await;
                }
                self.count = count;
                self.service = session;
                self.unfound_since = None;
            }
            Arrival::Message(None, message) => {
                if let Some(event) = events::event(&message) {
                    self.show(event).await;
                }
            }
            Arrival::Message(Some(origin), message) => {
                if let Some(event) = events::event(&message) {
                    self.send(Event::Of(origin, Box::new(event))).await;
                }
            }
            Arrival::Prompt(prompt) => {
                self.view.has_published.store(true, Ordering::Relaxed);
                let events = self.run.waiting.events;
                super::prompt::ask(self.companion, prompt, events, &mut self.prompts).await;
            }
            Arrival::Reply(reply) => self.reply = Some(reply),
            Arrival::Hole(missing) => {
                self.holes += missing;
                self.ledger.forget_progress();
                self.reattached = true;
            }
            Arrival::Ended(let_go) => return Some(let_go),
        }
        None
    }

    async fn show(&mut self, event: Event) {
        self.release_error().await;
        match event {
            Event::Stream { name, text } => {
                let fresh = self.ledger.journal(name, &text);
                let chunk = Chunk {
                    stream: Some(name),
                    text: fresh.to_owned(),
                };
                self.publish(chunk).await;
            }
            Event::Error(exception) => self.raised = Some(exception),
            event => {
                self.shown.note(&event);
                self.send(event).await;
            }
        }
    }

    /// Publishes an error after which the cell went on.
    async fn release_error(&mut self) {
        if let Some(raised) = self.raised.take() {
            self.shown.error = true;
            self.send(Event::Error(raised)).await;
        }
    }

    async fn publish(&mut self, chunk: Chunk) {
        self.view.has_published.store(true, Ordering::Relaxed);
        self.publisher.publish(chunk).await;
    }

    async fn send(&self, event: Event) {
        self.view.has_published.store(true, Ordering::Relaxed);
        self.publisher.send(event).await;
    }
}

/// Whoever ends before its interrupt is answered does not let it go on.
impl<S: Service> Drop for Live<'_, S> {
    fn drop(&mut self) {
        if let Some(interrupting) = &self.interrupting {
            interrupting.abort();
        }
    }
}
