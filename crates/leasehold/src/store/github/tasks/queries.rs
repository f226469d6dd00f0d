//! Queries of tasks, queues and workers.

use std::collections::{BTreeMap, BTreeSet};

use super::context::Context;
use super::task_view::{TaskView, WorkerClaim};
use crate::Result;
use crate::model::{
    Counts, QueueName, QueueStatus, Task, TaskId, TaskKey, TaskState, Timestamp, Ttl, WorkerId, WorkerInfo,
    WorkerStatus,
};
use crate::store::github::api::Issue;
use crate::store::github::locks::is_lock;
use crate::store::lock_store::page_size;
use crate::store::{Cursor, ListTasks, Page};

/// Issue of a queue, and the service's time when it was listed.
struct ListedIssue {
    queue: QueueName,
    issue: Issue,
    now: Timestamp,
}

impl Context {
    pub(super) async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        let Some(number) = self.number(id).await? else { return Ok(None) };
        Ok(self.read_fresh(number).await?.map(|(_, _, task_view)| task_view.task))
    }

    pub(super) async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let issues = self.settled_issues("all").await?;
        let found = issues.iter().find(|(_, body)| body.queue == *queue && body.key.as_ref() == Some(key));
        match found {
            Some((issue, _)) => {
                Ok(self.read_fresh(issue.number).await?.map(|(_, _, task_view)| task_view.task))
            }
            None => Ok(None),
        }
    }

    /// Returns one page of tasks, newest issue first.
    pub(super) async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        let state = if query.state.is_some_and(|state| !state.is_terminal()) { "open" } else { "all" };
        let mut listed = self.issues(query.queue.as_ref(), state).await?;
        listed.sort_by_key(|listed| std::cmp::Reverse(listed.issue.number));
        let after = query.after.as_ref().and_then(|after| after.0.parse::<u64>().ok());
        let (limit, mut items) = (page_size(query.limit) as usize, Vec::new());
        // Only a task that was leased has a worker or runs.
        let leased = query.worker.is_some() || query.state == Some(TaskState::Running);
        for ListedIssue { queue, issue, now } in listed {
            if after.is_some_and(|after| issue.number >= after) || (leased && issue.comments == 0) {
                continue;
            }
            let Some(TaskView { task, .. }) = self.read_cached(&queue, &issue, now).await? else { continue };
            if query.wants(&task) {
                items.push(query.shown(task));
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
        for ListedIssue { queue, issue, now } in self.issues(queue, "all").await? {
            let state = if issue.is_closed() && issue.comments > 0 {
                Some(if issue.is_completed() { TaskState::Succeeded } else { TaskState::Aborted })
            } else {
                self.read_cached(&queue, &issue, now).await?.map(|task_view| task_view.task.state)
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
        for ListedIssue { queue, issue, now } in self.issues(None, "open").await? {
            if issue.comments == 0 {
                continue;
            }
            let task_view =
                self.read_cached(&queue, &issue, now).await?.filter(|task_view| task_view.is_held);
            let Some(TaskView { task, claim: Some(claim), .. }) = task_view else { continue };
            let (Some(id), Some(since)) = (task.worker, task.leased_at) else { continue };
            let worker = workers.entry(id).or_insert_with(|| worker_status(id, &claim, since));
            worker.info.busy += 1;
            worker.info.slots += 1;
            worker.started_at = worker.started_at.min(since);
            worker.seen_at = worker.seen_at.max(claim.last_heartbeat);
            if !worker.info.queues.contains(&task.queue) {
                worker.info.queues.push(task.queue);
            }
        }
        Ok(workers.into_values().collect())
    }

    /// Returns the issues of one queue, or of all known queues, each issue once.
    async fn issues(&self, queue: Option<&QueueName>, state: &str) -> Result<Vec<ListedIssue>> {
        let queues = match queue {
            Some(queue) => {
                self.register_queue(queue)?;
                vec![queue.clone()]
            }
            None => self.queues(state).await?,
        };
        let (mut seen, mut all) = (BTreeSet::new(), Vec::new());
        for queue in queues {
            let listed = self.protocol.api.list_issues(queue.as_str(), state).await?;
            for issue in listed.value {
                let is_task = !is_lock(&issue) && self.is_task(&issue, self.trusted_body(&issue).as_ref());
                if is_task && seen.insert(issue.number) {
                    all.push(ListedIssue { queue: queue.clone(), issue, now: listed.now });
                }
            }
        }
        Ok(all)
    }
}

/// Returns the status of a worker, as far as its claim contains it.
fn worker_status(id: WorkerId, claim: &WorkerClaim, since: Timestamp) -> WorkerStatus {
    let metadata = |name: &str| claim.metadata.get(name).unwrap_or_default();
    let info = WorkerInfo {
        id,
        host: metadata("node_id").to_owned(),
        pid: metadata("pid").parse().unwrap_or(0),
        version: String::new(),
        queues: Vec::new(),
        slots: 0,
        busy: 0,
        draining: false,
        every: Ttl::new(claim.ttl.as_duration() / 3).unwrap_or(Ttl::MIN),
    };
    WorkerStatus { info, started_at: since, seen_at: claim.last_heartbeat }
}
