//! How long finished tasks are kept: records in the store that every process reads that forgets tasks.

use std::collections::BTreeMap;

use super::Tasks;
use crate::client::leasehold::Inner;
use crate::error::{Error, Result, Trouble};
use crate::model::{Finished, QueueName, QueueStatus, Retention, TaskState, Timestamp, Ttl, WorkflowName};
use crate::store::{Doc, DocStore, Draft, PutIf, TaskStore};

/// The records: of a queue, and without a name of all queues that have none.
const PREFIX: &str = "retention/";
/// A record that was removed is remembered for so long.
const REMOVED: Ttl = Ttl::from_secs(24 * 3600);
/// A record that others change at the same time is written so often.
const TRIES: u32 = 10;
/// The most tasks of one batch.
const BATCH: u32 = 1000;
/// The most queues of one pass; the next pass continues after them.
const QUEUES: usize = 200;
/// A queue without finished tasks may still have archived ones, which are not counted: it is looked through in every so
/// many-th pass.
const ARCHIVED_EVERY: u32 = 10;

impl Tasks {
    /// How long finished tasks of this queue are kept.
    pub async fn retention(&self, queue: &QueueName) -> Result<Retention> {
        Ok(Retentions::load(&self.inner).await?.of(queue))
    }

    /// How long finished tasks are kept in queues that have no retention of their own.
    pub async fn default_retention(&self) -> Result<Retention> {
        Ok(Retentions::load(&self.inner).await?.default)
    }

    /// Sets how long finished tasks of this queue are kept, or without a queue those of every queue that has no retention of
    /// its own. `None` removes what was set. Every process that forgets tasks of this store reads it within a minute.
    pub async fn set_retention(
        &self,
        queue: Option<&QueueName>,
        retention: Option<Retention>,
    ) -> Result<Retention> {
        set(&self.inner, queue, retention).await?;
        match queue {
            Some(queue) => self.retention(queue).await,
            None => self.default_retention().await,
        }
    }
}

impl Tasks {
    /// Forgets finished tasks and their keys; returns how many. Executions of workflows stay for
    /// [30 days](Retention::EXECUTIONS) in any case: until then their key must be known.
    pub async fn purge(&self, which: &Finished) -> Result<u64> {
        let tasks = self.store()?;
        let is_workflow = |queue: &QueueName| WorkflowName::of_queue(queue).is_some();
        let youngest = tasks.now().await?.minus(Retention::EXECUTIONS.as_duration());
        let bounded = |queue: QueueName, limit| {
            let before = if is_workflow(&queue) { which.before.min(youngest) } else { which.before };
            Finished { queue: Some(queue), before, limit, ..which.clone() }
        };
        if let Some(queue) = &which.queue {
            return tasks.purge(&bounded(queue.clone(), which.limit)).await;
        }
        let queues = tasks.queues().await?;
        if which.before <= youngest || !queues.iter().any(|status| is_workflow(&status.queue)) {
            return tasks.purge(which).await;
        }
        let mut purged = 0;
        for status in queues {
            let left = u64::from(which.limit).saturating_sub(purged);
            let limit = u32::try_from(left).unwrap_or(u32::MAX);
            if limit == 0 {
                break;
            }
            purged += tasks.purge(&bounded(status.queue, limit)).await?;
        }
        Ok(purged)
    }

    /// Forgets finished tasks whose retention is over, in up to 200 queues; returns how many. Every worker and server does so
    /// each minute.
    pub async fn forget_finished(&self) -> Result<u64> {
        Forgetting::default().pass(&self.inner).await
    }
}

/// What is set in the store.
struct Retentions {
    default: Retention,
    queues: BTreeMap<String, Retention>,
}

