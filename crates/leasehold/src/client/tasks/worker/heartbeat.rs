//! Heartbeats: one call for all leases of a worker, or one for each lease if the engine needs that, on a
//! thread that its handlers cannot starve.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::external_worker::busy;
use super::held_leases::{CancelReason, HeldLeases, LeaseTerms};
use crate::client::context::Inner;
use crate::error::{Error, Result};
use crate::model::{
    AttemptResult, HeartbeatResult, HeldTask, QueueName, Task, TaskId, TaskState, Ttl, WorkerInfo,
};
use crate::store::{BootInstant, ListTasks};

/// Maximum length of one sleep while the worker holds a lease: timers stand still while the machine sleeps, the
/// boot clock does not.
const MAX_SLEEP: Duration = Duration::from_millis(250);
const BATCH: usize = 1000;
/// Minimum interval between heartbeats that only report progress; the engine's poll interval
/// applies if it is longer.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum interval between heartbeats caused by notifications, which any process may send.
const NOTIFIED_INTERVAL: Duration = Duration::from_millis(20);

/// Number of refused calls, while none is accepted, from which on the store is taken to refuse all tasks, or all
/// tasks of a queue.
const MAX_REFUSALS: usize = 16;

const START_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Queues with the same lease ttl: tasks of all of them are leased in one call and renewed by one heartbeat.
#[derive(Clone)]
pub(super) struct QueueGroup {
    pub(super) ttl: Ttl,
    pub(super) queues: Vec<QueueName>,
}

/// Description of a worker in its heartbeats, with the parts that change.
pub(super) struct WorkerDescription {
    pub(super) info: WorkerInfo,
    pub(super) busy: AtomicU32,
    pub(super) draining: AtomicBool,
    /// Whether the last heartbeat reported that the worker is busy, and that it is draining.
    reported_busy: AtomicBool,
    reported_draining: AtomicBool,
}

impl WorkerDescription {
    /// Creates the description of a worker that runs no task yet.
    pub(super) fn new(info: WorkerInfo) -> Self {
        let (reported_busy, reported_draining) = Default::default();
        Self { info, busy: 0.into(), draining: false.into(), reported_busy, reported_draining }
    }

