//! A task as its handler sees it.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::floor::{Floor, Stop, Terms};
use crate::client::guard::{GuardState, Health};
use crate::model::{ExecutionId, Progress, Task, TaskId, Token, Ttl};
use crate::store::Moment;

/// A task that this worker has leased, with what it is about. Its lease is kept alive in the background for as long as
/// the handler runs.
pub struct Running<W> {
    /// What it is about.
    pub work: W,
    task: Arc<Task>,
    lock_token: Option<Token>,
    ties: Ties,
}

/// What ties a handler to its worker.
#[derive(Clone)]
pub(in crate::client) struct Ties {
    pub(super) floor: Arc<Floor>,
    pub(super) terms: watch::Receiver<Terms>,
    /// How the task's lock is, if it has one.
    pub(super) lock: Option<watch::Receiver<Health>>,
    /// Cancelled when the worker begins to end.
    pub(super) ending: CancellationToken,
    /// The handler is not dropped when it has to stop.
    pub(super) patient: bool,
    /// The handler is stopped when it has run for this long.
    pub(super) max_runtime: Option<Ttl>,
}

impl<W> Running<W> {
    pub(in crate::client) fn new(work: W, task: Arc<Task>, lock_token: Option<Token>, ties: Ties) -> Self {
        Self { work, task, lock_token, ties }
    }

    /// The task's id: the same in every attempt.
    pub fn id(&self) -> TaskId {
        self.task.id
    }

    /// The execution that it is, if it is one of a workflow.
    pub fn execution(&self) -> Option<ExecutionId> {
        ExecutionId::of_task(&self.task)
    }

    /// The fencing token of this attempt: give it to whatever the work writes to.
    pub fn token(&self) -> Token {
        self.task.token
    }

    /// The fencing token of the task's lock, if it has one.
    pub fn lock_token(&self) -> Option<Token> {
        self.lock_token
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.task.attempt
    }

    /// Whether there is no attempt after this one.
    pub fn is_last_attempt(&self) -> bool {
        self.task.attempt >= self.task.retries.attempts
    }

    /// The task as it was leased.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Tells how far it has come. Others can see it within about a second.
    pub fn progress(&self, progress: Progress) {
        self.ties.floor.tell(self.task.id, self.task.token, progress);
    }

    /// Until when the lease lasts at least, and that on the task's lock, on this machine's boot clock. Nothing may be done
    /// under it after that moment. It moves on as long as the worker can keep the lease alive.
    pub fn valid_until(&self) -> Moment {
        let until = self.ties.terms.borrow().valid_until;
        self.ties.lock.as_ref().map_or(until, |lock| until.min(lock.borrow().valid_until))
    }

    /// Resolves when [`valid_until`](Self::valid_until) is another moment than this one, and gives it.
    pub async fn renewed(&self, known: Moment) -> Moment {
        let mut terms = self.ties.terms.clone();
        let mut lock = self.ties.lock.clone();
        loop {
            terms.mark_unchanged();
            lock.iter_mut().for_each(watch::Receiver::mark_unchanged);
            let until = self.valid_until();
            if until != known {
                return until;
            }
            tokio::select! {
                () = changed(Some(&mut terms)) => {}
                () = changed(lock.as_mut()) => {}
            }
        }
    }

    /// Resolves when the lease is lost, or somebody wants the task stopped. The handler is dropped then anyway, at its
    /// next `await`, unless its worker is [`patient`](super::WorkerBuilder::patient); this is for work that runs
    /// elsewhere on its behalf.
    pub async fn lost(&self) {
        let mut terms = self.ties.terms.clone();
        let stopped = async {
            if terms.wait_for(|terms| terms.stop.is_some()).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let lock_lost = async {
            let Some(mut lock) = self.ties.lock.clone() else { return std::future::pending().await };
            if lock.wait_for(|health| health.state == GuardState::Lost).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = stopped => {}
            () = lock_lost => {}
        }
    }

    /// Returns whether the handler has to stop because it has run for as long as it may.
    pub fn is_overdue(&self) -> bool {
        self.ties.terms.borrow().stop == Some(Stop::Overdue)
    }

    /// Resolves when the worker begins to end: a good time to come to a good place to stop at.
    pub async fn ending(&self) {
        self.ties.ending.cancelled().await;
    }
}

/// Resolves with the next change; never if there can be none.
async fn changed<T>(watch: Option<&mut watch::Receiver<T>>) {
    if let Some(watch) = watch
        && watch.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}
