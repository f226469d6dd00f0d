//! Schedules: their storage, and the creation of a task for each tick.
//!
//! A schedule is a document of the store. Any worker that sees a tick adds its task, whose key
//! contains the tick: the task is added once even if several workers see the tick. The tick is
//! recorded as processed only after that, so that a crash loses no tick.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::context::{Inner, parsed};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    CronExpression, LockName, MisfirePolicy, Payload, Priority, QueueName, RetryPolicy, Schedule,
    ScheduleName, TaskId, TimeZoneName, Timestamp, Ttl,
};
use crate::store::clock::new_id;
use crate::store::{Document, DocumentStore, NewDocument, PutIf};

const PREFIX: &str = "schedule/";
/// Time for which the document of a removed schedule is kept, so that its version is not reused.
const TOMBSTONE_TTL: Ttl = Ttl::from_secs(24 * 3600);
/// Maximum number of attempts of a change that conflicts with concurrent changes.
const MAX_ATTEMPTS: u32 = 10;
/// Maximum time until a schedule that another process set or changed is noticed.
const POLL_SCHEDULES_EVERY: Duration = Duration::from_secs(2);
const SCHEDULER_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay before schedules are read again after the store has denied it.
const PERMISSION_RETRY_DELAY: Duration = Duration::from_mins(1);
/// Number of schedules that fail one after the other from which on the store counts as unavailable.
const MAX_FAILURES: u32 = 3;

/// Administrative API for the schedules of a store.
#[derive(Clone)]
pub struct Schedules {
    inner: Arc<Inner>,
}

impl Schedules {
    pub(super) fn new(inner: Arc<Inner>) -> Result<Self> {
        docs(&inner)?;
        Ok(Self { inner })
    }

    /// Returns all schedules, in the order of their names.
    pub async fn list(&self) -> Result<Vec<Schedule>> {
        Ok(load_all(&self.inner, BTreeMap::new()).await?.into_values().map(|known| known.schedule).collect())
    }

    /// Returns one schedule.
    pub async fn get(&self, name: impl TryInto<ScheduleName, Error: Into<Error>>) -> Result<Schedule> {
        let name = parsed(name)?;
        let doc = docs(&self.inner)?.get(&key(&name)).await?;
        doc.and_then(|doc| read(&doc)).ok_or(Error::UnknownSchedule(name))
    }

    /// Adds the tasks of all ticks that are due now, also of ticks at which no worker was running.
    /// Workers do this periodically by themselves; this call is for callers that need it to be done
    /// when the call returns.
    pub async fn tick(&self) -> Result<()> {
        tick(&self.inner, &mut KnownTicks::default()).await.map(drop)
    }

    /// Removes a schedule. Tasks that it has added remain.
    pub async fn remove(&self, name: impl TryInto<ScheduleName, Error: Into<Error>>) -> Result<()> {
        self.change(&parsed(name)?, |_| None).await.map(|_| ())
    }

    /// Pauses a schedule until it is resumed. Ticks during the pause are not made up for.
    pub async fn pause(&self, name: impl TryInto<ScheduleName, Error: Into<Error>>) -> Result<Schedule> {
        self.change(&parsed(name)?, |schedule| Some(Schedule { paused: true, ..schedule })).await
    }

    /// Resumes a schedule from now on.
    pub async fn resume(&self, name: impl TryInto<ScheduleName, Error: Into<Error>>) -> Result<Schedule> {
        let name = parsed(name)?;
        let now = self.inner.tasks()?.now().await?;
        let resume = |schedule: Schedule| {
            let since = if schedule.paused { schedule.since.max(now) } else { schedule.since };
            Some(Schedule { paused: false, since, ..schedule })
        };
        self.change(&name, resume).await
    }

    async fn change(
        &self,
        name: &ScheduleName,
        change: impl Fn(Schedule) -> Option<Schedule>,
    ) -> Result<Schedule> {
        let docs = docs(&self.inner)?;
        let mut found = docs.get(&key(name)).await?;
        for _ in 0..MAX_ATTEMPTS {
            let current = found.as_ref().and_then(|doc| read(doc).map(|schedule| (doc.version, schedule)));
            let (version, schedule) = current.ok_or_else(|| Error::UnknownSchedule(name.clone()))?;
            let changed = change(schedule.clone());
            match docs.put_if(&key(name), Some(version), new_document(changed.as_ref())).await? {
                PutIf::Written(_) => return Ok(changed.unwrap_or(schedule)),
                PutIf::Conflict(doc) => found = doc,
            }
        }
        Err(contended(name))
    }
}

