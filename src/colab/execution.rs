//! One `execute_code` call: from its submission to its result, over lost connections and interrupts.
//!
//! Invariants:
//!
//! * The identical call (session, execution id, code) is repeated only where its answer was lost or it did not run, and never
//!   after it has been cancelled: a cancelled execution id is not used again.
//! * An interrupt ends the call within [`GRACE`]: the notification is posted at once, and if the call has not ended by then its
//!   stream is closed, which is the cancellation in MCP 2026-07-28. Neither is done twice, so that the next cell is not hit.
//! * Before a call is repeated, `list_sessions` tells whether the session is still there; a lost one is never recreated silently.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::api::{ExecuteCode, ExecuteCodeResult};
use super::mcp::CallEvent;
use super::mcp::Progress as Told;
use super::mcp::errors::{Code, Origin, Status};
use super::names::{Verdict, verdict};
use super::retry;
use super::service::{Service, ServiceCall};
use super::text::Publisher;
use super::until;
use super::waiting::{Waiting, line};

/// How long a call may go on after it has been cancelled before its stream is closed.
pub const GRACE: Duration = Duration::from_millis(300);
/// How long the posting of a cancellation may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);
/// How long after a repeated call its cancellation is posted: the service has to know the call first.
const ATTACH: Duration = Duration::from_millis(150);
/// A call that is aborted this soon after another was interrupted was queued behind it. Later it may have run.
const SWEEP: Duration = Duration::from_secs(2);
/// An attempt that lived this long was no failure from its start.
const STEADY: Duration = Duration::from_millis(500);
/// A call that was open for this long was taken by the service, even if nothing was heard of it.
const ALIVE: Duration = Duration::from_secs(5);

/// What a call runs on and who may stop it.
#[derive(Debug, Clone, Copy)]
pub struct Execution<'a, S> {
    /// The service.
    pub service: &'a S,
    /// How the user is told of waits.
    pub waiting: Waiting<'a>,
    /// The user's interrupt.
    pub stop: &'a CancellationToken,
    /// The session's full name.
    pub session: &'a str,
    /// Whether the session exists before the call.
    pub session_exists: bool,
    /// Whether the service may still be stopping the call before this one, which can abort those queued behind it.
    pub behind_a_stop: bool,
}

/// What becomes of a call's text, and who decides whether the call may be made again.
pub trait Listener: Send {
    /// The call has been handed to the service.
    fn submitted(&mut self) -> impl Future<Output = ()> + Send;

    /// Text has come.
    fn progress(&mut self, progress: Told) -> impl Future<Output = ()> + Send;

    /// The call is repeated: what comes next may have come before.
    fn reattach(&mut self);

    /// Whether the cell shows something.
    fn has_published(&self) -> bool;

    /// Whether a call whose answer was lost may be repeated.
    fn may_repeat(&mut self) -> impl Future<Output = Repeat> + Send;
}

/// Whether a call may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It may: the code goes on, never began, or nobody knows.
    Yes,
    /// The code has ended: a repeated call would run it again.
    Ended,
    /// The kernel is gone.
    Lost,
}

/// Over `execute_code` alone nobody knows.
impl Listener for Publisher {
    async fn submitted(&mut self) {
        Publisher::submitted(self).await;
    }

    async fn progress(&mut self, progress: Told) {
        Publisher::progress(self, progress).await;
    }

    fn reattach(&mut self) {
        Publisher::reattach(self);
    }

    fn has_published(&self) -> bool {
        Publisher::has_published(self)
    }

    async fn may_repeat(&mut self) -> Repeat {
        Repeat::Yes
    }
}

/// A call that came back.
#[derive(Debug)]
pub struct Reply {
    /// What it brought.
    pub result: ExecuteCodeResult,
    /// Whether it took more than one call.
    pub reattached: bool,
    /// Whether the user interrupted it.
    pub interrupted: bool,
}

