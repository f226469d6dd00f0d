//! Schedules: keeping them, and making a task of each tick.
//!
//! A schedule is a document of the store. Any worker that sees a tick adds its task, whose key names the tick: however
//! many see it, it is added once. Only then is the tick noted as dealt with, so that one is lost to no crash.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::leasehold::Inner;
use super::tasks::{Work, new_task};
use crate::error::{Error, Result, Trouble};
use crate::model::{
    CronText, LockName, Missed, Payload, Priority, QueueName, Retries, Schedule, ScheduleName, TaskId,
    Timestamp, Ttl, Zone,
};
use crate::store::clock::new_id;
use crate::store::{Doc, DocStore, Draft, PutIf};

const PREFIX: &str = "schedule/";
/// How long the place of a schedule that was removed is kept, so that its version is not used again.
const REMOVED: Ttl = Ttl::from_secs(24 * 3600);
/// So often a change that somebody else was faster with is tried again.
const TRIES: u32 = 10;

/// The schedules of a store.
#[derive(Clone)]
pub struct Schedules {
    inner: Arc<Inner>,
}

impl Schedules {
    pub(super) fn new(inner: Arc<Inner>) -> Result<Self> {
        docs(&inner)?;
        Ok(Self { inner })
    }

    /// All of them, by name.
    pub async fn list(&self) -> Result<Vec<Schedule>> {
        Ok(stored(&self.inner).await?.into_iter().map(|(_, schedule)| schedule).collect())
    }

    /// One of them.
    pub async fn get(&self, name: &ScheduleName) -> Result<Schedule> {
        let doc = docs(&self.inner)?.get(&key(name)).await?;
        doc.and_then(|doc| read(&doc)).ok_or_else(|| Error::UnknownSchedule(name.clone()))
    }

    /// Makes tasks of all ticks that are due now, as every worker does by itself from time to time. For those who want to know
    /// that it is done, also for ticks at which no worker was there.
    pub async fn tick(&self) -> Result<()> {
        tick(&self.inner, &mut KnownTicks::default()).await.map(drop)
    }

    /// Removes one. Tasks that it has made stay.
    pub async fn remove(&self, name: &ScheduleName) -> Result<()> {
        self.change(name, |_| None).await.map(|_| ())
    }

    /// Lets no tick count until it is resumed. Those in between are not made up for.
    pub async fn pause(&self, name: &ScheduleName) -> Result<Schedule> {
        self.change(name, |schedule| Some(Schedule { paused: true, ..schedule })).await
    }

    /// Lets ticks count again, from now on.
    pub async fn resume(&self, name: &ScheduleName) -> Result<Schedule> {
        let now = self.inner.tasks()?.now().await?;
        let resume = |schedule: Schedule| {
            let since = if schedule.paused { schedule.since.max(now) } else { schedule.since };
            Some(Schedule { paused: false, since, ..schedule })
        };
        self.change(name, resume).await
    }

    async fn change(
        &self,
        name: &ScheduleName,
        change: impl Fn(Schedule) -> Option<Schedule>,
    ) -> Result<Schedule> {
        let docs = docs(&self.inner)?;
        let mut found = docs.get(&key(name)).await?;
        for _ in 0..TRIES {
            let current = found.as_ref().and_then(|doc| read(doc).map(|schedule| (doc.version, schedule)));
            let (version, schedule) = current.ok_or_else(|| Error::UnknownSchedule(name.clone()))?;
            let changed = change(schedule.clone());
            match docs.put_if(&key(name), Some(version), draft(changed.as_ref())).await? {
                PutIf::Written(_) => return Ok(changed.unwrap_or(schedule)),
                PutIf::Clash(doc) => found = doc,
            }
        }
        Err(busy(name))
    }
}

/// Sets a schedule when awaited: a new one, or another one in the place of one with the same name.
#[must_use = "nothing is set until it is awaited"]
pub struct ScheduleBuilder {
    inner: Arc<Inner>,
    schedule: Result<Schedule>,
}

