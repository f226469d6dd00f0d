//! A task as its handler sees it.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::heartbeat::WorkerDescription;
use super::held_leases::{CancelReason, HeldLeases, LeaseTerms};
use crate::client::locks::{GuardState, GuardStatus};
use crate::model::{ExecutionId, Progress, Task, TaskId, Token, Ttl};
use crate::store::BootInstant;

/// Task that this worker has leased, with its payload. The worker renews the lease in the
/// background while the handler runs.
pub struct TaskContext<W> {
    /// Payload of the task.
    pub payload: W,
    task: Arc<Task>,
    lock_token: Option<Token>,
    channels: TaskChannels,
}

#[derive(Clone)]
pub(super) struct TaskChannels {
    pub(super) worker: Arc<WorkerDescription>,
    pub(super) leases: Arc<HeldLeases>,
    pub(super) terms: watch::Receiver<LeaseTerms>,
    pub(super) lock_status: Option<watch::Receiver<GuardStatus>>,
    /// Cancelled when the worker begins to stop.
    pub(super) soft_stop: CancellationToken,
    /// Whether the handler keeps running when it has to stop, instead of being dropped.
    pub(super) cooperative_cancellation: bool,
    /// Maximum run time of the handler; it is stopped after that.
    pub(super) max_runtime: Option<Ttl>,
}

impl<W> TaskContext<W> {
    pub(super) fn new(
        payload: W,
        task: Arc<Task>,
        lock_token: Option<Token>,
        channels: TaskChannels,
    ) -> Self {
        Self { payload, task, lock_token, channels }
    }

    /// Returns the task's id, which is the same in every attempt.
    pub fn id(&self) -> TaskId {
        self.task.id
    }

    /// Returns the id of the execution, if the task is an execution of a workflow.
    pub fn execution(&self) -> Option<ExecutionId> {
        ExecutionId::of_task(&self.task)
    }

    /// Returns the fencing token of this attempt. Pass it to every system that the work writes to.
    pub fn token(&self) -> Token {
        self.task.token
    }

    /// Returns the fencing token of the task's lock, if it has one.
    pub fn lock_token(&self) -> Option<Token> {
        self.lock_token
    }

    /// Returns the number of this attempt, starting at 1.
    pub fn attempt(&self) -> u32 {
        self.task.attempt
    }

    /// Returns whether this is the last attempt.
    pub fn is_last_attempt(&self) -> bool {
        self.task.attempt >= self.task.retries.attempts
    }

    /// Returns the task as it was leased.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Reports the progress of the task. Other callers can read it within about a second.
    pub fn progress(&self, progress: Progress) {
        self.channels.leases.set_progress(self.task.id, self.task.token, progress);
    }

    /// Returns the time until which the lease, and the lease on the task's lock, are valid at
    /// least, on this machine's boot clock. The handler must not act under the lease after that
    /// time. The time advances as long as the worker can renew the lease.
    pub fn valid_until(&self) -> BootInstant {
        let until = self.channels.terms.borrow().valid_until;
        self.channels.lock_status.as_ref().map_or(until, |lock| until.min(lock.borrow().valid_until))
    }

    /// Resolves when [`valid_until`](Self::valid_until) differs from `known`, and returns the new
    /// value.
    pub async fn renewed(&self, known: BootInstant) -> BootInstant {
        let mut terms = self.channels.terms.clone();
        let mut lock = self.channels.lock_status.clone();
        loop {
            terms.mark_unchanged();
            lock.iter_mut().for_each(watch::Receiver::mark_unchanged);
            let until = self.valid_until();
            if until != known {
                return until;
            }
            tokio::select! {
                biased;
                () = changed(Some(&mut terms)) => {}
                () = changed(lock.as_mut()) => {}
            }
        }
    }

    /// Resolves when the lease is lost, or when the task has to stop for another reason, such as a
    /// request to cancel it. The handler is then dropped at its next `await` anyway, unless its
    /// worker uses [cooperative cancellation](crate::client::tasks::WorkerBuilder::cooperative_cancellation); this
    /// method is for work that runs outside the handler on its behalf.
    pub async fn lost(&self) {
        let mut terms = self.channels.terms.clone();
        let stopped = async {
            if terms.wait_for(|terms| terms.cancelled.is_some()).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let lock_lost = async {
            let Some(mut lock) = self.channels.lock_status.clone() else {
                return std::future::pending().await;
            };
            if lock.wait_for(|status| status.state == GuardState::Lost).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = stopped => {}
            () = lock_lost => {}
        }
    }

    /// Returns whether the handler has to stop because it has reached its maximum run time.
    pub fn is_overdue(&self) -> bool {
        self.channels.terms.borrow().cancelled == Some(CancelReason::Timeout)
    }

    /// Resolves when the worker begins to stop: the handler can use this to reach a safe point at
    /// which to stop.
    pub async fn worker_stopping(&self) {
        self.channels.soft_stop.cancelled().await;
    }
}

/// Resolves with the next change; never resolves if no change is possible.
async fn changed<T>(watch: Option<&mut watch::Receiver<T>>) {
    if let Some(watch) = watch
        && watch.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}
