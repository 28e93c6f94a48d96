//! How a cell with a companion ends: as the journal tells, as the call's result has it, or not known how.

use std::sync::atomic::Ordering;

use tokio::sync::watch;

use super::super::cell::{self, Run};
use super::super::companion::Companion;
use super::super::companion::activity::{ExecuteReply, LetGo};
use super::super::companion::journal::Told;
use super::super::companion::link::Health;
use super::super::execution::{Lost, Reply};
use super::super::names;
use super::super::service::Service;
use super::super::session::{Counts, OpenSession};
use super::call::confirm;
use super::{AWAY, End, GIVEN_UP, LAST_WORDS, Live, STUBBORN};
use crate::backend::{BackendError, ErrorName, Event, Exception, Outcome};

impl<S: Service> Live<'_, S> {
    /// Whether, and how, the cell ends without the journal's word.
    pub(super) fn conclusion(&self, health: Health, told: &watch::Receiver<Told>) -> Option<End> {
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

    /// The end that the journal has told.
    pub(super) async fn told(&mut self, let_go: LetGo) -> Result<Outcome, BackendError> {
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
                evaluated.unwrap_or_else(|| cell::refused_expressions(self.cell));
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
    pub(super) async fn settle(&mut self) -> Result<Result<Outcome, BackendError>, Lost> {
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

    /// Notes what is known of the session after a cell whose end nobody told.
    pub(super) fn note_lost(&mut self, lost: &Lost) {
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
}

impl<S: Service> Run<'_, S> {
    /// A service that fails the first cell behind the bootstrap may not bear it: it is taken out, and the session goes on as
    /// text.
    pub(super) async fn take_out_if_it_disturbs(
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
