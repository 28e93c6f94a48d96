//! The requests that wait for their turn: cells, and what is served between them in the order of its arrival.
//!
//! A failed cell takes only cells out of the queue: comm messages and questions behind it are served.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use super::messages::ExecuteRequest;
use crate::backend::Question;
use crate::jupyter::message::Request;
use crate::jupyter::sockets::Outbox;

/// What a request of the queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// `execute_request`
    Cell,
    /// `comm_open`, `comm_msg`, `comm_close`
    Comm,
    /// What the remote kernel answers.
    Question(Question),
}

impl Work {
    /// What a message of this type is. `None`: nothing for the queue.
    pub fn of(msg_type: &str) -> Option<Self> {
        Some(match msg_type {
            "execute_request" => Self::Cell,
            "comm_open" | "comm_msg" | "comm_close" => Self::Comm,
            "complete_request" => Self::Question(Question::Complete),
            "inspect_request" => Self::Question(Question::Inspect),
            "comm_info_request" => Self::Question(Question::CommInfo),
            _ => return None,
        })
    }
}

/// A request that waits, and where its reply goes.
#[derive(Debug)]
pub struct Queued {
    /// What it is.
    pub work: Work,
    /// The request.
    pub request: Request,
    /// The socket it came in on.
    pub outbox: Outbox,
}

impl Queued {
    fn stops_on_error(&self) -> bool {
        self.request
            .content::<ExecuteRequest>()
            .is_ok_and(|content| content.stop_on_error)
    }
}

/// What a finished cell means for those behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They run.
    Continue,
    /// Abort those that asked to be aborted by an error: the cell was interrupted.
    AbortWilling,
    /// Abort all of them.
    AbortAll,
}

/// The requests that wait.
#[derive(Debug)]
pub struct Queue {
    incoming: mpsc::UnboundedReceiver<Queued>,
    /// Requests that were looked at when an earlier cell failed, and go on.
    kept: VecDeque<Queued>,
}

impl Queue {
    /// What this receives, in its order.
    pub fn new(incoming: mpsc::UnboundedReceiver<Queued>) -> Self {
        Self {
            incoming,
            kept: VecDeque::new(),
        }
    }

    /// The next request. `None`: there will be no more.
    pub async fn next(&mut self) -> Option<Queued> {
        match self.kept.pop_front() {
            Some(queued) => Some(queued),
            None => self.incoming.recv().await,
        }
    }

    /// Takes out the cells that wait at this moment and are to be aborted.
    pub fn take(&mut self, verdict: Verdict) -> VecDeque<Queued> {
        if verdict == Verdict::Continue {
            return VecDeque::new();
        }
        let (aborted, kept) = self.take_all().into_iter().partition(|queued| {
            queued.work == Work::Cell && (verdict == Verdict::AbortAll || queued.stops_on_error())
        });
        self.kept = kept;
        aborted
    }

    /// Takes out everything that waits at this moment.
    pub fn take_all(&mut self) -> VecDeque<Queued> {
        while let Ok(queued) = self.incoming.try_recv() {
            self.kept.push_back(queued);
        }
        std::mem::take(&mut self.kept)
    }
}