    /// Returns whether the last heartbeat is out of date: it reported an idle worker that is busy
    /// now, or one that takes tasks and is draining now. The number of running tasks does not
    /// count, because it may change all the time.
    fn has_changed(&self) -> bool {
        let reported = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        reported(&self.reported_busy) != (self.busy.load(Ordering::Relaxed) > 0)
            || reported(&self.reported_draining) != self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn now(&self) -> WorkerInfo {
        WorkerInfo {
            busy: self.busy.load(Ordering::Relaxed),
            draining: self.draining.load(Ordering::Relaxed),
            ..self.info.clone()
        }
    }
}

/// Sends heartbeats for all leases of this ttl, until the future is dropped. A lease that could not
/// be renewed in time is given up here, independently of the state of the store.
pub(super) async fn run_heartbeats(
    inner: Arc<Inner>,
    leases: Arc<HeldLeases>,
    worker: Arc<WorkerDescription>,
    ttl: Ttl,
) {
    let interval = ttl.as_duration() / 3;
    let progress_interval = PROGRESS_INTERVAL.max(inner.store.capabilities().poll).min(interval);
    let mut due = BootInstant::now();
    let mut last = due;
    let mut changes = leases.changed.subscribe();
    let mut first_leases = leases.has_first.subscribe();
    let mut progress = leases.progress_changed.subscribe();
    // Time of the next check for tasks that were started without the store knowing it, and for those whose
    // own heartbeat failed.
    let (mut next_check, mut failed) = (due, Vec::<TaskId>::new());
    loop {
        let now = BootInstant::now();
        let all = now >= due;
        let held = if all {
            leases.of_ttl(ttl)
        } else if now < next_check {
            Vec::new()
        } else if failed.is_empty() {
            leases.unreported_starts(ttl, now)
        } else {
            let mut held = leases.of_ttl(ttl);
            held.retain(|held| failed.contains(&held.id));
            held
        };
        if all || !held.is_empty() {
            let mut call = std::pin::pin!(send_heartbeat(&inner, &leases, &worker, (&held, ttl)));
            let sent = loop {
                tokio::select! {
                    biased;
                    sent = &mut call => break sent,
                    () = tokio::time::sleep(interval.min(MAX_SLEEP)) => expire(&leases),
                }
            };
            match sent {
                Ok(failed_now) => {
                    failed = failed_now;
                    if failed.is_empty() {
                        inner.availability.record_success();
                    } else {
                        next_check = BootInstant::now().plus(interval / 5);
                    }
                    if all {
                        (last, due) = (now, now.plus(interval));
                    }
                }
                Err(error) => {
                    inner.availability.record_failure("a heartbeat failed; retrying", &error);
                    let retry_at = BootInstant::now().plus((interval / 5).min(PROGRESS_INTERVAL));
                    next_check = retry_at;
                    if all {
                        (last, due) = (now, retry_at);
                    }
                }
            }
        }
        expire(&leases);
        if worker.has_changed() {
            due = due.min(last.plus(progress_interval));
        }
        let max_sleep = if leases.is_empty() { interval } else { interval.min(MAX_SLEEP) };
        tokio::select! {
            biased;
            () = tokio::time::sleep(due.after(BootInstant::now()).min(max_sleep)) => {}
            Ok(()) = first_leases.changed() => {}
            Ok(()) = progress.changed() => due = due.min(last.plus(progress_interval)),
            Ok(()) = changes.changed() => due = due.min(last.plus(NOTIFIED_INTERVAL)),
        }
    }
}

/// Sends a heartbeat for these tasks. With an engine that needs separate requests for each task, each task
/// has a heartbeat of its own. A batch that the store refuses is sent again by queues, and then in halves: the
/// worker's token may have lost one of its queues, and the store may refuse a single task. Such an error
/// concerns these tasks alone, unless no heartbeat succeeds. Returns the tasks whose heartbeat may succeed in a
/// retry.
async fn send_heartbeat(
    inner: &Inner,
    leases: &HeldLeases,
    worker: &WorkerDescription,
    (held, ttl): (&[HeldTask], Ttl),
) -> Result<Vec<TaskId>> {
    let is_single = inner.capabilities.tasks.single_heartbeats;
    let max_batch = if is_single { 1 } else { BATCH };
    let (refused, failed) = (Refused::default(), Vec::new());
    let mut heartbeat = Heartbeat { inner, leases, worker, ttl, refused, failed };
    // Without tasks, it reports the worker.
    let batches: Vec<&[HeldTask]> =
        if held.is_empty() { vec![held] } else { held.chunks(max_batch).collect() };
    for batch in batches {
        match heartbeat.send(batch).await {
            Ok(()) => {}
            Err(error) if is_single => {
                if error.is_retryable() {
                    heartbeat.failed.extend(batch.iter().map(|held| held.id));
                }
                heartbeat.refused.last_error = Some(error);
            }
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                heartbeat.refused.add(error);
                for refused in heartbeat.send_by_queue(batch).await? {
                    heartbeat.send_in_parts(&refused).await?;
                }
            }
        }
    }
    let Refused { accepted, last_error, .. } = heartbeat.refused;
    match last_error {
        Some(error) if !is_single && !accepted => return Err(error),
        Some(error) => inner.availability.record_failure("the heartbeats of some tasks failed", &error),
        None => {}
    }
    Ok(heartbeat.failed)
}

/// Calls of one heartbeat.
struct Heartbeat<'a> {
    inner: &'a Inner,
    leases: &'a HeldLeases,
    worker: &'a WorkerDescription,
    ttl: Ttl,
    refused: Refused,
    /// Tasks whose heartbeat may succeed in a retry.
    failed: Vec<TaskId>,
}

/// Answers to the calls of one heartbeat.
#[derive(Default)]
struct Refused {
    /// Number of refused calls.
    calls: usize,
    /// Whether the store has accepted a call.
    accepted: bool,
    last_error: Option<Error>,
}