impl Retentions {
    /// Reads all records. A store without documents has none.
    async fn load(inner: &Inner) -> Result<Self> {
        let mut found = Self { default: Retention::DEFAULT, queues: BTreeMap::new() };
        let Some(docs) = inner.store.docs() else { return Ok(found) };
        let mut after = None;
        loop {
            let page = docs.list(PREFIX, after, 0).await?;
            for (key, doc) in &page.items {
                match (read(doc)?, key.strip_prefix(PREFIX)) {
                    (Some(retention), Some("")) => found.default = retention,
                    (Some(retention), Some(queue)) => _ = found.queues.insert(queue.to_owned(), retention),
                    _ => {}
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    fn of(&self, queue: &QueueName) -> Retention {
        self.queues.get(queue.as_str()).unwrap_or(&self.default).of_queue(queue)
    }
}

/// Writes a record if it says something else; says whether it did.
pub(super) async fn set(
    inner: &Inner,
    queue: Option<&QueueName>,
    retention: Option<Retention>,
) -> Result<bool> {
    let docs = docs(inner)?;
    let key = format!("{PREFIX}{}", queue.map(QueueName::as_str).unwrap_or_default());
    let mut found = docs.get(&key).await?;
    for _ in 0..TRIES {
        if found.as_ref().map(read).transpose()?.flatten() == retention {
            return Ok(false);
        }
        let body = retention.map(|retention| serde_json::to_string(&retention).expect("it can be written"));
        let keep = if body.is_none() { Some(REMOVED) } else { None };
        let draft = Draft { body: body.unwrap_or_default(), facts: Vec::new(), keep };
        match docs.put_if(&key, found.as_ref().map(|doc| doc.version), draft).await? {
            PutIf::Written(_) => return Ok(true),
            PutIf::Clash(doc) => found = doc,
        }
    }
    let message = "the retention is being changed by others all the time";
    Err(Error::store(Trouble::Unavailable, message, "try again"))
}

/// None if the record was removed. One that cannot be read is an error: nothing is forgotten in doubt.
fn read(doc: &Doc) -> Result<Option<Retention>> {
    if doc.body.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&doc.body).map(Some).map_err(|error| {
        let message = "a retention record was written by another version of leasehold; nothing is forgotten";
        Error::store(Trouble::Broken, message, "use one version, or set the retention again").because(error)
    })
}

fn docs(inner: &Inner) -> Result<&dyn DocStore> {
    let can = inner.tasks().is_ok() && inner.store.abilities().tasks.forgets;
    inner.store.docs().filter(|_| can).ok_or_else(|| {
        let message = format!("the store {} forgets no tasks, so no retention can be set", inner.store.url());
        let hint = "use sqlite:, postgres:// or redis:// where tasks are to be forgotten";
        Error::store(Trouble::NotSupported, message, hint)
    })
}

/// Forgets finished tasks whose time is over, a number of queues at a time.
#[derive(Default)]
pub(super) struct Forgetting {
    /// The queue that the last pass ended with.
    last: Option<QueueName>,
    passes: u32,
}

impl Forgetting {
    /// One pass. Returns how many tasks it has forgotten.
    pub(super) async fn pass(&mut self, inner: &Inner) -> Result<u64> {
        let tasks = inner.tasks()?;
        let retentions = Retentions::load(inner).await?;
        let now = tasks.now().await?;
        let with_archived = self.passes.is_multiple_of(ARCHIVED_EVERY);
        self.passes = self.passes.wrapping_add(1);
        let finished = |status: &QueueStatus| {
            TaskState::ALL.iter().any(|state| state.is_terminal() && status.counts.get(*state) > 0)
        };
        let queues = tasks.queues().await?;
        let is_alike = |status: &QueueStatus| WorkflowName::of_queue(&status.queue).is_none();
        if retentions.queues.is_empty() && queues.iter().all(is_alike) {
            // Mostly all queues are one.
            return forget(tasks, None, retentions.default.cutoffs(now)).await;
        }
        let queues = queues.into_iter().filter(|status| with_archived || finished(status));
        let (before, behind): (Vec<_>, Vec<_>) =
            queues.map(|status| status.queue).partition(|queue| Some(queue) <= self.last.as_ref());
        let mut all = 0;
        for queue in behind.into_iter().chain(before).take(QUEUES) {
            all += forget(tasks, Some(&queue), retentions.of(&queue).cutoffs(now)).await?;
            self.last = Some(queue);
        }
        Ok(all)
    }
}

/// Forgets what ended before these times, in one queue or in all.
async fn forget(
    tasks: &dyn TaskStore,
    queue: Option<&QueueName>,
    cutoffs: Vec<(Option<TaskState>, Timestamp)>,
) -> Result<u64> {
    let mut forgotten = 0;
    for (state, before) in cutoffs {
        let which = Finished { queue: queue.cloned(), state, before, limit: BATCH };
        loop {
            let some = tasks.purge(&which).await?;
            forgotten += some;
            if some < u64::from(BATCH) {
                break;
            }
        }
    }
    if forgotten > 0 {
        let queue = queue.map_or("all", QueueName::as_str);
        tracing::info!(queue, tasks = forgotten, "forgot finished tasks whose time was over");
    }
    Ok(forgotten)
}