/// Why a call did not come back with a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// The user's interrupt ended the wait; nothing ran.
    InterruptedBefore,
    /// The user interrupted it. `confirmed`: the service ended the call because of that.
    Interrupted {
        /// Whether the service said so.
        confirmed: bool,
    },
    /// The user's interrupt came while the connection was lost: the code may go on.
    InterruptedAway,
    /// The runtime is gone. `begun`: the code may have run.
    Runtime {
        /// The service's answer.
        status: Status,
        /// Whether the code may have run.
        begun: bool,
    },
    /// The session is gone.
    Session,
    /// The code has ended, but the answer was lost: the listener knows how.
    Ended,
    /// The service will not run it.
    Failed(Status),
    /// The service has not answered for too long. `sent`: the code may have run all the same.
    GaveUp {
        /// The last answer.
        status: Status,
        /// Whether the code may have run.
        sent: bool,
    },
}

/// How one attempt of a call ended.
enum Attempt {
    Result(Box<ExecuteCodeResult>),
    Stopped { confirmed: bool },
    NotStarted,
    Failed { status: Status, begun: bool },
}

/// What is known of a call over all its attempts.
#[derive(Debug, Default)]
struct Progress {
    /// Whether an attempt may have reached the kernel.
    sent: bool,
    /// Whether one is known to have.
    begun: bool,
    /// Whether the service said last that the code goes on: the identical call listens on, and can be cancelled.
    goes_on: bool,
    /// Whether the user was told that the cell is handed over.
    announced: bool,
    attempts: u32,
}

