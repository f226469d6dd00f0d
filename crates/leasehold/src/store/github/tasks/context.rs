//! State that the task calls share: the issue of each task, the comments that were read, the writes that
//! GitHub has refused, and the order among the callers of one process.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::issue_body::{IssueBody, IssueStage};
use super::labels::{self, TASK_LABEL};
use super::lease_order::TriedIssues;
use super::task_view::TaskView;
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::model::{Holder, LockName, QueueName, TaskId, Timestamp};
use crate::store::github::api::{Issue, Read};
use crate::store::github::locks::{Protocol, View};
use crate::store::in_order::InOrder;
use crate::store::support::mutex::lock;
use crate::store::{BootInstant, host_name};

/// Tasks of a repository, as one client knows them.
pub(super) struct Context {
    pub(super) protocol: Arc<Protocol>,
    /// Order of the callers for each issue: a heartbeat after a settlement would revive the lease.
    pub(super) in_order: InOrder<LockName>,
    /// Serializes leasing: the workers of one process need not compete for issues. The value is what the next
    /// call leaves out.
    pub(super) leasing: tokio::sync::Mutex<TriedIssues>,
    pub(super) creation: tokio::sync::Mutex<()>,
    /// Issues whose update GitHub has refused, each with the time of its last change.
    pub(super) refused_updates: Refusals<(u64, Timestamp)>,
    issue_numbers: Mutex<HashMap<TaskId, u64>>,
    known_queues: Mutex<BTreeSet<QueueName>>,
    views: Mutex<HashMap<u64, CachedView>>,
}

/// Issues that were created for tasks, at one point in time.
pub(super) struct CreatedIssues {
    pub(super) now: Timestamp,
    pub(super) issues: Vec<(Issue, IssueBody)>,
}

/// Cached comments of an issue, valid as long as nothing has changed.
struct CachedView {
    updated_at: Timestamp,
    comments: u64,
    view: Arc<View>,
    until: BootInstant,
}

/// Maximum age of cached comments, even if nothing seems to have changed.
const MAX_CACHE_AGE: Duration = Duration::from_mins(5);
/// Minimum age of an issue's last change before its comments are cached: another change in the same
/// second may have come after the read.
const SAME_SECOND: Duration = Duration::from_secs(2);
/// Maximum number of issues whose comments are cached.
const MAX_CACHED: usize = 2000;
/// Pause after a refused update of an issue, as a multiple of the minimum time between two writes: ten minutes.
const UPDATE_PAUSE: u32 = 600;
/// Maximum number of writes that are remembered. Forgetting one only costs requests.
const MAX_REFUSALS: usize = 2000;

impl Context {
    pub(super) fn new(protocol: Arc<Protocol>) -> Self {
        let known_queues = protocol.api.options.queues.iter().cloned().collect();
        let gap = protocol.api.options.gap;
        Self {
            protocol,
            in_order: InOrder::default(),
            leasing: tokio::sync::Mutex::default(),
            creation: tokio::sync::Mutex::default(),
            refused_updates: Refusals::new(gap * UPDATE_PAUSE),
            issue_numbers: Mutex::default(),
            known_queues: Mutex::new(known_queues),
            views: Mutex::default(),
        }
    }

    // --- queues ----------------------------------------------------------------------------------

    /// Registers a label as a queue. Fails if the name cannot be a label.
    pub(super) fn register_queue(&self, queue: &QueueName) -> Result<()> {
        labels::check_queue(queue)?;
        lock(&self.known_queues).insert(queue.clone());
        Ok(())
    }

    /// Returns the labels that this process knows as queues: those in its URL, those that it has
    /// used, and those for which issues in this state were created.
    pub(super) async fn queues(&self, state: &str) -> Result<Vec<QueueName>> {
        Ok(self.queues_of(&self.created_issues(state).await?))
    }

    /// Same as [`queues`](Self::queues), for issues that were read before.
    pub(super) fn queues_of(&self, created: &CreatedIssues) -> Vec<QueueName> {
        let mut known = lock(&self.known_queues);
        known.extend(created.tasks().map(|(_, body)| body.queue.clone()));
        known.iter().cloned().collect()
    }

    // --- issues of tasks -------------------------------------------------------------------------

    /// Returns the number of a task's issue.
    pub(super) async fn number(&self, id: TaskId) -> Result<Option<u64>> {
        if let Some(number) = id.number().or_else(|| self.known_issue(id)) {
            return Ok(Some(number));
        }
        self.settled_issues("all").await?;
        Ok(self.known_issue(id))
    }