impl ScheduleBuilder {
    pub(super) fn typed<W: Work>(inner: Arc<Inner>, name: &str, cron: &str, work: &W) -> Self {
        let schedule = new_task(work).and_then(|new| {
            let plain = plain(name, cron, new.queue, new.payload)?;
            Ok(Schedule { retries: new.retries, ..plain })
        });
        Self { inner, schedule }
    }

    pub(super) fn plain<Q>(inner: Arc<Inner>, name: &str, cron: &str, queue: Q, payload: Payload) -> Self
    where
        Q: TryInto<QueueName>,
        Q::Error: Into<Error>,
    {
        let queue = queue.try_into().map_err(Into::into);
        Self { inner, schedule: queue.and_then(|queue| plain(name, cron, queue, payload)) }
    }

    /// The time zone of the cron expression, such as `Europe/Berlin`; UTC if not said.
    pub fn zone(self, zone: &str) -> Self {
        self.with(Zone::new(zone), |schedule, zone| schedule.zone = zone)
    }

    /// What to do about ticks at which nobody was there; a task for each if not said.
    pub fn missed(self, missed: Missed) -> Self {
        self.with(Ok::<_, Error>(missed), |schedule, missed| schedule.missed = missed)
    }

    /// The weight of its tasks.
    pub fn priority(self, weight: i32) -> Self {
        self.with(Priority::new(weight), |schedule, priority| schedule.priority = priority)
    }

    /// Its tasks run only while their worker holds this lock.
    pub fn lock<N>(self, lock: N) -> Self
    where
        N: TryInto<LockName>,
        N::Error: Into<Error>,
    {
        self.with(lock.try_into(), |schedule, lock| schedule.lock = Some(lock))
    }

    /// How often each of its tasks is tried.
    pub fn retries(self, retries: Retries) -> Self {
        self.with(retries.check(), |schedule, retries| schedule.retries = retries)
    }