impl<S: Service> Execution<'_, S> {
    /// Runs code to its result. `announce`: whether the user is told that it is handed over.
    pub async fn run(
        &self,
        code: String,
        publisher: &mut impl Listener,
        announce: bool,
    ) -> Result<Reply, Lost> {
        let mut call = ExecuteCode {
            session: self.session.to_owned(),
            execution_id: fresh_id(),
            code,
        };
        let mut patience = Patience::default();
        let mut so_far = Progress {
            announced: !announce,
            ..Progress::default()
        };
        loop {
            if self.stop.is_cancelled() && !so_far.goes_on {
                return Err(so_far.interrupted());
            }
            let attempt_since = Instant::now();
            so_far.attempts += 1;
            let (status, begun) = match self.attempt(&call, publisher, &mut so_far).await {
                Attempt::Result(result) => {
                    return Ok(Reply {
                        result: *result,
                        reattached: so_far.attempts > 1 && so_far.sent,
                        interrupted: self.stop.is_cancelled(),
                    });
                }
                Attempt::Stopped { confirmed } => return Err(Lost::Interrupted { confirmed }),
                Attempt::NotStarted => return Err(so_far.interrupted()),
                Attempt::Failed { status, begun } => (status, begun),
            };
            tracing::info!(code = ?status.code, origin = ?status.origin, begun, "an execute_code call ended without a result");
            so_far.begun |= begun;
            so_far.goes_on = status.code == Code::DeadlineExceeded;
            let is_steady = begun && attempt_since.elapsed() >= STEADY;
            if is_steady {
                patience = Patience::default();
            }
            if self.was_swept(&status, begun, &so_far, attempt_since) {
                // It did not run; an aborted execution is not resumed, so this is another one.
                call.execution_id = fresh_id();
                continue;
            }
            match verdict(&status) {
                Verdict::Final => return Err(Lost::Failed(status)),
                Verdict::NotFound => {
                    let begun = so_far.sent;
                    return Err(Lost::Runtime { status, begun });
                }
                Verdict::Unknown => so_far.sent = true,
                Verdict::NotSent | Verdict::RateLimited => {}
            }
            patience.at_once = is_steady && so_far.goes_on;
            self.wait(status, &mut patience, &so_far, publisher).await?;
            // A notice that stands there again is taken away when the call is made.
            so_far.announced &= !(announce && std::mem::take(&mut patience.noticed));
            if so_far.sent {
                match publisher.may_repeat().await {
                    Repeat::Yes => publisher.reattach(),
                    Repeat::Ended => return Err(Lost::Ended),
                    Repeat::Lost => return Err(Lost::Session),
                }
            }
        }
    }

    /// Whether the first attempt was aborted in the queue, because the call before it was stopped.
    fn was_swept(&self, status: &Status, begun: bool, so_far: &Progress, since: Instant) -> bool {
        self.behind_a_stop
            && !begun
            && so_far.attempts == 1
            && matches!(status.code, Code::Aborted | Code::Cancelled)
            && since.elapsed() < SWEEP
    }

    /// One call, until it ends.
    async fn attempt(
        &self,
        call: &ExecuteCode,
        publisher: &mut impl Listener,
        so_far: &mut Progress,
    ) -> Attempt {
        let since = Instant::now();
        let is_stopped = self.stop.is_cancelled();
        let mut deadline = is_stopped.then(|| since + ATTACH + GRACE);
        let mut stream = self.service.execute_code(call);
        if !std::mem::replace(&mut so_far.announced, true) {
            publisher.submitted().await;
        }
        let _canceller = Canceller::new(self.stop.clone(), &stream, is_stopped);
        let mut begun = false;
        loop {
            let event = tokio::select! {
                biased;
                () = self.stop.cancelled(), if deadline.is_none() => {
                    deadline = Some(Instant::now() + GRACE);
                    continue;
                }
                () = until(deadline) => return Attempt::Stopped { confirmed: false },
                event = stream.next() => event,
            };
            let status = match event {
                Some(CallEvent::Progress(progress)) => {
                    begun = true;
                    if !self.publish(publisher, progress, &mut deadline).await {
                        return Attempt::Stopped { confirmed: false };
                    }
                    continue;
                }
                Some(CallEvent::Finished(Ok(value))) => match ExecuteCodeResult::parse(value) {
                    Ok(result) => return Attempt::Result(Box::new(result)),
                    Err(status) => status,
                },
                Some(CallEvent::Finished(Err(status))) => status,
                None => Status::new(
                    Code::Unavailable,
                    Origin::Transport,
                    "the answer ended early",
                ),
            };
            if deadline.is_some() {
                return ended_by_stop(&status);
            }
            let begun = begun
                || status.code == Code::DeadlineExceeded
                || verdict(&status) == Verdict::Unknown && since.elapsed() > ALIVE;
            return Attempt::Failed { status, begun };
        }
    }

    /// Publishes text; `false` if the front-end did not take it before an interrupt's time was up.
    async fn publish(
        &self,
        publisher: &mut impl Listener,
        progress: Told,
        deadline: &mut Option<Instant>,
    ) -> bool {
        let mut publishing = pin!(publisher.progress(progress));
        loop {
            tokio::select! {
                biased;
                () = &mut publishing => return true,
                () = self.stop.cancelled(), if deadline.is_none() => {
                    *deadline = Some(Instant::now() + GRACE);
                }
                () = until(*deadline) => return false,
            }
        }
    }

    /// Waits until the call may be repeated; fails where it may not.
    async fn wait(
        &self,
        mut status: Status,
        patience: &mut Patience,
        so_far: &Progress,
        publisher: &impl Listener,
    ) -> Result<(), Lost> {
        loop {
            if !std::mem::take(&mut patience.at_once) {
                patience.failures += 1;
                let delay = retry::wait(patience.failures, status.retry_after, retry::jitter());
                if !so_far.begun && patience.since.elapsed() + delay > retry::PATIENCE {
                    let sent = so_far.sent;
                    return Err(Lost::GaveUp { status, sent });
                }
                // A notice is taken away again by clearing what the cell shows: not where it shows something already.
                if !publisher.has_published() {
                    self.waiting.notice(line(&status, delay)).await;
                    patience.noticed = true;
                }
                tokio::select! {
                    () = self.stop.cancelled() => return so_far.stopped(),
                    () = sleep(delay) => {}
                }
            }
            if !so_far.sent {
                return Ok(());
            }
            let sessions = tokio::select! {
                () = self.stop.cancelled() => return so_far.stopped(),
                sessions = self.service.list_sessions(runtime_of(self.session)) => sessions,
            };
            status = match sessions {
                Ok(sessions) if sessions.iter().any(|open| same(&open.name, self.session)) => {
                    return Ok(());
                }
                Ok(_) if !self.session_exists && !so_far.begun => return Ok(()),
                Ok(_) => return Err(Lost::Session),
                Err(status) => status,
            };
            match verdict(&status) {
                Verdict::NotFound => {
                    let begun = so_far.sent;
                    return Err(Lost::Runtime { status, begun });
                }
                Verdict::Final
                    if status.code == Code::Unauthenticated
                        || status.origin == Origin::Credentials =>
                {
                    return Err(Lost::Failed(status));
                }
                // The list is not to be had; the call itself will tell.
                Verdict::Final => return Ok(()),
                Verdict::NotSent | Verdict::RateLimited | Verdict::Unknown => {}
            }
        }
    }
}