    /// Returns the issues in this state that were created for tasks, without candidates.
    pub(super) async fn settled_issues(&self, state: &str) -> Result<Vec<(Issue, IssueBody)>> {
        self.created_issues(state).await.map(CreatedIssues::into_tasks)
    }

    /// Returns the issues in this state that were created for tasks, with candidates, and records
    /// which are tasks. The state is `open`, or `all` to include closed ones.
    pub(super) async fn created_issues(&self, state: &str) -> Result<CreatedIssues> {
        let listed = self.protocol.api.list_issues(TASK_LABEL, state).await?;
        let issues =
            listed.value.into_iter().filter_map(|issue| self.trusted_body(&issue).map(|body| (issue, body)));
        let created = CreatedIssues { now: listed.now, issues: issues.collect() };
        for (issue, body) in created.tasks() {
            self.remember_issue(body.id, issue.number);
        }
        Ok(created)
    }

    /// Records the issue of a task: the first issue with an id is the task.
    pub(super) fn remember_issue(&self, id: TaskId, number: u64) {
        let mut numbers = lock(&self.issue_numbers);
        let first = numbers.entry(id).or_insert(number);
        *first = (*first).min(number);
    }

    /// Whether an issue is a task: not a candidate, and the first of all issues with its id.
    pub(super) fn is_task(&self, issue: &Issue, body: Option<&IssueBody>) -> bool {
        let Some(body) = body else { return true };
        if body.state == IssueStage::Candidate {
            return false;
        }
        self.remember_issue(body.id, issue.number);
        self.known_issue(body.id) == Some(issue.number)
    }

    pub(super) fn known_issue(&self, id: TaskId) -> Option<u64> {
        lock(&self.issue_numbers).get(&id).copied()
    }

    /// Returns the task in the text of an issue that was created for it, if the author is trusted.
    pub(super) fn trusted_body(&self, issue: &Issue) -> Option<IssueBody> {
        let author = (issue.user.as_ref(), issue.author_association.as_deref());
        IssueBody::parse(issue).filter(|_| self.protocol.is_trusted_author(author.0, author.1))
    }

    /// Whether GitHub has refused an update of this issue, which has not changed since.
    pub(super) fn is_update_refused(&self, issue: &Issue) -> bool {
        self.refused_updates.contains(&(issue.number, issue.updated_at))
    }

    /// Records that an update of this issue failed, if it is not worth repeating soon.
    pub(super) fn record_failed_update(&self, issue: &Issue, error: &Error) {
        if !error.is_retryable() {
            self.refused_updates.insert((issue.number, issue.updated_at));
        }
    }

    // --- reading tasks ---------------------------------------------------------------------------

    /// Returns an issue as a task of this queue, from cached comments if nothing has changed since.
    /// Only for queries: before a change, the caller has to read the comments again.
    pub(super) async fn read_cached(
        &self,
        queue: &QueueName,
        issue: &Issue,
        now: Timestamp,
    ) -> Result<Option<TaskView>> {
        let view = if issue.comments == 0 {
            Arc::new(View::empty(now))
        } else {
            self.cached_view(issue, now).await?
        };
        Ok(self.task_view(queue, issue, &view.at(now)))
    }

    pub(super) fn task_view(&self, queue: &QueueName, issue: &Issue, view: &View) -> Option<TaskView> {
        TaskView::new(issue, self.trusted_body(issue).as_ref(), queue, view)
    }

    /// Whether [`read_cached`](Self::read_cached) sends no request for this issue.
    pub(super) fn is_cached(&self, issue: &Issue) -> bool {
        issue.comments == 0 || self.unchanged_view(issue).is_some()
    }

    /// Returns the cached comments of an issue, if nothing has changed since.
    fn unchanged_view(&self, issue: &Issue) -> Option<Arc<View>> {
        let views = lock(&self.views);
        let cached = views.get(&issue.number).filter(|cached| {
            (cached.updated_at, cached.comments) == (issue.updated_at, issue.comments)
                && BootInstant::now() < cached.until
        });
        cached.map(|cached| cached.view.clone())
    }