/// Builder that stores a schedule when awaited: a new one, or a replacement of the one with the
/// same name.
#[must_use = "nothing is set until it is awaited"]
pub struct ScheduleBuilder {
    inner: Arc<Inner>,
    schedule: Result<Schedule>,
}

impl ScheduleBuilder {
    pub(super) fn new(inner: Arc<Inner>, schedule: Result<Schedule>) -> Self {
        Self { inner, schedule }
    }

    /// Sets the time zone of the cron expression, such as `Europe/Berlin`; UTC by default.
    pub fn zone(self, zone: impl TryInto<TimeZoneName, Error: Into<Error>>) -> Self {
        self.with(zone.try_into(), |schedule, zone| schedule.zone = zone)
    }

    /// Sets the policy for ticks at which no worker was running; by default one task for each of
    /// them.
    pub fn missed(self, missed: MisfirePolicy) -> Self {
        self.with(Ok::<_, Error>(missed), |schedule, missed| schedule.missed = missed)
    }

    /// Sets the priority of the tasks.
    pub fn priority(self, weight: i32) -> Self {
        self.with(Priority::new(weight), |schedule, priority| schedule.priority = priority)
    }

    /// Sets the lock that the worker of each task holds while the task runs.
    pub fn lock<N: TryInto<LockName, Error: Into<Error>>>(self, lock: N) -> Self {
        self.with(lock.try_into(), |schedule, lock| schedule.lock = Some(lock))
    }

    /// Sets the retry policy of the tasks.
    pub fn retries(self, retries: RetryPolicy) -> Self {
        self.with(retries.check(), |schedule, retries| schedule.retries = retries)
    }

    /// Sets the maximum run time of one attempt at a task.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(Ttl::new(timeout), |schedule, timeout| schedule.timeout = Some(timeout))
    }

    /// Delays each task by up to this long after its tick, so that schedules with the same ticks do
    /// not run at the same time. The delay is derived from the name and the tick, and is the same
    /// in every process. At most one day; no jitter by default.
    pub fn jitter(self, jitter: Duration) -> Self {
        let jitter = Ttl::new(jitter).and_then(Schedule::check_jitter);
        self.with(jitter, |schedule, jitter| schedule.jitter = Some(jitter))
    }

    fn with<T, E: Into<Error>>(mut self, value: Result<T, E>, set: impl FnOnce(&mut Schedule, T)) -> Self {
        match (&mut self.schedule, value) {
            (Ok(schedule), Ok(value)) => set(schedule, value),
            (Ok(_), Err(error)) => self.schedule = Err(error.into()),
            (Err(_), _) => {}
        }
        self
    }
}

impl IntoFuture for ScheduleBuilder {
    type Output = Result<Schedule>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Schedule>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { set(&self.inner, self.schedule?).await })
    }
}

pub(super) fn new_schedule(
    name: impl TryInto<ScheduleName, Error: Into<Error>>,
    cron: impl TryInto<CronExpression, Error: Into<Error>>,
    queue: impl TryInto<QueueName, Error: Into<Error>>,
    payload: Payload,
) -> Result<Schedule> {
    let (queue, name, cron) = (parsed(queue)?, parsed(name)?, parsed(cron)?);
    Ok(Schedule::new(name, cron, queue, payload, Timestamp::default())?)
}

/// Stores a schedule. With an unchanged cron expression and time zone, the position and the pause
/// of the earlier schedule are kept; otherwise the schedule begins now.
async fn set(inner: &Inner, schedule: Schedule) -> Result<Schedule> {
    let docs = docs(inner)?;
    // Rejects a schedule whose tasks could not be added.
    schedule.task(Timestamp::default(), TaskId::from_uuid(new_id()))?;
    let now = inner.tasks()?.now().await?;
    let key = key(&schedule.name);
    let mut found = docs.get(&key).await?;
    for _ in 0..MAX_ATTEMPTS {
        let earlier = found.as_ref().and_then(read);
        let same = earlier.filter(|earlier| earlier.cron == schedule.cron && earlier.zone == schedule.zone);
        let (since, paused) = same.map_or((now, false), |earlier| (earlier.since, earlier.paused));
        let new = Schedule { paused, since, ..schedule.clone() };
        let version = found.as_ref().map(|doc| doc.version);
        match docs.put_if(&key, version, new_document(Some(&new))).await? {
            PutIf::Written(_) => return Ok(new),
            PutIf::Conflict(doc) => found = doc,
        }
    }
    Err(contended(&schedule.name))
}