impl Refused {
    fn add(&mut self, error: Error) {
        self.calls += 1;
        self.last_error = Some(error);
    }

    /// Whether the store is taken to refuse all calls.
    const fn are_all(&self) -> bool {
        !self.accepted && self.calls >= MAX_REFUSALS
    }
}

impl Heartbeat<'_> {
    async fn send(&mut self, batch: &[HeldTask]) -> Result<()> {
        let (sent, info) = (BootInstant::now(), self.worker.now());
        let results = self.inner.tasks()?.heartbeat(&info, batch, self.ttl).await?;
        self.worker.reported_busy.store(info.busy > 0, Ordering::Relaxed);
        self.worker.reported_draining.store(info.draining, Ordering::Relaxed);
        self.leases.apply_heartbeats(batch, &results, sent);
        let busy = batch.iter().zip(&results).filter(|(_, result)| **result == HeartbeatResult::Busy);
        self.failed.extend(busy.map(|(held, _)| held.id));
        self.refused.accepted = true;
        Ok(())
    }

    /// Sends a refused batch again, the tasks of each queue in a call of their own, and returns those that are
    /// refused.
    async fn send_by_queue(&mut self, batch: &[HeldTask]) -> Result<Vec<Vec<HeldTask>>> {
        let by_queue = self.leases.by_queue(batch);
        if by_queue.len() == 1 {
            return Ok(by_queue);
        }
        let mut refused = Vec::new();
        for of_queue in by_queue {
            match self.send(&of_queue).await {
                Ok(()) => {}
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => {
                    self.refused.add(error);
                    refused.push(of_queue);
                }
            }
        }
        Ok(refused)
    }

    /// Sends the tasks of one queue, which the store has refused together, in halves, larger parts first. Stops
    /// when the store seems to refuse each of them.
    async fn send_in_parts(&mut self, tasks: &[HeldTask]) -> Result<()> {
        let (mut parts, mut of_queue) = (halves(tasks).collect::<VecDeque<_>>(), Refused::default());
        while let Some(part) = parts.pop_front() {
            if self.refused.are_all() || of_queue.are_all() {
                break;
            }
            match self.send(part).await {
                Ok(()) => of_queue.accepted = true,
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => {
                    of_queue.calls += 1;
                    self.refused.add(error);
                    parts.extend(halves(part));
                }
            }
        }
        Ok(())
    }
}

/// Returns the halves of a batch; nothing for a single task.
fn halves(batch: &[HeldTask]) -> impl Iterator<Item = &[HeldTask]> {
    let (one, other) = batch.split_at(batch.len() / 2);
    [one, other].into_iter().filter(|_| batch.len() > 1)
}

fn expire(leases: &HeldLeases) {
    let lost = leases.expire(BootInstant::now());
    if lost > 0 {
        tracing::warn!(tasks = lost, "leases were not renewed in time; their handlers are cancelled");
    }
}

