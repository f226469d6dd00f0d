//! Retention of finished tasks: records in the store, read by every process that purges tasks.

use std::collections::BTreeMap;

use super::Tasks;
use crate::client::context::{Inner, parsed};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    FinishedFilter, QueueName, QueueStatus, Retention, TaskState, Timestamp, Ttl, WorkflowName,
};
use crate::store::{Document, DocumentStore, NewDocument, PutIf, TaskStore};

/// Key prefix of the records. A record without a queue name applies to all queues that have no
/// record.
const PREFIX: &str = "retention/";
/// Time to live of the tombstone of a removed record.
const TOMBSTONE_TTL: Ttl = Ttl::from_secs(24 * 3600);
/// Maximum number of attempts to write a record that other callers change at the same time.
const MAX_ATTEMPTS: u32 = 10;
const TASK_BATCH: u32 = 1000;
/// Maximum number of queues in one pass; the next pass continues after them.
const QUEUES_PER_PASS: usize = 200;
/// Number of queues in a row that may fail in one pass: each may take as long as a call may. The next pass
/// continues after them.
const MAX_FAILURES: u32 = 3;
/// A queue without finished tasks may still have archived tasks, which are not counted: one pass
/// out of this many searches such queues too, and reads the queues again.
const ARCHIVED_PASS_INTERVAL: u32 = 10;

impl Tasks {
    /// Returns the retention of finished tasks of this queue.
    pub async fn retention(&self, queue: impl TryInto<QueueName, Error: Into<Error>>) -> Result<Retention> {
        let queue = parsed(queue)?;
        Ok(Retentions::load(&self.inner).await?.of(&queue))
    }

    /// Returns the retention of finished tasks in queues that have no retention of their own.
    pub async fn default_retention(&self) -> Result<Retention> {
        Ok(Retentions::load(&self.inner).await?.default)
    }

    /// Sets the retention of finished tasks of this queue, or without a queue of every queue that
    /// has no retention of its own. `None` removes the setting. Every process that purges tasks of
    /// this store reads the setting within a minute.
    pub async fn set_retention(
        &self,
        queue: Option<&QueueName>,
        retention: Option<Retention>,
    ) -> Result<Retention> {
        store_retention(&self.inner, queue, retention).await?;
        match queue {
            Some(queue) => self.retention(queue).await,
            None => self.default_retention().await,
        }
    }

    /// Deletes finished tasks and their keys, and returns their number. Executions of workflows are
    /// kept for [30 days](Retention::EXECUTIONS) in any case: until then their key must be known.
    pub async fn purge(&self, filter: &FinishedFilter) -> Result<u64> {
        let tasks = self.store()?;
        let is_workflow = |queue: &QueueName| WorkflowName::of_queue(queue).is_some();
        let youngest = tasks.now().await?.minus(Retention::EXECUTIONS.as_duration());
        let bounded = |queue: QueueName, limit| {
            let before = if is_workflow(&queue) { filter.before.min(youngest) } else { filter.before };
            FinishedFilter { queue: Some(queue), before, limit, ..filter.clone() }
        };
        if let Some(queue) = &filter.queue {
            return tasks.purge(&bounded(queue.clone(), filter.limit)).await;
        }
        let queues = tasks.queues().await?;
        if filter.before <= youngest || !queues.iter().any(|status| is_workflow(&status.queue)) {
            return tasks.purge(filter).await;
        }
        let mut purged = 0;
        for status in queues {
            let left = u64::from(filter.limit).saturating_sub(purged);
            let limit = u32::try_from(left).unwrap_or(u32::MAX);
            if limit == 0 {
                break;
            }
            purged += tasks.purge(&bounded(status.queue, limit)).await?;
        }
        Ok(purged)
    }

    /// Deletes finished tasks whose retention is over, in up to 200 queues, and returns their
    /// number. Every worker and server does so each minute.
    pub async fn apply_retention(&self) -> Result<u64> {
        RetentionPurge::default().run(&self.inner).await
    }
}

struct Retentions {
    default: Retention,
    queues: BTreeMap<String, Retention>,
}

