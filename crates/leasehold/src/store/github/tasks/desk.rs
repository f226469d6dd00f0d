//! State that the task calls share: the issue of each task, the comments that were read, and the
//! order among the callers of one process.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::labels::{self, MADE};
use super::made::{Made, Stage};
use super::sight::Sight;
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::model::{Holder, Metadata, QueueName, TaskId, Timestamp};
use crate::store::github::answers::Issue;
use crate::store::github::api::Read;
use crate::store::github::claim::HEARTBEAT;
use crate::store::github::lanes::Lanes;
use crate::store::github::protocol::Protocol;
use crate::store::github::view::View;
use crate::store::{BootInstant, host_name};

/// Tasks of a repository, as one client knows them.
pub(super) struct Desk {
    pub(super) protocol: Arc<Protocol>,
    /// Order of the callers for each issue: a heartbeat that arrives after a settlement would
    /// revive the lease.
    pub(super) lanes: Lanes,
    /// Serializes leasing: the workers of one process need not compete for issues.
    pub(super) leasing: tokio::sync::Mutex<()>,
    pub(super) making: tokio::sync::Mutex<()>,
    ids: Mutex<HashMap<TaskId, u64>>,
    used: Mutex<BTreeSet<QueueName>>,
    seen: Mutex<HashMap<u64, Memo>>,
}

/// Cached comments of an issue, valid as long as nothing has changed.
struct Memo {
    updated_at: Timestamp,
    comments: u64,
    view: Arc<View>,
    until: BootInstant,
}

/// Maximum age of cached comments, even if nothing seems to have changed.
const REMEMBERED: Duration = Duration::from_mins(5);
/// Minimum age of an issue's last change before its comments are cached: another change in the same
/// second may have come after the read.
const SAME_SECOND: Duration = Duration::from_secs(2);
/// Maximum number of issues whose comments are cached.
const MOST: usize = 2000;

impl Desk {
    pub(super) fn new(protocol: Arc<Protocol>) -> Self {
        let used = protocol.api.options.queues.iter().cloned().collect();
        Self {
            protocol,
            lanes: Lanes::default(),
            leasing: tokio::sync::Mutex::default(),
            making: tokio::sync::Mutex::default(),
            ids: Mutex::default(),
            used: Mutex::new(used),
            seen: Mutex::default(),
        }
    }

    // --- queues ----------------------------------------------------------------------------------

    /// Registers a label as a queue. Fails if the name cannot be a label.
    pub(super) fn uses(&self, queue: &QueueName) -> Result<()> {
        labels::check(queue)?;
        lock(&self.used).insert(queue.clone());
        Ok(())
    }

    /// Returns the labels that this process knows as queues: those in its URL, those that it has
    /// used, and those for which issues were created.
    pub(super) async fn queues(&self) -> Result<Vec<QueueName>> {
        for (_, made) in self.made().await? {
            lock(&self.used).insert(made.queue);
        }
        Ok(lock(&self.used).iter().cloned().collect())
    }

    // --- issues of tasks -------------------------------------------------------------------------

    /// Returns the number of a task's issue.
    pub(super) async fn number(&self, id: TaskId) -> Result<Option<u64>> {
        if let Some(number) = id.number().or_else(|| self.known(id)) {
            return Ok(Some(number));
        }
        self.made().await?;
        Ok(self.known(id))
    }

    /// Returns all issues that were created for tasks, with the task in their text. Leaves out
    /// candidates.
    pub(super) async fn made(&self) -> Result<Vec<(Issue, Made)>> {
        let listed = self.protocol.api.queued(MADE, "all").await?;
        let made = listed.what.into_iter().filter_map(|issue| self.says(&issue).map(|made| (issue, made)));
        let made: Vec<_> = made.filter(|(_, made)| made.state == Stage::Settled).collect();
        for (issue, made) in &made {
            self.learn(made.id, issue.number);
        }
        Ok(made)
    }

    /// Records the issue of a task: the first issue with an id is the task.
    pub(super) fn learn(&self, id: TaskId, number: u64) {
        let mut ids = lock(&self.ids);
        let first = ids.entry(id).or_insert(number);
        *first = (*first).min(number);
    }

    /// Whether an issue is a task. A candidate is not; of several issues with one id, only the
    /// first is.
    pub(super) fn is_first(&self, issue: &Issue, made: Option<&Made>) -> bool {
        let Some(made) = made else { return true };
        if made.state == Stage::Raised {
            return false;
        }
        self.learn(made.id, issue.number);
        self.known(made.id) == Some(issue.number)
    }

