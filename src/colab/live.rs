//! A cell with a companion: what it is, the journal says; the call only makes it run.
//!
//! The cell's `execute_code` call and the journal are followed side by side. Text, displays, prompts and the end come from the
//! journal; the call's progress is counted, and published only while the companion is away or has not found the cell. Invariants:
//!
//! * Nothing is published twice and nothing out of order, whichever of the two tells it (see [`Ledger`]).
//! * A call whose answer was lost is repeated only if the journal does not say that its code has ended.
//! * The call outlives the cell: its stream stays open until its own result comes, because closing it can be an interrupt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cell::{Run, Shown};
use super::companion::activity::{Activity, Arrival, ExecuteReply, LetGo};
use super::companion::journal::Told;
use super::companion::link::Health;
use super::companion::{Companion, Fate, events};
use super::execution::{Execution, Listener, Lost, Repeat, Reply};
use super::ledger::Ledger;
use super::mcp::Progress;
use super::names;
use super::progress::Chunk;
use super::service::Service;
use super::session::{Counts, OpenSession};
use super::text::Publisher;
use super::until;
use super::waiting::Waiting;
use crate::backend::{
    self, BackendError, Cell, ErrorName, Event, EventReceiver, EventSender, Exception, Outcome,
};

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

/// A call that goes on behind its cell.
#[derive(Debug)]
pub(super) struct Tail {
    done: JoinHandle<Result<Reply, Lost>>,
    companion: Companion,
    count: Option<u32>,
    session: Option<String>,
    /// Until when it is waited for.
    by: Instant,
}

impl Tail {
    /// Waits for its end until then.
    async fn end(&mut self, by: Instant) -> TailEnd {
        let mut end = TailEnd::default();
        match tokio::time::timeout_at(by, &mut self.done).await {
            Ok(Ok(Ok(reply))) => {
                let (session, count) = (self.session.as_deref(), self.count);
                end.counts_rise = confirm(&self.companion, session, count, &reply);
            }
            Ok(Ok(Err(lost))) => {
                end.stopping = matches!(lost, Lost::Interrupted { .. });
                tracing::info!(?lost, "a call ended without a result behind its cell");
            }
            Ok(Err(error)) => tracing::error!(%error, "a call failed"),
            Err(_) => tracing::warn!("a call has not ended behind its cell; it is left alone"),
        }
        end
    }

    /// Closes the call's stream: its kernel is gone.
    pub fn abort(self) {
        self.done.abort();
    }
}

/// What the end of a call says to the cell behind it.
#[derive(Debug, Default)]
struct TailEnd {
    /// The service may be stopping it still.
    stopping: bool,
    /// The service's numbers are the kernel's.
    counts_rise: bool,
}

/// Compares the service's number of a cell with the kernel's. Returns whether they show that the service numbers as its kernel does.
fn confirm(
    companion: &Companion,
    session: Option<&str>,
    count: Option<u32>,
    reply: &Reply,
) -> bool {
    let told = u32::try_from(reply.result.execution_count).ok();
    let (Some(count), Some(told)) = (count, told.filter(|told| *told > 0)) else {
        return false;
    };
    if told != count {
        tracing::warn!(
            told,
            count,
            "the service numbers a cell in another way than its kernel"
        );
        return false;
    }
    if let Some(session) = session {
        companion.confirm_service(session);
    }
    count > 1
}

/// What the call tells the cell.
enum News {
    Submitted,
    /// Text of this attempt of the call.
    Progress(Progress, u32),
}

/// The call's end of the cell.
struct Feed {
    news: mpsc::Sender<News>,
    attempt: u32,
    view: Arc<View>,
    companion: Companion,
}

/// What the call has to know of the cell.
#[derive(Debug, Default)]
struct View {
    has_published: AtomicBool,
    ended: AtomicBool,
}

impl Listener for Feed {
    async fn submitted(&mut self) {
        // Without a cell there is nobody to tell.
        let _ = self.news.send(News::Submitted).await;
    }

    async fn progress(&mut self, progress: Progress) {
        let _ = self.news.send(News::Progress(progress, self.attempt)).await;
    }

    fn reattach(&mut self) {
        self.attempt += 1;
    }

    fn has_published(&self) -> bool {
        self.view.has_published.load(Ordering::Relaxed)
    }

