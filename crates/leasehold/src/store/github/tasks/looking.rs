//! Queries of tasks, queues and workers.

use std::collections::{BTreeMap, BTreeSet};

use super::desk::Desk;
use super::sight::{Held, Sight};
use crate::Result;
use crate::model::{
    Counts, QueueName, QueueStatus, Task, TaskId, TaskKey, TaskState, Timestamp, Ttl, WorkerId, WorkerInfo,
    WorkerStatus,
};
use crate::store::github::answers::Issue;
use crate::store::github::issues::is_lock;
use crate::store::lock_store::page_size;
use crate::store::{Cursor, ListTasks, Page};

/// Issue of a queue, and the service's time when it was listed.
struct Listed {
    queue: QueueName,
    issue: Issue,
    now: Timestamp,
}

impl Desk {
    /// Returns one task.
    pub(super) async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        let Some(number) = self.number(id).await? else { return Ok(None) };
        Ok(self.look(number).await?.map(|(_, _, sight)| sight.task))
    }

    /// Returns the task with this key.
    pub(super) async fn keyed(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let made = self.made().await?;
        let found = made.iter().find(|(_, made)| made.queue == *queue && made.key.as_ref() == Some(key));
        match found {
            Some((issue, _)) => Ok(self.look(issue.number).await?.map(|(_, _, sight)| sight.task)),
            None => Ok(None),
        }
    }

    /// Returns one page of tasks, newest issue first.
    pub(super) async fn list(&self, ask: &ListTasks) -> Result<Page<Task>> {
        let state = if ask.state.is_some_and(|state| !state.is_terminal()) { "open" } else { "all" };
        let mut listed = self.issues(ask.queue.as_ref(), state).await?;
        listed.sort_by_key(|listed| std::cmp::Reverse(listed.issue.number));
        let after = ask.after.as_ref().and_then(|after| after.0.parse::<u64>().ok());
        let (limit, mut items) = (page_size(ask.limit) as usize, Vec::new());
        // Only a task that was leased has a worker or runs.
        let leased = ask.worker.is_some() || ask.state == Some(TaskState::Running);
        for Listed { queue, issue, now } in listed {
            if after.is_some_and(|after| issue.number >= after) || (leased && issue.comments == 0) {
                continue;
            }
            let Some(Sight { task, .. }) = self.glance(&queue, &issue, now).await? else { continue };
            if ask.wants(&task) {
                items.push(ask.shown(task));
            }
            if items.len() == limit {
                return Ok(Page { items, next: Some(Cursor(issue.number.to_string())) });
            }
        }
        Ok(Page { items, next: None })
    }

    /// Returns the queues with their counts, according to the lists of issues.
    pub(super) async fn counts(&self, queue: Option<&QueueName>) -> Result<Vec<QueueStatus>> {
        let mut queues = BTreeMap::<QueueName, Counts>::new();
        for Listed { queue, issue, now } in self.issues(queue, "all").await? {
            let state = if issue.is_closed() && issue.comments > 0 {
                Some(closed_state(&issue))
            } else {
                self.glance(&queue, &issue, now).await?.map(|sight| sight.task.state)
            };
            if let Some(state) = state {
                let counts = queues.entry(queue).or_default();
                counts.set(state, counts.get(state) + 1);
            }
        }
        let status = |(queue, counts)| QueueStatus { queue, counts, paused: None };
        Ok(queues.into_iter().map(status).collect())
    }

    /// Returns the workers that hold a task of a known queue; other workers are not visible.
    pub(super) async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        let mut workers = BTreeMap::<WorkerId, WorkerStatus>::new();
        for Listed { queue, issue, now } in self.issues(None, "open").await? {
            if issue.comments == 0 {
                continue;
            }
            let sight = self.glance(&queue, &issue, now).await?.filter(|sight| sight.alive);
            let Some(Sight { task, held: Some(held), .. }) = sight else { continue };
            let (Some(id), Some(since)) = (task.worker, task.leased_at) else { continue };
            let worker = workers.entry(id).or_insert_with(|| seen(id, &held, since));
            worker.info.busy += 1;
            worker.info.slots += 1;
            worker.started_at = worker.started_at.min(since);
            worker.seen_at = worker.seen_at.max(held.seen);
            if !worker.info.queues.contains(&task.queue) {
                worker.info.queues.push(task.queue);
            }
        }
        Ok(workers.into_values().collect())
    }

    /// Returns the issues of one queue, or of all known queues, each issue once.
    async fn issues(&self, queue: Option<&QueueName>, state: &str) -> Result<Vec<Listed>> {
        let queues = match queue {
            Some(queue) => {
                self.uses(queue)?;
                vec![queue.clone()]
            }
            None => self.queues().await?,
        };
        let (mut there, mut all) = (BTreeSet::new(), Vec::new());
        for queue in queues {
            let listed = self.protocol.api.queued(queue.as_str(), state).await?;
            for issue in listed.what {
                let is_task = !is_lock(&issue) && self.is_first(&issue, self.says(&issue).as_ref());
                if is_task && there.insert(issue.number) {
                    all.push(Listed { queue: queue.clone(), issue, now: listed.now });
                }
            }
        }
        Ok(all)
    }
}

/// Returns the state of a task that was worked on and is closed, by the reason for closing it.
fn closed_state(issue: &Issue) -> TaskState {
    match issue.state_reason.as_deref() {
        None | Some("completed") => TaskState::Succeeded,
        _ => TaskState::Aborted,
    }
}

/// Returns the status of a worker from its claim, which contains only a part of what a worker can
/// report.
fn seen(id: WorkerId, held: &Held, since: Timestamp) -> WorkerStatus {
    let fact = |name: &str| held.facts.get(name).unwrap_or_default();
    let info = WorkerInfo {
        id,
        host: fact("node_id").to_owned(),
        pid: fact("pid").parse().unwrap_or(0),
        version: String::new(),
        queues: Vec::new(),
        slots: 0,
        busy: 0,
        draining: false,
        every: Ttl::new(held.ttl.as_duration() / 3).unwrap_or(Ttl::MIN),
    };
    WorkerStatus { info, started_at: since, seen_at: held.seen }
}
