//! Recovery: expires the leases of dead workers, and completes what those workers have begun.

use std::sync::{Mutex, PoisonError};

use super::desk::{Desk, holder};
use super::leasing::wanted;
use super::line::Turn;
use super::sight::Sight;
use crate::Result;
use crate::model::{Metadata, QueueName, Recovered, TaskOp, TaskState, Timestamp, Token};
use crate::store::github::answers::Issue;
use crate::store::github::issues::is_lock;
use crate::store::github::protocol::Written;
use crate::store::github::view::{RAISED, View};

impl Desk {
    /// Expires up to `limit` leases whose time has elapsed.
    pub(super) async fn recover(&self, limit: u32) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        for queue in self.queues().await? {
            let listed = self.protocol.api.queued(queue.as_str(), "open").await?;
            for issue in listed.what {
                if recovered.expired() >= limit {
                    return Ok(recovered);
                }
                // An issue without comments has no lease.
                if issue.comments == 0 || is_lock(&issue) {
                    continue;
                }
                match self.see_to(&queue, &issue, listed.now, &mut recovered).await {
                    // A task that cannot be recovered must not block the recovery of others.
                    Err(error) if !error.is_retryable() => {
                        tracing::warn!(issue = issue.number, %error, "a task cannot be recovered");
                    }
                    seen => seen?,
                }
            }
        }
        Ok(recovered)
    }

    async fn see_to(
        &self,
        queue: &QueueName,
        issue: &Issue,
        now: Timestamp,
        recovered: &mut Recovered,
    ) -> Result<()> {
        let Some(sight) = self.glance(queue, issue, now).await? else { return Ok(()) };
        if sight.has_lapsed() {
            self.expire(queue, issue, recovered).await?;
        } else if matches!(Turn::of(&sight, issue), Turn::Finish) {
            // The next lease call decides whether a person wants the task again.
            self.finish_or_try_again(issue, &sight).await?;
        }
        Ok(())
    }

    /// Expires one lease, unless another client is changing the task.
    async fn expire(&self, queue: &QueueName, issue: &Issue, recovered: &mut Recovered) -> Result<()> {
        let done = Mutex::new(None);
        let errand = |view: &View, _: Token| {
            let sight = self.sight(queue, issue, view).filter(Sight::has_lapsed)?;
            let mut task = sight.task.clone();
            task.apply(&TaskOp::Expire, sight.now);
            let record = sight.record(&task);
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
            Some(Written { record, holds: false })
        };
        let ask = wanted(holder(), RAISED, Metadata::default());
        if !self.claim(issue.number, &ask, &errand, true).await? {
            return Ok(());
        }
        let task = done.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            match task.state {
                TaskState::Failed => recovered.failed += 1,
                TaskState::Aborted => recovered.aborted += 1,
                _ => recovered.returned += 1,
            }
            self.finish(issue.number, &task, issue.is_closed()).await;
        }
        Ok(())
    }
}