    async fn may_repeat(&mut self) -> Repeat {
        let fate = self.companion.fate().await;
        if self.view.ended.load(Ordering::Relaxed) {
            return Repeat::Ended;
        }
        match fate {
            Fate::Told | Fate::Unknown => Repeat::Yes,
            Fate::Lost => Repeat::Lost,
        }
    }
}

/// Where the call goes.
struct Target {
    session: String,
    /// Whether the session exists before the call.
    exists: bool,
    /// Whether the service may still be stopping the call before this one.
    behind_a_stop: bool,
}

/// Whoever ends before its interrupt is answered does not let it go on.
impl<S: Service> Drop for Live<'_, S> {
    fn drop(&mut self) {
        if let Some(interrupting) = &self.interrupting {
            interrupting.abort();
        }
    }
}

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
                ended = tail.end(tail.by) => Some(ended),
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
            return Err(Lost::Session);
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

    /// Makes the cell's call in a task of its own.
    fn start(
        &self,
        target: Target,
        cell: &Cell,
        mut feed: Feed,
        events: EventSender,
        stop: CancellationToken,
    ) -> JoinHandle<Result<Reply, Lost>> {
        let service = self.backend.service.clone();
        let code = cell.code.clone();
        tokio::spawn(async move {
            let execution = Execution {
                service: &service,
                waiting: Waiting { events: &events },
                stop: &stop,
                session: &target.session,
                session_exists: target.exists,
                behind_a_stop: target.behind_a_stop,
            };
            execution.run(code, &mut feed, true).await
        })
    }

    /// A service that fails the first cell behind the bootstrap may not bear it: it is taken out, and the session goes on as
    /// text.
    async fn take_out_if_it_disturbs(
        &self,
        session: &OpenSession,
        companion: &Companion,
        over: &Option<Result<Reply, Lost>>,
    ) {
        let disturbs = matches!(over, Some(Err(Lost::Failed(status)))
            if names::named(status).name == ErrorName::ColabProtocolError);
        if disturbs && !session.companion_proven {
            tracing::warn!(
                "the first cell with the companion failed; this session goes on without it"
            );
            companion.uninstall().await;
            self.backend.drop_companion(&session.name);
        } else if !matches!(over, Some(Err(_))) {
            self.backend
                .update(&session.name, |session| session.companion_proven = true);
        }
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
                    None => return End::Lost(Lost::Session),
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

    /// Whether, and how, the cell ends without the journal's word.
    fn conclusion(&self, health: Health, told: &watch::Receiver<Told>) -> Option<End> {
        if matches!(health, Health::Lost(_)) {
            // The journal's last words come first; then its end is told.
            return None;
        }
        let away_for = match health {
            Health::Away(since) => Some(since.elapsed()),
            _ => None,
        };
        let is_read = {
            let told = told.borrow();
            told.polls > self.polls_at_over && told.caught_up
        };
        let is_waited_for = self.activity.is_adopted() || !is_read;
        let waits = match away_for {
            Some(away) => away < AWAY,
            None => is_waited_for && self.over_at.elapsed() < LAST_WORDS,
        };
        let given_up = self
            .interrupted_at
            .is_some_and(|since| since.elapsed() >= GIVEN_UP);
        match &self.over {
            None if given_up => Some(End::Lost(Lost::Interrupted { confirmed: false })),
            None => None,
            Some(Ok(reply)) => {
                let contradicts = self.contradicts(reply);
                (contradicts || !waits || given_up).then_some(End::Result)
            }
            Some(Err(lost @ (Lost::Runtime { .. } | Lost::Session))) => {
                Some(End::Lost(lost.clone()))
            }
            // The code goes on, as far as the kernel is concerned.
            Some(Err(Lost::Failed(_) | Lost::GaveUp { .. }))
                if away_for.is_none() && self.activity.is_adopted() && !given_up =>
            {
                None
            }
            Some(Err(_)) if self.interrupted_at.is_some() && waits && !given_up => None,
            Some(Err(lost)) => (!waits || given_up).then(|| End::Lost(lost.clone())),
        }
    }

    /// Whether the service's number denies that the adopted execution was this cell's.
    fn contradicts(&self, reply: &Reply) -> bool {
        self.run.backend.state().counts == Counts::Rise
            && self.count.is_some_and(|count| {
                reply.result.execution_count > 0 && reply.result.execution_count != i64::from(count)
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

    /// Notes what is known of the session after a cell whose end nobody told.
    fn note_lost(&mut self, lost: &Lost) {
        let has_not_run = matches!(
            lost,
            Lost::InterruptedBefore
                | Lost::Failed(_)
                | Lost::GaveUp { sent: false, .. }
                | Lost::Runtime { begun: false, .. }
        );
        if has_not_run {
            self.activity.let_go_unseen();
        } else {
            self.run.count_untold(self.session);
        }
        let stopping = matches!(lost, Lost::Interrupted { .. });
        self.run.backend.update(&self.session.name, |session| {
            session.stopping = stopping;
        });
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

    /// The end that the journal has told.
    async fn told(&mut self, let_go: LetGo) -> Result<Outcome, BackendError> {
        self.view.ended.store(true, Ordering::Relaxed);
        if let Some(Ok(reply)) = &self.over
            && confirm(self.companion, self.service.as_deref(), self.count, reply)
        {
            self.run.backend.state().counts = Counts::Rise;
        }
        if let Some(interrupting) = &mut self.interrupting {
            // One that is under way would hit the next cell.
            let _ = tokio::time::timeout(STUBBORN, interrupting).await;
        }
        if self.holes > 0 {
            let line = format!(
                "a part of this cell's output is missing: it printed more than the journal keeps while nobody could listen \
                 ({} messages; COLAB_KERNEL_JOURNAL_MB makes the journal larger)",
                self.holes
            );
            self.publisher.say(&line).await;
        }
        let reply = self.reply.take().unwrap_or_default();
        let outcome = self.outcome(reply).await;
        self.run.waiting.events.settled().await;
        drop(let_go);
        let mut outcome = outcome?;
        if outcome.exception.is_none() && !self.cell.user_expressions.is_empty() {
            let evaluated = tokio::select! {
                evaluated = self.companion.evaluate(&self.cell.user_expressions) => evaluated.ok(),
                () = self.run.stop.cancelled(), if self.interrupted_at.is_none() => {
                    self.companion.interrupt().await;
                    None
                }
            };
            outcome.user_expressions =
                evaluated.unwrap_or_else(|| super::cell::refused_expressions(self.cell));
        }
        Ok(outcome)
    }

    async fn outcome(&mut self, reply: ExecuteReply) -> Result<Outcome, BackendError> {
        let count = self.count;
        let interrupted = self.interrupted_at.is_some();
        self.run.backend.update(&self.session.name, |session| {
            session.proven = true;
            session.stopping = false;
            if let Some(count) = count {
                session.last_count = i64::from(count);
                session.untold_runs = 0;
            }
        });
        let mut exception = self.raised.take();
        if self.reattached
            && !interrupted
            && exception
                .as_ref()
                .is_some_and(|raised| raised.ename == "KeyboardInterrupt")
        {
            return Err(names::cell_stopped());
        }
        if let Some(raised) = &exception {
            self.send(Event::Error(raised.clone())).await;
        }
        if let Some(status) = reply.status {
            // What was shown as an error need not have ended the cell, and the reply may say less than what was shown.
            exception = (status == "error").then_some(Exception {
                ename: reply.ename,
                evalue: reply.evalue,
                traceback: reply.traceback,
            });
        } else if exception.is_none() && interrupted && !self.shown.error {
            // ipykernel sends no reply where the interrupt comes between a cell's code and its reply.
            let raised = Exception {
                ename: ErrorName::KeyboardInterrupt.to_string(),
                evalue: String::new(),
                traceback: vec!["KeyboardInterrupt: ".to_owned()],
            };
            self.send(Event::Error(raised.clone())).await;
            exception = Some(raised);
        }
        Ok(Outcome {
            execution_count: count,
            exception,
            payload: reply.payload,
            ..Outcome::default()
        })
    }

    /// The end that the call's result makes, where the journal cannot be had.
    async fn settle(&mut self) -> Result<Result<Outcome, BackendError>, Lost> {
        for chunk in self.ledger.surplus() {
            self.publish(chunk).await;
        }
        self.release_error().await;
        let Some(Ok(reply)) = self.over.take() else {
            return Err(Lost::Session);
        };
        let is_read = {
            let told = self.companion.journal().told();
            let told = told.borrow();
            told.polls > self.polls_at_over && told.caught_up
        };
        if !self.activity.is_adopted() && is_read {
            // It has run, and was not seen by the session that the service was known by.
            self.companion.forget_service();
            self.activity.let_go_unseen();
        }
        let shown = std::mem::take(&mut self.shown);
        let outcome = self
            .run
            .settle(self.session, self.cell, reply, &mut self.publisher, &shown)
            .await;
        Ok(outcome)
    }
}