/// The failures in a row, and since when.
#[derive(Debug)]
struct Patience {
    failures: u32,
    since: Instant,
    /// Whether the next attempt may follow without a pause.
    at_once: bool,
    /// Whether a notice was shown during the wait.
    noticed: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            failures: 0,
            since: Instant::now(),
            at_once: false,
            noticed: false,
        }
    }
}

impl Progress {
    /// What an interrupt of a wait leads to: code that goes on is listened to once more, to cancel it.
    fn stopped(&self) -> Result<(), Lost> {
        if self.goes_on {
            return Ok(());
        }
        Err(self.interrupted())
    }

    fn interrupted(&self) -> Lost {
        if self.sent {
            Lost::InterruptedAway
        } else {
            Lost::InterruptedBefore
        }
    }
}

/// Posts the cancellation when the user interrupts, also while text waits to be published.
struct Canceller {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Canceller {
    fn new(stop: CancellationToken, call: &impl ServiceCall, is_stopped: bool) -> Self {
        let cancel = call.cancel();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            stopped.cancelled().await;
            if is_stopped {
                sleep(ATTACH).await;
            }
            match tokio::time::timeout(CANCEL_LIMIT, cancel).await {
                Ok(Ok(())) => {}
                Ok(Err(status)) => tracing::info!(%status, "the cancellation was not taken"),
                Err(_) => tracing::info!("the cancellation was not answered"),
            }
        });
        Self { stop, task }
    }
}

impl Drop for Canceller {
    fn drop(&mut self) {
        // A cancellation that is under way is not held back: the service may know of the interrupt by it alone.
        if !self.stop.is_cancelled() {
            self.task.abort();
        }
    }
}

/// How a call ended that was cancelled before: a stream that ends without an answer is how MCP servers acknowledge.
fn ended_by_stop(status: &Status) -> Attempt {
    match (status.origin, status.code) {
        (Origin::Connect | Origin::Credentials, _) | (_, Code::ResourceExhausted) => {
            Attempt::NotStarted
        }
        (Origin::Transport, _) | (_, Code::Cancelled | Code::Aborted) => {
            Attempt::Stopped { confirmed: true }
        }
        _ => Attempt::Stopped { confirmed: false },
    }
}

fn fresh_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// `runtimes/{id}` of a session's full name.
fn runtime_of(session: &str) -> &str {
    session.split("/sessions/").next().unwrap_or(session)
}

/// Whether two names mean the same session; some servers list the bare id.
fn same(listed: &str, own: &str) -> bool {
    let id = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    listed == own || id(listed) == id(own)
}