/// Adds the tasks of schedule ticks until the future is dropped.
pub(super) async fn run_scheduler(inner: Arc<Inner>) {
    let mut known = KnownTicks::default();
    loop {
        let next = match tick(&inner, &mut known).await {
            Ok(next) => next.unwrap_or(POLL_SCHEDULES_EVERY),
            Err(error) if error.is_not_permitted() => {
                // The permission may be restored. On a server with tokens, the server runs the schedules.
                tracing::debug!(%error, "this process is not permitted to run schedules; trying again later");
                tokio::time::sleep(PERMISSION_RETRY_DELAY).await;
                continue;
            }
            Err(error) => {
                inner.availability.record_failure("failed to read the schedules; retrying", &error);
                SCHEDULER_RETRY_DELAY
            }
        };
        // A tick is handled on time, and the first process to handle it spares the others the work.
        // Queries that only detect changes drift apart, so that processes that started together do
        // not query together forever.
        let jitter = Duration::from_millis(fastrand::u64(0..20));
        let poll = POLL_SCHEDULES_EVERY.mul_f64(0.7 + 0.3 * fastrand::f64());
        tokio::time::sleep(next.min(poll) + jitter).await;
    }
}

/// State of the schedules from an earlier poll.
#[derive(Default)]
struct KnownTicks {
    /// Schedules by the key of their document.
    schedules: BTreeMap<String, KnownSchedule>,
    /// Time of the last poll of this process, by the store's clock.
    polled_at: Option<Timestamp>,
    /// Schedules whose due ticks the last poll did not process, with the time of the last poll that did.
    behind: BTreeMap<String, Option<Timestamp>>,
    /// Document of the schedule that failed last: the next poll begins behind it.
    last_failed: Option<String>,
}

/// Schedule that an earlier poll has read, so that it is not parsed at each poll.
struct KnownSchedule {
    version: u64,
    /// Text of the document. A store that was restored from a backup may give the same version to
    /// another text.
    body: String,
    schedule: Schedule,
    /// Next tick; `None` if it was not searched for, or if there is none.
    next: Option<Timestamp>,
    /// Whether all ticks before `next` have been processed.
    is_current: bool,
}

impl KnownSchedule {
    fn read(doc: Document) -> Option<Self> {
        let schedule = read(&doc)?;
        Some(Self { version: doc.version, body: doc.body, schedule, next: None, is_current: false })
    }

    fn is_from(&self, doc: &Document) -> bool {
        self.version == doc.version && self.body == doc.body
    }

    fn is_due(&self, now: Timestamp) -> bool {
        let has_tick = !self.is_current || self.next.is_some_and(|next| next <= now);
        has_tick && !self.schedule.paused
    }
}

/// Adds the tasks of all due ticks and returns the time until the next tick.
async fn tick(inner: &Inner, known: &mut KnownTicks) -> Result<Option<Duration>> {
    if inner.store.documents().is_none() {
        return Ok(None);
    }
    known.schedules = load_all(inner, std::mem::take(&mut known.schedules)).await?;
    if known.schedules.is_empty() {
        // Every tick of a schedule that is added from now on counts as awaited.
        known.polled_at.get_or_insert_default();
        return Ok(None);
    }
    let now = inner.tasks()?.now().await?;
    let due = known.schedules.iter().filter(|(_, known)| known.is_due(now));
    let mut due: Vec<String> = due.map(|(key, _)| key.clone()).collect();
    if let Some(last) = &known.last_failed {
        let behind = due.partition_point(|key| key <= last);
        due.rotate_left(behind);
    }
    let (mut failure, mut in_a_row, mut behind) = (None, 0, BTreeMap::new());
    for key in due {
        let polled_at = known.behind.get(&key).copied().unwrap_or(known.polled_at);
        if in_a_row == MAX_FAILURES {
            behind.insert(key, polled_at);
            continue;
        }
        let Some(known_schedule) = known.schedules.get_mut(&key) else { continue };
        match tick_one(inner, known_schedule, (now, polled_at)).await {
            Ok(()) => {
                known_schedule.next = known_schedule.schedule.next(now);
                in_a_row = 0;
            }
            // This process may not write schedules: the others would fail too.
            Err(error) if error.is_not_permitted() => return Err(error),
            // Another transaction may hold the lock of this schedule's tasks, or the store is unavailable.
            Err(error) if error.is_retryable() => {
                known.last_failed = Some(key.clone());
                behind.insert(key, polled_at);
                failure.get_or_insert(error);
                in_a_row += 1;
            }
            Err(error) => {
                let name = &known_schedule.schedule.name;
                tracing::error!(schedule = %name, %error, "failed to add the tasks of a schedule; other schedules are not affected");
                known_schedule.next = None;
            }
        }
    }
    (known.polled_at, known.behind) = (Some(now), behind);
    if let Some(error) = failure {
        return Err(error);
    }
    let running = known.schedules.values().filter(|known| !known.schedule.paused);
    Ok(running.filter_map(|known| known.next).min().map(|tick| tick.since(now)))
}

