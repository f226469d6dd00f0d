//! A task as its handler sees it.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::floor::{Floor, Stop};
use crate::model::{Progress, Task, TaskId, Token};

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
pub(super) struct Ties {
    pub(super) floor: Arc<Floor>,
    pub(super) stop: watch::Receiver<Option<Stop>>,
    /// Cancelled when the worker begins to end.
    pub(super) ending: CancellationToken,
}

impl<W> Running<W> {
    pub(super) fn new(work: W, task: Arc<Task>, lock_token: Option<Token>, ties: Ties) -> Self {
        Self { work, task, lock_token, ties }
    }

    /// The task's id: the same in every attempt.
    pub fn id(&self) -> TaskId {
        self.task.id
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

    /// Resolves when the lease is lost, or somebody wants the task stopped. The handler is dropped then anyway, at its
    /// next `await`; this is for work that runs elsewhere on its behalf.
    pub async fn lost(&self) {
        let mut stop = self.ties.stop.clone();
        if stop.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when the worker begins to end: a good time to come to a good place to stop at.
    pub async fn ending(&self) {
        self.ties.ending.cancelled().await;
    }
}
