//! Schedule that all workers run: set at the begin of a run, and compared at its end with the tasks
//! that it has added.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use leasehold::model::{Payload, RetryPolicy, Schedule, Task, Timestamp};
use leasehold::store::ListTasks;
use leasehold::{Leasehold, Schedules, Tasks};

use crate::Error;
use crate::history::Event;

/// Time between two attempts of a call.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Schedule with a tick in each second.
pub(crate) struct EverySecond {
    schedules: Schedules,
    tasks: Tasks,
    /// Name of the schedule and of the queue of its tasks.
    pub(crate) name: String,
    /// Time from which on its ticks count.
    since: Timestamp,
}

impl EverySecond {
    /// Sets the schedule; `None` if the engine has no schedules, or this caller may not set one.
    pub(crate) async fn start(
        leasehold: &Leasehold,
        prefix: &str,
        retries: RetryPolicy,
    ) -> Result<Option<Self>, Error> {
        let (Ok(schedules), Ok(tasks)) = (leasehold.schedules(), leasehold.tasks()) else { return Ok(None) };
        let name = format!("{prefix}-ticks");
        let schedule = leasehold.schedule_to(name.as_str(), "* * * * * *", name.as_str(), Payload::default());
        match schedule.retries(retries).await {
            Ok(schedule) => Ok(Some(Self { schedules, tasks, name, since: schedule.since })),
            Err(error) if error.is_not_permitted() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the ticks, waits until their tasks have ended, and returns the events of all ticks.
    /// Tasks that have not ended in time are among them.
    pub(crate) async fn finish(&self, until: Instant) -> Result<Vec<Event>, Error> {
        let paused = retried(until, async || self.schedules.pause(self.name.as_str()).await).await?;
        let found = loop {
            let found = retried(until, async || self.found().await).await?;
            let have_ended = found.iter().all(|task| task.state.is_terminal());
            if have_ended || Instant::now() >= until {
                break found;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        };
        let events = self.events(&paused, &found);
        retried(until, async || self.schedules.remove(self.name.as_str()).await).await?;
        Ok(events)
    }

    /// Removes the schedule, if possible: the run has failed.
    pub(crate) async fn abandon(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(2), self.schedules.remove(self.name.as_str())).await;
    }

    async fn found(&self) -> leasehold::Result<Vec<Task>> {
        let queue = self.name.as_str().try_into()?;
        let mut query = ListTasks::default().queue(Some(queue)).archived(true).brief(true).limit(1000);
        let mut found = Vec::new();
        loop {
            let page = self.tasks.list(&query).await?;
            found.extend(page.items);
            match page.next {
                Some(next) => query = query.after(Some(next)),
                None => return Ok(found),
            }
        }
    }

    fn events(&self, paused: &Schedule, found: &[Task]) -> Vec<Event> {
        // The key of a tick is that of its task.
        let tick_of = |key: &str| key.rsplit(' ').next().unwrap_or_default().to_owned();
        let mut events = Vec::new();
        let mut seen = BTreeSet::new();
        for task in found {
            let Some(key) = &task.key else { continue };
            let (schedule, tick, id) = (self.name.clone(), tick_of(key.as_str()), task.id.to_string());
            seen.insert(tick.clone());
            if !task.state.is_terminal() {
                let (task, state, token) = (id.clone(), task.state.to_string(), task.token.get());
                events.push(Event::Final { task, state, token, terminal: false });
            }
            events.push(Event::Tick { schedule, tick, task: Some(id) });
        }
        // All ticks until this time were processed before it was written.
        let running = Schedule { paused: false, ..paused.clone() };
        let seconds = paused.since.since(self.since).as_secs();
        let ticks = running.ahead(self.since, usize::try_from(seconds).unwrap_or(usize::MAX));
        for tick in ticks.into_iter().filter(|tick| *tick <= paused.since).map(|tick| tick.to_string()) {
            if !seen.contains(&tick) {
                events.push(Event::Tick { schedule: self.name.clone(), tick, task: None });
            }
        }
        events
    }
}

/// Calls again while the store cannot be reached, until this time.
async fn retried<T>(until: Instant, call: impl AsyncFn() -> leasehold::Result<T>) -> Result<T, Error> {
    loop {
        match call().await {
            Err(error) if error.is_retryable() && Instant::now() < until => {
                tokio::time::sleep(RETRY_DELAY).await;
            }
            result => return Ok(result?),
        }
    }
}