/// Adds the tasks of the due ticks of one schedule, unless another process has changed the schedule.
async fn tick_one(
    inner: &Inner,
    known: &mut KnownSchedule,
    (now, polled_at): (Timestamp, Option<Timestamp>),
) -> Result<()> {
    known.is_current = false;
    let schedule = &known.schedule;
    let (ticks, upto) = schedule.due(now, polled_at);
    if upto <= schedule.since {
        known.is_current = true;
        return Ok(());
    }
    let new = ticks.iter().map(|tick| schedule.task(*tick, TaskId::from_uuid(new_id())));
    let new = new.collect::<std::result::Result<Vec<_>, _>>()?;
    // Another process may already have added them, possibly with an earlier payload. Duplicates are
    // ignored by key.
    for batch in new.chunks(batch_size(&schedule.payload)) {
        inner.tasks()?.enqueue(batch).await?;
    }
    let done = Schedule { since: upto, ..schedule.clone() };
    let document = new_document(Some(&done));
    let body = document.body.clone();
    if let PutIf::Written(version) =
        docs(inner)?.put_if(&key(&done.name), Some(known.version), document).await?
    {
        *known = KnownSchedule { version, body, schedule: done, next: None, is_current: true };
    }
    Ok(())
}

/// Returns the number of tasks with this payload that are added in one call: at most 100, and at
/// most about one mebibyte.
fn batch_size(payload: &Payload) -> usize {
    ((1 << 20) / (payload.as_str().len() + 100)).clamp(1, 100)
}

/// Returns all schedules. A schedule whose document has the version of an earlier poll is not
/// parsed again.
async fn load_all(
    inner: &Inner,
    mut earlier: BTreeMap<String, KnownSchedule>,
) -> Result<BTreeMap<String, KnownSchedule>> {
    let docs = docs(inner)?;
    let (mut found, mut after) = (BTreeMap::new(), None);
    loop {
        let page = docs.list(PREFIX, after, 0).await?;
        for (key, doc) in page.items {
            let known = earlier.remove(&key).filter(|known| known.is_from(&doc));
            let known = known.or_else(|| KnownSchedule::read(doc));
            found.extend(known.map(|known| (key, known)));
        }
        after = page.next;
        if after.is_none() {
            return Ok(found);
        }
    }
}

/// Returns the schedule in a document; `None` if the schedule was removed, or was written by a
/// later version in a format that this version cannot read.
fn read(doc: &Document) -> Option<Schedule> {
    if doc.body.is_empty() {
        return None;
    }
    let read = serde_json::from_str(&doc.body);
    read.inspect_err(|error| tracing::error!(%error, "failed to read a schedule; it adds no tasks")).ok()
}

fn new_document(schedule: Option<&Schedule>) -> NewDocument {
    let body =
        schedule.map(|schedule| serde_json::to_string(schedule).expect("a schedule serializes to JSON"));
    let keep = if body.is_none() { Some(TOMBSTONE_TTL) } else { None };
    NewDocument { body: body.unwrap_or_default(), annotations: Vec::new(), keep }
}

fn key(name: &ScheduleName) -> String {
    format!("{PREFIX}{name}")
}

fn docs(inner: &Inner) -> Result<&dyn DocumentStore> {
    inner.tasks()?;
    inner.store.documents().ok_or_else(|| {
        let message = format!("there are no schedules on {}", inner.store.url());
        Error::store(
            StoreErrorKind::NotSupported,
            message,
            "use sqlite:, postgres:// or redis:// for schedules",
        )
    })
}

fn contended(name: &ScheduleName) -> Error {
    let message = format!("schedule '{name}' was not changed: other callers kept changing it");
    Error::store(StoreErrorKind::Unavailable, message, "try again")
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;
    use crate::testing::FaultyStore;

    /// Otherwise a process that has just started would not count the ticks of the other schedule as awaited.
    #[tokio::test]
    async fn a_schedule_that_fails_is_behind_and_the_others_are_polled() {
        let store = FaultyStore::new(Arc::new(MemoryStore::new()));
        let inner = Inner::new(store.clone()).unwrap();
        store.lose_enqueues_to(QueueName::new("blocked").unwrap());
        let leasehold = crate::Leasehold::with_store(store).unwrap();
        for queue in ["blocked", "jobs"] {
            leasehold.schedule_to(queue, "* * * * * *", queue, Payload::default()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let mut known = KnownTicks::default();
        assert!(tick(&inner, &mut known).await.unwrap_err().is_retryable());
        assert!(known.polled_at.is_some());
        assert_eq!(known.behind.into_iter().collect::<Vec<_>>(), [(format!("{PREFIX}blocked"), None)]);
    }
}