    /// Runs each task up to this long after its tick, so that schedules with the same ticks do not run together. How long
    /// after depends on the name and the tick, and is the same for every process. A day at most; no jitter by default.
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

fn plain(name: &str, cron: &str, queue: QueueName, payload: Payload) -> Result<Schedule> {
    let (name, cron) = (ScheduleName::new(name)?, CronText::new(cron)?);
    Ok(Schedule::new(name, cron, queue, payload, Timestamp::default())?)
}

/// Sets a schedule. If its times are as before, so is what has been dealt with; else it begins now.
async fn set(inner: &Inner, schedule: Schedule) -> Result<Schedule> {
    let docs = docs(inner)?;
    let now = inner.tasks()?.now().await?;
    let key = key(&schedule.name);
    let mut found = docs.get(&key).await?;
    for _ in 0..TRIES {
        let earlier = found.as_ref().and_then(read);
        let same = earlier.filter(|earlier| earlier.cron == schedule.cron && earlier.zone == schedule.zone);
        let (since, paused) = same.map_or((now, false), |earlier| (earlier.since, earlier.paused));
        let new = Schedule { paused, since, ..schedule.clone() };
        let version = found.as_ref().map(|doc| doc.version);
        match docs.put_if(&key, version, draft(Some(&new))).await? {
            PutIf::Written(_) => return Ok(new),
            PutIf::Clash(doc) => found = doc,
        }
    }
    Err(busy(&schedule.name))
}

/// What is known of schedules from an earlier look at them.
#[derive(Default)]
pub(super) struct KnownTicks {
    /// The version of each schedule and its next tick, so that the next tick is not searched for each time.
    next: BTreeMap<ScheduleName, (u64, Option<Timestamp>)>,
    /// When this process looked at the schedules last, by the store's clock.
    looked_at: Option<Timestamp>,
}

/// Makes tasks of all ticks that are due, and says how long it is until the next one.
pub(super) async fn tick(inner: &Inner, known: &mut KnownTicks) -> Result<Option<Duration>> {
    if inner.store.docs().is_none() {
        return Ok(None);
    }
    let schedules = stored(inner).await?;
    if schedules.is_empty() {
        // Every tick of a schedule that is set from now on is awaited.
        known.looked_at.get_or_insert_default();
        return Ok(None);
    }
    let now = inner.tasks()?.now().await?;
    let earlier = std::mem::take(&mut known.next);
    let mut soonest: Option<Timestamp> = None;
    for (version, schedule) in schedules.into_iter().filter(|(_, schedule)| !schedule.paused) {
        let entry = earlier.get(&schedule.name).copied();
        let entry = entry.filter(|(of, next)| *of == version && next.is_none_or(|next| next > now));
        let next = match entry {
            Some((_, next)) => {
                known.next.insert(schedule.name, (version, next));
                next
            }
            None => match tick_one(inner, version, &schedule, (now, known.looked_at)).await {
                Ok(written) => {
                    let next = schedule.next(now);
                    if let Some(version) = written {
                        known.next.insert(schedule.name, (version, next));
                    }
                    next
                }
                // The store is away, or this process may not write schedules: for the others, too.
                Err(error) if error.is_retryable() || error.is_not_permitted() => return Err(error),
                Err(error) => {
                    tracing::error!(schedule = %schedule.name, %error, "a schedule cannot tick; the others go on");
                    None
                }
            },
        };
        soonest = soonest.into_iter().chain(next).min();
    }
    known.looked_at = Some(now);
    Ok(soonest.map(|tick| tick.since(now)))
}

/// Makes tasks of what is due of one schedule, and returns its version after that; none if somebody else has changed it.
async fn tick_one(
    inner: &Inner,
    version: u64,
    schedule: &Schedule,
    (now, looked_at): (Timestamp, Option<Timestamp>),
) -> Result<Option<u64>> {
    let (ticks, upto) = schedule.due(now, looked_at);
    if upto <= schedule.since {
        return Ok(Some(version));
    }
    let new = ticks.iter().map(|tick| schedule.task(*tick, TaskId::from_uuid(new_id())));
    let new = new.collect::<std::result::Result<Vec<_>, _>>()?;
    // Somebody else may have added them already, also with a payload from before a change: once is enough.
    for batch in new.chunks(batch_of(&schedule.payload)) {
        inner.tasks()?.enqueue(batch).await?;
    }
    let done = Schedule { since: upto, ..schedule.clone() };
    let written = docs(inner)?.put_if(&key(&schedule.name), Some(version), draft(Some(&done))).await?;
    Ok(match written {
        PutIf::Written(version) => Some(version),
        PutIf::Clash(_) => None,
    })
}

/// How many tasks with this payload are added in one call: not more than a hundred, and not more than about a mebibyte.
fn batch_of(payload: &Payload) -> usize {
    ((1 << 20) / (payload.as_str().len() + 100)).clamp(1, 100)
}

async fn stored(inner: &Inner) -> Result<Vec<(u64, Schedule)>> {
    let docs = docs(inner)?;
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = docs.list(PREFIX, after, 0).await?;
        found.extend(
            page.items.iter().filter_map(|(_, doc)| read(doc).map(|schedule| (doc.version, schedule))),
        );
        after = page.next;
        if after.is_none() {
            return Ok(found);
        }
    }
}

/// The schedule in a document; none if it was removed, or if a later version wrote what this one cannot read.
fn read(doc: &Doc) -> Option<Schedule> {
    if doc.body.is_empty() {
        return None;
    }
    let read = serde_json::from_str(&doc.body);
    read.inspect_err(|error| tracing::error!(%error, "a schedule cannot be read; it does not tick")).ok()
}

fn draft(schedule: Option<&Schedule>) -> Draft {
    let body = schedule.map(|schedule| serde_json::to_string(schedule).expect("a schedule can be written"));
    let keep = if body.is_none() { Some(REMOVED) } else { None };
    Draft { body: body.unwrap_or_default(), facts: Vec::new(), keep }
}

fn key(name: &ScheduleName) -> String {
    format!("{PREFIX}{name}")
}

fn docs(inner: &Inner) -> Result<&dyn DocStore> {
    inner.tasks()?;
    inner.store.docs().ok_or_else(|| {
        let message = format!("there are no schedules on {}", inner.store.url());
        Error::store(Trouble::NotSupported, message, "use sqlite:, postgres:// or redis:// for schedules")
    })
}

fn busy(name: &ScheduleName) -> Error {
    let message = format!("schedule '{name}' is being changed by others all the time");
    Error::store(Trouble::Unavailable, message, "try again")
}