/// Returns the leases that the store has for this worker and that the worker does not know, and the
/// time from which they are valid. A lease cannot be attributed to a request, because a lost
/// request may have reached the store late; therefore a heartbeat is sent for each lease first.
pub(super) async fn unconfirmed_leases(
    inner: &Inner,
    leases: &HeldLeases,
    worker: &WorkerDescription,
    groups: &[QueueGroup],
) -> Result<(BootInstant, Vec<Task>)> {
    let query = ListTasks {
        state: Some(TaskState::Running),
        worker: Some(worker.info.id),
        limit: 1000,
        brief: true,
        ..ListTasks::default()
    };
    let listed = list_all(inner, query).await?;
    let (tasks, is_single) = (inner.tasks()?, inner.capabilities.tasks.single_heartbeats);
    let (sent, mut found) = (BootInstant::now(), Vec::new());
    for group in groups {
        let is_unknown =
            |task: &&Task| group.queues.contains(&task.queue) && !leases.is_known(task.id, task.token);
        let unknown: Vec<&Task> = listed.iter().filter(is_unknown).collect();
        if unknown.is_empty() {
            continue;
        }
        let held = |task: &&Task| HeldTask { begun: false, ..HeldTask::new(task.id, task.token) };
        let held: Vec<HeldTask> = unknown.iter().map(held).collect();
        let mut results = Vec::with_capacity(held.len());
        for batch in held.chunks(if is_single { 1 } else { BATCH }) {
            match tasks.heartbeat(&worker.now(), batch, group.ttl).await {
                Ok(answers) => results.extend(answers),
                // The worker does not start this task, and does not wait for it either.
                Err(error) if is_single && !error.is_retryable() => {
                    tracing::warn!(%error, task = %batch[0].id, "the lease of a task cannot be confirmed");
                    results.push(HeartbeatResult::Lost);
                }
                Err(error) => return Err(error),
            }
        }
        if results.contains(&HeartbeatResult::Busy) {
            return Err(busy("heartbeats"));
        }
        for (task, _) in unknown
            .into_iter()
            .zip(results)
            .filter(|(_, result)| matches!(result, HeartbeatResult::Extended(_)))
        {
            // One call per task, with its payload: each answer fits into the timeout of a call,
            // however many tasks there are.
            match tasks.get(task.id).await? {
                Some(full) if (full.state, full.token) == (TaskState::Running, task.token) => {
                    found.push(full);
                }
                _ => {}
            }
        }
    }
    Ok((sent, found))
}

/// Reports the start of a task, and waits until the store knows it. Returns the result of the
/// attempt if the task must not start after all.
pub(super) async fn report_start(
    inner: &Inner,
    worker: &WorkerDescription,
    (task, ttl): (&Task, Ttl),
    (leases, terms): (&HeldLeases, &watch::Receiver<LeaseTerms>),
) -> Option<AttemptResult> {
    let mut is_known = false;
    loop {
        match terms.borrow().cancelled {
            // The answer may have arrived after the end of the lease.
            None if is_known && leases.has_ended(task.id, task.token, BootInstant::now()) => {
                return Some(AttemptResult::Return);
            }
            None if is_known => return None,
            None => {}
            Some(CancelReason::Requested) => return Some(AttemptResult::Abort(None)),
            Some(CancelReason::Shutdown | CancelReason::Timeout | CancelReason::LeaseLost) => {
                return Some(AttemptResult::Return);
            }
        }
        let (held, sent) = ([HeldTask::new(task.id, task.token)], BootInstant::now());
        let reported = match inner.tasks() {
            Ok(tasks) => tasks.heartbeat(&worker.now(), &held, ttl).await,
            Err(error) => Err(error),
        };
        match reported {
            Ok(results) => {
                leases.apply_heartbeats(&held, &results, sent);
                is_known = !results.contains(&HeartbeatResult::Busy);
                if !is_known {
                    tokio::time::sleep(START_RETRY_DELAY).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, task = %task.id, "failed to report the start of a task; retrying");
                tokio::time::sleep(START_RETRY_DELAY).await;
            }
        }
    }
}