impl Retentions {
    /// Reads all records. A store without documents has none.
    async fn load(inner: &Inner) -> Result<Self> {
        let mut found = Self { default: Retention::DEFAULT, queues: BTreeMap::new() };
        let Some(docs) = inner.store.documents() else { return Ok(found) };
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

    /// Returns a time before which each task that has to be purged at `now` has finished; `None` if there is
    /// no such task.
    fn newest_cutoff(&self, now: Timestamp) -> Option<Timestamp> {
        let all = self.queues.values().chain([&self.default]);
        all.flat_map(|retention| retention.cutoffs(now)).map(|(_, before)| before).max()
    }
}

/// Writes a record if it differs from the stored one, and returns whether it was written.
pub(in crate::client) async fn store_retention(
    inner: &Inner,
    queue: Option<&QueueName>,
    retention: Option<Retention>,
) -> Result<bool> {
    let docs = docs(inner)?;
    let key = format!("{PREFIX}{}", queue.map(QueueName::as_str).unwrap_or_default());
    let mut found = docs.get(&key).await?;
    for _ in 0..MAX_ATTEMPTS {
        if found.as_ref().map(read).transpose()?.flatten() == retention {
            return Ok(false);
        }
        let body = retention
            .map(|retention| serde_json::to_string(&retention).expect("a retention serializes to JSON"));
        let keep = if body.is_none() { Some(TOMBSTONE_TTL) } else { None };
        let document = NewDocument { body: body.unwrap_or_default(), annotations: Vec::new(), keep };
        match docs.put_if(&key, found.as_ref().map(|doc| doc.version), document).await? {
            PutIf::Written(_) => return Ok(true),
            PutIf::Conflict(doc) => found = doc,
        }
    }
    let message = "the retention was not changed: other callers kept changing it";
    Err(Error::store(StoreErrorKind::Unavailable, message, "try again"))
}

/// Returns the retention of a record, `None` if the record was removed. An unreadable record is an
/// error: in doubt no task is deleted.
fn read(doc: &Document) -> Result<Option<Retention>> {
    if doc.body.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&doc.body).map(Some).map_err(|error| {
        let message = "a retention record was written by another version of leasehold; nothing is purged";
        Error::store(StoreErrorKind::Broken, message, "use one version, or set the retention again")
            .because(error)
    })
}

fn docs(inner: &Inner) -> Result<&dyn DocumentStore> {
    let can = inner.tasks().is_ok() && inner.store.capabilities().tasks.purge;
    inner.store.documents().filter(|_| can).ok_or_else(|| {
        let message =
            format!("the store {} does not purge tasks, so no retention can be set", inner.store.url());
        let hint = "use sqlite:, postgres:// or redis:// where tasks are to be purged";
        Error::store(StoreErrorKind::NotSupported, message, hint)
    })
}

/// Deletion of finished tasks whose retention is over, a limited number of queues per pass.
#[derive(Default)]
pub(in crate::client) struct RetentionPurge {
    /// Last queue of the previous pass.
    last: Option<QueueName>,
    passes: u32,
    known: Option<KnownQueues>,
}

/// Queues of the store as they were read after a time, and whether each had finished tasks.
struct KnownQueues {
    after: Timestamp,
    queues: Vec<(QueueName, bool)>,
}

impl KnownQueues {
    async fn read(tasks: &dyn TaskStore, now: Timestamp) -> Result<Self> {
        let known = |status: QueueStatus| {
            let is_finished = |state: &TaskState| state.is_terminal() && status.counts.get(*state) > 0;
            let has_finished = TaskState::ALL.iter().any(is_finished);
            (status.queue, has_finished)
        };
        Ok(Self { after: now, queues: tasks.queues().await?.into_iter().map(known).collect() })
    }

    /// Whether a task that finished before `cutoff` may be in a queue that was not known, or had no finished
    /// tasks. Not if it had finished when the queues were read.
    fn may_lack(&self, cutoff: Option<Timestamp>, now: Timestamp) -> bool {
        now < self.after || cutoff.is_some_and(|cutoff| self.after < cutoff)
    }

    fn have_default_retention(&self) -> bool {
        self.queues.iter().all(|(queue, _)| WorkflowName::of_queue(queue).is_none())
    }
}