    async fn cached_view(&self, issue: &Issue, now: Timestamp) -> Result<Arc<View>> {
        if let Some(view) = self.unchanged_view(issue) {
            return Ok(view);
        }
        let view = Arc::new(self.protocol.read_fresh(issue.number).await?);
        let mut views = lock(&self.views);
        if views.len() >= MAX_CACHED {
            views.clear();
        }
        if now.since(issue.updated_at) >= SAME_SECOND {
            let (updated_at, comments) = (issue.updated_at, issue.comments);
            let until = BootInstant::now().plus(MAX_CACHE_AGE);
            views.insert(issue.number, CachedView { updated_at, comments, view: view.clone(), until });
        } else {
            views.remove(&issue.number);
        }
        Ok(view)
    }

    /// Reads a task and its issue from the server; `None` if the task does not exist.
    pub(super) async fn read_fresh(&self, number: u64) -> Result<Option<(Issue, View, TaskView)>> {
        let Some(issue) = self.protocol.api.issue(number, Read::Fresh).await? else { return Ok(None) };
        let issue = issue.value;
        if issue.pull_request.is_some() {
            return Ok(None);
        }
        let view = self.protocol.read_fresh(number).await?;
        let Some(queue) = self.queue_of(&issue, &view) else { return Ok(None) };
        let task_view = self.task_view(&queue, &issue, &view);
        Ok(task_view.map(|task_view| (issue, view, task_view)))
    }

    /// Returns the queue of an issue. A written record counts more than labels.
    fn queue_of(&self, issue: &Issue, view: &View) -> Option<QueueName> {
        let written = view.task().map(|known| known.record.queue.clone());
        let written = written.or_else(|| self.trusted_body(issue).map(|body| body.queue));
        written.or_else(|| {
            lock(&self.known_queues).iter().find(|queue| issue.has_label(queue.as_str())).cloned()
        })
    }
}

impl CreatedIssues {
    fn into_tasks(self) -> Vec<(Issue, IssueBody)> {
        self.issues.into_iter().filter(|(_, body)| body.state == IssueStage::Settled).collect()
    }

    pub(super) fn tasks(&self) -> impl Iterator<Item = &(Issue, IssueBody)> {
        self.issues.iter().filter(|(_, body)| body.state == IssueStage::Settled)
    }

    pub(super) fn has(&self, id: TaskId) -> bool {
        self.tasks().any(|(_, body)| body.id == id)
    }
}

/// Writes that GitHub has refused to this client, and the time until which each of them is not sent again: it
/// costs requests, and the service most likely refuses it again.
pub(super) struct Refusals<K> {
    pause: Duration,
    refused: Mutex<HashMap<K, BootInstant>>,
}

impl<K: Eq + Hash> Refusals<K> {
    /// Creates an empty list of writes that are sent again after `pause`.
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, refused: Mutex::default() }
    }

    /// Whether this write was refused, and its pause is not over.
    pub(super) fn contains(&self, write: &K) -> bool {
        lock(&self.refused).get(write).is_some_and(|until| BootInstant::now() < *until)
    }

    pub(super) fn insert(&self, write: K) {
        let (mut refused, now) = (lock(&self.refused), BootInstant::now());
        refused.retain(|_, until| now < *until);
        if refused.len() >= MAX_REFUSALS {
            refused.clear();
        }
        refused.insert(write, now.plus(self.pause));
    }
}

/// Returns the name of this process, for people.
pub(super) fn holder() -> Holder {
    let name = format!("{}:{}", host_name(), std::process::id());
    Holder::new(name).unwrap_or_else(|_| Holder::new("a worker").expect("the text is short"))
}

/// Returns the error for an operation that GitHub's issues do not support.
pub(super) fn not_supported(operation: &str, hint: &str) -> Error {
    Error::store(StoreErrorKind::NotSupported, format!("{operation} is not supported on GitHub issues"), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_write_is_sent_again_after_its_pause() {
        let refusals = Refusals::new(Duration::from_mins(10));
        refusals.insert(1);
        assert!(refusals.contains(&1) && !refusals.contains(&2));
        let refusals = Refusals::new(Duration::ZERO);
        refusals.insert(1);
        assert!(!refusals.contains(&1));
    }

    #[test]
    fn the_number_of_remembered_writes_is_limited() {
        let refusals = Refusals::new(Duration::from_mins(10));
        for write in 0..=MAX_REFUSALS {
            refusals.insert(write);
        }
        assert!(refusals.contains(&MAX_REFUSALS) && !refusals.contains(&0));
    }
}
