//! What the calls share: which issue a task is, what was seen of it, and the order among the callers of one process.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::labels::{self, MADE};
use super::made::{Made, Stage};
use super::sight::Sight;
use crate::Result;
use crate::error::{Error, Trouble};
use crate::model::{Holder, Metadata, QueueName, TaskId, Timestamp};
use crate::store::github::answers::Issue;
use crate::store::github::api::Read;
use crate::store::github::claim::HEARTBEAT;
use crate::store::github::lanes::Lanes;
use crate::store::github::protocol::Protocol;
use crate::store::github::view::View;
use crate::store::{Moment, host_name};

/// The tasks of a repository, as one client sees them.
pub(super) struct Desk {
    pub(super) protocol: Arc<Protocol>,
    /// One caller at a time for an issue: a sign of life that arrives after a settlement would bring the lease back.
    pub(super) lanes: Lanes,
    /// Workers of one process need not compete for issues.
    pub(super) leasing: tokio::sync::Mutex<()>,
    pub(super) making: tokio::sync::Mutex<()>,
    ids: Mutex<HashMap<TaskId, u64>>,
    used: Mutex<BTreeSet<QueueName>>,
    seen: Mutex<HashMap<u64, Memo>>,
}

/// What the comments of an issue said, for as long as nothing has changed.
struct Memo {
    updated_at: Timestamp,
    comments: u64,
    view: Arc<View>,
    until: Moment,
}

/// Even if nothing seems to have changed, it is looked at again after this time.
const REMEMBERED: Duration = Duration::from_mins(5);
/// Whatever happened in the very second of the look may have come after it.
const SAME_SECOND: Duration = Duration::from_secs(2);
/// No more than so many are remembered.
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

    // --- queues -------------------------------------------------------------------------------------------------

    /// This label is a queue.
    pub(super) fn uses(&self, queue: &QueueName) -> Result<()> {
        labels::check(queue)?;
        lock(&self.used).insert(queue.clone());
        Ok(())
    }

    /// The labels that are queues, as far as this process knows: those that its address names, that it has used, and that issues
    /// were made for.
    pub(super) async fn queues(&self) -> Result<Vec<QueueName>> {
        for (_, made) in self.made().await? {
            lock(&self.used).insert(made.queue);
        }
        Ok(lock(&self.used).iter().cloned().collect())
    }

    // --- which issue a task is ----------------------------------------------------------------------------------

    /// The number of a task's issue.
    pub(super) async fn number(&self, id: TaskId) -> Result<Option<u64>> {
        if let Some(number) = id.number().or_else(|| self.known(id)) {
            return Ok(Some(number));
        }
        self.made().await?;
        Ok(self.known(id))
    }

    /// All issues that were made for tasks, and what they say of them; flags are not among them.
    pub(super) async fn made(&self) -> Result<Vec<(Issue, Made)>> {
        let listed = self.protocol.api.queued(MADE, "all").await?;
        let made = listed.what.into_iter().filter_map(|issue| self.says(&issue).map(|made| (issue, made)));
        let made: Vec<_> = made.filter(|(_, made)| made.state == Stage::Settled).collect();
        for (issue, made) in &made {
            self.learn(made.id, issue.number);
        }
        Ok(made)
    }

    /// The first issue with an id is the task.
    pub(super) fn learn(&self, id: TaskId, number: u64) {
        let mut ids = lock(&self.ids);
        let first = ids.entry(id).or_insert(number);
        *first = (*first).min(number);
    }

    /// Whether an issue is a task: flags are none, and of several with one id the first is it.
    pub(super) fn is_first(&self, issue: &Issue, made: Option<&Made>) -> bool {
        let Some(made) = made else { return true };
        if made.state == Stage::Raised {
            return false;
        }
        self.learn(made.id, issue.number);
        self.known(made.id) == Some(issue.number)
    }

    /// The issue that is known to be this task.
    pub(super) fn known(&self, id: TaskId) -> Option<u64> {
        lock(&self.ids).get(&id).copied()
    }

    /// What an issue says of a task that it was made for, if that may be believed.
    pub(super) fn says(&self, issue: &Issue) -> Option<Made> {
        let author = (issue.user.as_ref(), issue.author_association.as_deref());
        Made::read(issue).filter(|_| self.protocol.is_one_of_us(author.0, author.1))
    }

    // --- what was seen ------------------------------------------------------------------------------------------

    /// An issue as a task of this queue, from what was seen of its comments if nothing has changed since. Good for whoever only looks:
    /// what is to be changed is looked at anew.
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
            let fresh = (memo.updated_at, memo.comments) == key && Moment::now() < memo.until;
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
            let until = Moment::now().plus(REMEMBERED);
            seen.insert(issue.number, Memo { updated_at, comments, view: view.clone(), until });
        } else {
            seen.remove(&issue.number);
        }
        Ok(view)
    }

    /// A task as it is now, and its issue; none if there is no such task.
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

    /// Which queue an issue is in: what was written counts more than its labels.
    fn queue_of(&self, issue: &Issue, view: &View) -> Option<QueueName> {
        let written = view.task().map(|known| known.record.queue().clone());
        let written = written.or_else(|| self.says(issue).map(|made| made.queue));
        written.or_else(|| lock(&self.used).iter().find(|queue| issue.has_label(queue.as_str())).cloned())
    }
}

/// Who this process is, for people.
pub(super) fn holder() -> Holder {
    let long = format!("{}:{}", host_name(), std::process::id());
    Holder::new(long).unwrap_or_else(|_| Holder::new("a worker").expect("a short text"))
}

/// What a claim says of its worker or holder.
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

/// What GitHub cannot do.
pub(super) fn cannot(what: &str, hint: &str) -> Error {
    Error::store(Trouble::NotSupported, format!("{what}: the issues of GitHub cannot do that"), hint)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