impl RetentionPurge {
    /// Deletes the tasks of the next queues. A queue that fails does not keep those of the others. Returns the
    /// first error that concerns the whole store.
    pub(in crate::client) async fn run(&mut self, inner: &Inner) -> Result<u64> {
        let tasks = inner.tasks()?;
        let retentions = Retentions::load(inner).await?;
        let now = tasks.now().await?;
        let with_archived = self.passes.is_multiple_of(ARCHIVED_PASS_INTERVAL);
        self.passes = self.passes.wrapping_add(1);
        let cutoff = retentions.newest_cutoff(now);
        let known = match self.known.take() {
            Some(known) if !with_archived && !known.may_lack(cutoff, now) => known,
            _ => KnownQueues::read(tasks, now).await?,
        };
        let known = &*self.known.insert(known);
        if retentions.queues.is_empty() && known.have_default_retention() {
            // Common case: one retention applies to all queues, so that one call covers all of
            // them.
            return purge_before(tasks, None, retentions.default.cutoffs(now)).await;
        }
        let queues = known.queues.iter().filter(|(_, finished)| with_archived || *finished);
        let queues = queues.map(|(queue, _)| queue.clone());
        let (done, next): (Vec<_>, Vec<_>) = queues.partition(|queue| Some(queue) <= self.last.as_ref());
        let (mut total, mut store_failure, mut failures) = (0, None, 0);
        for queue in next.into_iter().chain(done).take(QUEUES_PER_PASS) {
            // Before the call: a queue that always fails must not be the first of every pass.
            self.last = Some(queue.clone());
            match purge_before(tasks, Some(&queue), retentions.of(&queue).cutoffs(now)).await {
                Ok(purged) => (total, failures) = (total + purged, 0),
                Err(error) => {
                    tracing::warn!(%queue, %error, "failed to purge the finished tasks of a queue");
                    failures += 1;
                    if error.is_retryable() || error.is_not_permitted() {
                        store_failure = store_failure.or(Some(error));
                    }
                }
            }
            if failures == MAX_FAILURES {
                break;
            }
        }
        store_failure.map_or(Ok(total), Err)
    }
}

/// Deletes tasks that finished before these times, in one queue or in all.
async fn purge_before(
    tasks: &dyn TaskStore,
    queue: Option<&QueueName>,
    cutoffs: Vec<(Option<TaskState>, Timestamp)>,
) -> Result<u64> {
    let mut purged = 0;
    for (state, before) in cutoffs {
        let filter = FinishedFilter { queue: queue.cloned(), state, before, limit: TASK_BATCH };
        loop {
            let count = tasks.purge(&filter).await?;
            purged += count;
            if count < u64::from(TASK_BATCH) {
                break;
            }
        }
    }
    if purged > 0 {
        let queue = queue.map_or("all", QueueName::as_str);
        tracing::info!(queue, tasks = purged, "purged finished tasks whose retention was over");
    }
    Ok(purged)
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::Leasehold;
    use crate::model::{Holder, Payload, TaskId};
    use crate::store::Clock;
    use crate::store::memory::MemoryStore;

    fn manual() -> (Leasehold, Clock) {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        (Leasehold::with_store(Arc::new(MemoryStore::with_clock(clock.clone()))).unwrap(), clock)
    }

    /// Adds a task and cancels it.
    async fn aborted(leasehold: &Leasehold, to: &str) -> TaskId {
        let id = leasehold.enqueue_to(to, Payload::default()).await.unwrap().id;
        leasehold.tasks().unwrap().cancel(id, Holder::new("ada").unwrap(), None).await.unwrap();
        id
    }

    async fn is_known(leasehold: &Leasehold, id: TaskId) -> bool {
        leasehold.tasks().unwrap().get(id).await.is_ok()
    }

    #[tokio::test]
    async fn one_pass_in_ten_reads_the_queues() {
        let (leasehold, clock) = manual();
        let (leasehold, counters) = leasehold.instrumented();
        aborted(&leasehold, "mail").await;
        let mut purge = RetentionPurge::default();
        for (passes, expected) in [(1, 1), (9, 1), (1, 2), (9, 2)] {
            for _ in 0..passes {
                clock.advance(Duration::from_mins(1));
                assert_eq!(purge.run(&leasehold.inner).await.unwrap(), 0);
            }
            let operations = counters.read().await.operations;
            let queues = operations.into_iter().find(|operation| operation.op == "task_queues").unwrap();
            assert_eq!(queues.took.count(), expected);
        }
    }

    /// The queues, or their finished tasks, are newer than the list of the queues.
    #[tokio::test]
    async fn a_pass_knows_the_queue_of_each_task_that_it_may_delete() {
        let (leasehold, clock) = manual();
        let keep = Retention::all(Some(Ttl::from_secs(3600)));
        leasehold.tasks().unwrap().set_retention(None, Some(keep)).await.unwrap();
        let first = aborted(&leasehold, "mail").await;
        let mut purge = RetentionPurge::default();
        assert_eq!(purge.run(&leasehold.inner).await.unwrap(), 0);
        let execution = aborted(&leasehold, "workflow/deploy").await;
        let other = aborted(&leasehold, "other").await;
        clock.advance(Duration::from_mins(61));
        assert_eq!(purge.run(&leasehold.inner).await.unwrap(), 2);
        assert!(!is_known(&leasehold, first).await && !is_known(&leasehold, other).await);
        assert!(is_known(&leasehold, execution).await, "executions are kept for 30 days");
    }
}