    /// Returns the known issue of this task.
    pub(super) fn known(&self, id: TaskId) -> Option<u64> {
        lock(&self.ids).get(&id).copied()
    }

    /// Returns the task in the text of an issue that was created for it, if the author is trusted.
    pub(super) fn says(&self, issue: &Issue) -> Option<Made> {
        let author = (issue.user.as_ref(), issue.author_association.as_deref());
        Made::read(issue).filter(|_| self.protocol.is_one_of_us(author.0, author.1))
    }

    // --- reading tasks ---------------------------------------------------------------------------

    /// Returns an issue as a task of this queue, from cached comments if nothing has changed since.
    /// Only for queries: before a change, the caller has to read the comments again.
    pub(super) async fn glance(
        &self,
        queue: &QueueName,
        issue: &Issue,
        now: Timestamp,
    ) -> Result<Option<Sight>> {
        let view = if issue.comments == 0 {
            Arc::new(View::empty(now))
        } else {
            self.remembered(issue, now).await?
        };
        Ok(self.sight(queue, issue, &view.at(now)))
    }

    pub(super) fn sight(&self, queue: &QueueName, issue: &Issue, view: &View) -> Option<Sight> {
        Sight::new(issue, self.says(issue).as_ref(), queue, view)
    }

    async fn remembered(&self, issue: &Issue, now: Timestamp) -> Result<Arc<View>> {
        let key = (issue.updated_at, issue.comments);
        let memo = lock(&self.seen).get(&issue.number).and_then(|memo| {
            let fresh = (memo.updated_at, memo.comments) == key && BootInstant::now() < memo.until;
            fresh.then(|| memo.view.clone())
        });
        if let Some(view) = memo {
            return Ok(view);
        }
        let view = Arc::new(self.protocol.look(issue.number).await?);
        let mut seen = lock(&self.seen);
        if seen.len() >= MOST {
            seen.clear();
        }
        if now.since(issue.updated_at) >= SAME_SECOND {
            let (updated_at, comments) = key;
            let until = BootInstant::now().plus(REMEMBERED);
            seen.insert(issue.number, Memo { updated_at, comments, view: view.clone(), until });
        } else {
            seen.remove(&issue.number);
        }
        Ok(view)
    }

    /// Reads a task and its issue from the server; `None` if the task does not exist.
    pub(super) async fn look(&self, number: u64) -> Result<Option<(Issue, View, Sight)>> {
        let Some(issue) = self.protocol.api.issue(number, Read::Anew).await? else { return Ok(None) };
        let issue = issue.what;
        if issue.pull_request.is_some() {
            return Ok(None);
        }
        let view = self.protocol.look(number).await?;
        let Some(queue) = self.queue_of(&issue, &view) else { return Ok(None) };
        let sight = self.sight(&queue, &issue, &view);
        Ok(sight.map(|sight| (issue, view, sight)))
    }

    /// Returns the queue of an issue. A written record counts more than labels.
    fn queue_of(&self, issue: &Issue, view: &View) -> Option<QueueName> {
        let written = view.task().map(|known| known.record.queue().clone());
        let written = written.or_else(|| self.says(issue).map(|made| made.queue));
        written.or_else(|| lock(&self.used).iter().find(|queue| issue.has_label(queue.as_str())).cloned())
    }
}

/// Returns the name of this process, for people.
pub(super) fn holder() -> Holder {
    let long = format!("{}:{}", host_name(), std::process::id());
    Holder::new(long).unwrap_or_else(|_| Holder::new("a worker").expect("a short text"))
}

/// Returns the metadata that a claim contains about its worker or holder.
pub(in crate::store::github) fn facts(worker: &str, now: Timestamp) -> Metadata {
    let mut metadata = Metadata::default();
    for (name, value) in [
        ("worker_id", worker.to_owned()),
        ("node_id", host_name()),
        ("pid", std::process::id().to_string()),
        ("claimed_at", now.to_string()),
        (HEARTBEAT, now.to_string()),
    ] {
        metadata.set(name, value).unwrap_or_default();
    }
    metadata
}

/// Returns the error for an operation that GitHub's issues do not support.
pub(super) fn cannot(what: &str, hint: &str) -> Error {
    Error::store(StoreErrorKind::NotSupported, format!("{what}: the issues of GitHub cannot do that"), hint)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
