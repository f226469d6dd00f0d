//! Leasing: a worker acquires the claim on the next issue.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::desk::{Desk, facts, holder};
use super::labels;
use super::line::{Entry, Line, Turn};
use super::made::plain;
use super::sight::Sight;
use crate::Result;
use crate::model::{
    Ask, Holder, LeaseTasks, Leased, LockName, Mode, NewTask, Outcome, Priority, Retry, Slots, Task, TaskOp,
    TaskState, Timestamp, Token, Ttl, When,
};
use crate::store::BootInstant;
use crate::store::clock::new_lease_id;
use crate::store::github::issues::is_lock;
use crate::store::github::protocol::{Errand, Wish, Written};
use crate::store::github::view::View;

/// Time after which a call that has leased some tasks leaves the others for the next call: a lease
/// counts from before it was requested.
const LONG: Duration = Duration::from_secs(5);
/// Maximum number of issues whose comments one call reads.
const MOST_LOOKS: usize = 100;

impl Desk {
    /// Leases the next tasks to a worker.
    pub(super) async fn lease(&self, ask: &LeaseTasks) -> Result<Leased> {
        let _turn = self.leasing.lock().await;
        let began = BootInstant::now();
        let (mut line, now) = self.line_up(ask).await?;
        let (mut tasks, mut due, mut looks) = (Vec::new(), None::<Timestamp>, 0);
        while !ask.is_full(&tasks) {
            let Some(entry) = line.next() else { break };
            let taken = if entry.is_known {
                self.take(&entry, ask, tasks.len()).await
            } else if looks < MOST_LOOKS {
                looks += 1;
                let later = self.look_closer(entry, &mut line, now).await;
                later.map(|later| {
                    due = [due, later].into_iter().flatten().min();
                    None
                })
            } else {
                Ok(None)
            };
            match taken {
                Ok(task) => tasks.extend(task),
                Err(error) if error.is_retryable() && tasks.is_empty() => return Err(error),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "no more tasks can be leased for now");
                    break;
                }
                Err(error) => tracing::warn!(%error, "a task cannot be leased"),
            }
            let alone = tasks.last().is_some_and(Task::runs_alone);
            if alone || (!tasks.is_empty() && BootInstant::now().after(began) > LONG) {
                break;
            }
        }
        let next_due = due.filter(|_| !ask.is_full(&tasks)).zip(now);
        Ok(Leased { tasks, next_due, more: false, expired: 0 })
    }

    /// Returns all open issues of the requested queues, in the order in which they are leased.
    async fn line_up(&self, ask: &LeaseTasks) -> Result<(Line, Option<Timestamp>)> {
        let (mut line, mut now, mut there) = (Line::default(), None, BTreeSet::new());
        for queue in &ask.queues {
            self.uses(queue)?;
            let listed = self.protocol.api.queued(queue.as_str(), "open").await?;
            now = now.max(Some(listed.now));
            for issue in listed.what {
                let made = self.says(&issue);
                if is_lock(&issue) || !there.insert(issue.number) || !self.is_first(&issue, made.as_ref()) {
                    continue;
                }
                let Some(plain) = plain(&issue, queue, made.as_ref()) else { continue };
                let is_plain = issue.comments == 0 && issue.assigned().next().is_none();
                let is_known =
                    is_plain && plain.state == TaskState::Pending && !issue.has_label(labels::FAILED);
                line.add(queue, issue, &plain, is_known);
            }
        }
        Ok((line, now))
    }

    /// Reads the comments of an issue, and adds the issue again if its task can be leased. Returns
    /// the time at which the task is due, if that is later.
    async fn look_closer(
        &self,
        mut entry: Entry,
        line: &mut Line,
        now: Option<Timestamp>,
    ) -> Result<Option<Timestamp>> {
        let now = now.unwrap_or_default();
        let Some(sight) = self.glance(&entry.queue, &entry.issue, now).await? else { return Ok(None) };
        match Turn::of(&sight, &entry.issue) {
            Turn::Take(order) => line.put_back(entry, order),
            Turn::Later(due) => return Ok(Some(due)),
            Turn::Finish => {
                if self.finish_or_try_again(&entry.issue, &sight).await? {
                    entry.is_wanted_again = true;
                    line.put_back(entry, sight.plain.order());
                }
            }
            Turn::Pass => {}
        }
        Ok(None)
    }

    /// Acquires the claim on an issue, if its task can still be leased then.
    async fn take(&self, entry: &Entry, ask: &LeaseTasks, given: usize) -> Result<Option<Task>> {
        let (issue, queue) = (&entry.issue, &entry.queue);
        let got = Mutex::new(None);
        let errand = |view: &View, token: Token| {
            let sight = self.sight(queue, issue, view)?;
            let (task, holds) = leased(&sight, entry.is_wanted_again, token, (ask, given))?;
            let record = sight.record(&task);
            *got.lock().unwrap_or_else(PoisonError::into_inner) = Some((task, holds));
            Some(Written { record, holds })
        };
        let about = self.protocol.api.dates.about(BootInstant::now());
        let mut metadata = facts(&ask.worker.to_string(), about);
        labels::tell(issue, &mut metadata);
        let wanted = wanted(holder(), ask.ttl, metadata);
        if !self.claim(issue.number, &wanted, &errand, false).await? {
            return Ok(None);
        }
        let got = got.lock().unwrap_or_else(PoisonError::into_inner).take();
        match got {
            Some((task, true)) => Ok(Some(task)),
            Some((task, false)) => {
                self.finish(issue.number, &task, issue.is_closed()).await;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Acquires the claim on an issue for an errand; returns whether the errand was executed.
    pub(super) async fn claim(
        &self,
        number: u64,
        ask: &Arc<Ask>,
        errand: &Errand<'_>,
        by_hand: bool,
    ) -> Result<bool> {
        let name = lock_name(number);
        let _lane = self.lanes.enter(&name).await;
        let wish = Wish { name: &name, number, ask, steal_after: None, errand: Some(errand), by_hand };
        Ok(matches!(self.protocol.acquire(&wish).await?, Outcome::Granted(_)))
    }
}

/// Returns the name of an issue's lock.
pub(super) fn lock_name(number: u64) -> LockName {
    LockName::new(format!("issue/{number}")).expect("a short name")
}

/// Returns the request for a claim.
pub(super) fn wanted(holder: Holder, ttl: Ttl, metadata: crate::model::Metadata) -> Arc<Ask> {
    Arc::new(Ask {
        lease_id: new_lease_id(),
        holder,
        mode: Mode::Exclusive,
        slots: Slots::default(),
        priority: Priority::default(),
        ttl,
        metadata,
        process: None,
    })
}

/// Returns the task with its lease and `true`; or the task without a lease and `false`, if only the
/// end of its expired lease is to be written. `None` if there is nothing to do.
fn leased(
    sight: &Sight,
    is_wanted_again: bool,
    token: Token,
    (ask, given): (&LeaseTasks, usize),
) -> Option<(Task, bool)> {
    let (mut task, now) = (sight.task.clone(), sight.now);
    if sight.alive {
        return None;
    }
    let lapsed = sight.has_lapsed();
    if lapsed {
        task.apply(&TaskOp::Expire, now);
    } else if is_wanted_again && task.state.is_terminal() {
        try_again(&mut task, &sight.plain, now);
    }
    // A task that runs alone has to be the only task of a response.
    if task.state != TaskState::Pending || (given > 0 && task.runs_alone()) {
        return lapsed.then_some((task, false));
    }
    // The lease has the token of the claim.
    task.token = task.token.max(Token::new(token.get().saturating_sub(1)).unwrap_or_default());
    task.apply(&TaskOp::Lease { worker: ask.worker, ttl: ask.ttl, begun: true }, now);
    Some((task, true))
}

/// Prepares a task for another run, after a person has reopened its issue or removed the label of
/// failure.
pub(super) fn try_again(task: &mut Task, plain: &Task, now: Timestamp) {
    let by = Holder::new("somebody on GitHub").expect("a short text");
    if task.state != TaskState::Succeeded {
        task.apply(&TaskOp::Retry(Retry { by }), now);
        return;
    }
    // A succeeded task stays succeeded; a person who reopens its issue wants a new run.
    let new = NewTask {
        when: When::Now,
        priority: task.priority,
        key: task.key.clone(),
        retries: task.retries,
        fingerprint: Some(task.fingerprint),
        ..NewTask::new(task.id, task.queue.clone(), task.payload.clone())
    };
    let (token, version, created_at) = (task.token, task.version, plain.created_at);
    *task = Task { token: token.next(now), version: version + 1, created_at, ..Task::new(&new, now) };
}
