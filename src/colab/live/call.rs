//! The call that makes a cell with a companion run, in a task of its own, and what of it outlives the cell.
//!
//! Invariants: the cell is told of the call through a bounded queue and never waits for it; a call whose answer was lost is repeated
//! only if the journal does not say that its code has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::cell::Run;
use super::super::companion::{Companion, Fate};
use super::super::execution::{Execution, Listener, Lost, Repeat, Reply};
use super::super::mcp::Progress;
use super::super::service::Service;
use super::super::waiting::Waiting;
use crate::backend::{Cell, EventSender};

/// A call that goes on behind its cell.
#[derive(Debug)]
pub struct Tail {
    pub(super) done: JoinHandle<Result<Reply, Lost>>,
    pub(super) companion: Companion,
    pub(super) count: Option<u32>,
    pub(super) session: Option<String>,
    /// Until when it is waited for.
    pub(super) by: Instant,
}

impl Tail {
    /// Waits for its end, as long as that is waited for.
    pub(super) async fn end(&mut self) -> TailEnd {
        let mut end = TailEnd::default();
        match tokio::time::timeout_at(self.by, &mut self.done).await {
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
pub(super) struct TailEnd {
    /// The service may be stopping it still.
    pub(super) stopping: bool,
    /// The service's numbers are the kernel's.
    pub(super) counts_rise: bool,
}

/// Compares the service's number of a cell with the kernel's. Returns whether they show that the service numbers as its kernel does.
pub(super) fn confirm(
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
pub(super) enum News {
    Submitted,
    /// Text of this attempt of the call.
    Progress(Progress, u32),
}

/// The call's end of the cell.
pub(super) struct Feed {
    pub(super) news: mpsc::Sender<News>,
    pub(super) attempt: u32,
    pub(super) view: Arc<View>,
    pub(super) companion: Companion,
}

/// What the call has to know of the cell.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) has_published: AtomicBool,
    pub(super) ended: AtomicBool,
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
pub(super) struct Target {
    pub(super) session: String,
    /// Whether the session exists before the call.
    pub(super) exists: bool,
    /// Whether the service may still be stopping the call before this one.
    pub(super) behind_a_stop: bool,
}

impl<S: Service> Run<'_, S> {
    /// Makes the cell's call in a task of its own.
    pub(super) fn start(
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
}