async fn list_all(inner: &Inner, mut query: ListTasks) -> Result<Vec<Task>> {
    let mut found = Vec::new();
    loop {
        let page = inner.tasks()?.list(&query).await?;
        found.extend(page.items);
        query.after = page.next;
        if query.after.is_none() {
            return Ok(found);
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::model::LeaseTasks;
    use crate::store::memory::MemoryStore;
    use crate::testing::task_fixture::{info, queue, task, worker};
    use crate::testing::{Fault, FaultyStore};

    const TTL: Ttl = Ttl::from_secs(60);

    /// The store refuses a call that contains one of the tasks.
    #[tokio::test]
    async fn a_refused_task_does_not_end_the_leases_of_the_others() {
        let store = FaultyStore::new(Arc::new(MemoryStore::new()));
        let inner = Inner::new(store.clone()).unwrap();
        let tasks = inner.tasks().unwrap();
        tasks.enqueue(&(1..=20).map(task).collect::<Vec<_>>()).await.unwrap();
        let request = LeaseTasks::new(worker(1), vec![queue("q")], 20, TTL);
        let granted = tasks.lease(&request).await.unwrap().tasks;
        let (leases, worker) = (HeldLeases::default(), WorkerDescription::new(info(1)));
        let long_ago = BootInstant::from_micros(1);
        let terms: Vec<_> = granted.iter().map(|task| leases.insert(task, TTL, long_ago)).collect();
        store.refuse_heartbeats_of([granted[7].id]);
        let held = leases.of_ttl(TTL);
        let failed = send_heartbeat(&inner, &leases, &worker, (&held, TTL)).await.unwrap();
        assert!(failed.is_empty());
        let renewed = terms.iter().filter(|terms| terms.borrow().valid_until > BootInstant::now()).count();
        assert_eq!((renewed, terms[7].borrow().valid_until > BootInstant::now()), (19, false));
        store.refuse_heartbeats_of(granted.iter().map(|task| task.id));
        let error = send_heartbeat(&inner, &leases, &worker, (&held, TTL)).await.unwrap_err();
        assert!(error.is_not_permitted(), "it is repeated soon");
    }

    /// The worker's token has lost a queue with many tasks.
    #[tokio::test]
    async fn a_refused_queue_does_not_end_the_leases_of_another_one() {
        let store = FaultyStore::new(Arc::new(MemoryStore::new()));
        let inner = Inner::new(store.clone()).unwrap();
        let tasks = inner.tasks().unwrap();
        let of_both = (1..=300).map(task).chain((301..=304).map(|number| task(number).in_queue("r")));
        tasks.enqueue(&of_both.collect::<Vec<_>>()).await.unwrap();
        let request = LeaseTasks::new(worker(1), vec![queue("q"), queue("r")], 400, TTL);
        let granted = tasks.lease(&request).await.unwrap().tasks;
        let (leases, worker) = (HeldLeases::default(), WorkerDescription::new(info(1)));
        let long_ago = BootInstant::from_micros(1);
        let terms: Vec<_> = granted.iter().map(|task| leases.insert(task, TTL, long_ago)).collect();
        store
            .refuse_heartbeats_of(granted.iter().filter(|task| task.queue == queue("q")).map(|task| task.id));
        let held = leases.of_ttl(TTL);
        let calls = store.heartbeats();
        assert!(send_heartbeat(&inner, &leases, &worker, (&held, TTL)).await.unwrap().is_empty());
        let calls = store.heartbeats() - calls;
        assert!(calls < 25, "{calls} calls");
        for (task, terms) in granted.iter().zip(&terms) {
            let is_renewed = terms.borrow().valid_until > BootInstant::now();
            assert_eq!(is_renewed, task.queue == queue("r"), "{task:?}");
        }
    }

    #[tokio::test]
    async fn a_heartbeat_of_its_own_that_fails_concerns_one_task() {
        for (fault, is_retried) in [(Fault::LoseRequest, true), (Fault::Refuse, false)] {
            let store = FaultyStore::new(Arc::new(MemoryStore::new()));
            let mut inner = Inner::new(store.clone()).unwrap();
            inner.capabilities.tasks.single_heartbeats = true;
            let tasks = inner.tasks().unwrap();
            tasks.enqueue(&[task(1), task(2), task(3)]).await.unwrap();
            let request = LeaseTasks::new(worker(1), vec![queue("q")], 3, TTL);
            let mut granted = tasks.lease(&request).await.unwrap().tasks;
            granted.sort_by_key(|task| task.id);
            let (leases, worker) = (HeldLeases::default(), WorkerDescription::new(info(1)));
            let long_ago = BootInstant::from_micros(1);
            let terms: Vec<_> = granted.iter().map(|task| leases.insert(task, TTL, long_ago)).collect();
            store.plan([Fault::None, fault]);
            let held = leases.of_ttl(TTL);
            let failed = send_heartbeat(&inner, &leases, &worker, (&held, TTL)).await.unwrap();
            assert_eq!(failed, if is_retried { vec![granted[1].id] } else { Vec::new() });
            let is_renewed = |number: usize| terms[number].borrow().valid_until > BootInstant::now();
            assert_eq!([0, 1, 2].map(is_renewed), [true, false, true]);
        }
    }
}
