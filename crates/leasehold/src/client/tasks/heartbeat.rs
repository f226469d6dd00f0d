//! Heartbeats: one call for all leases of a worker, on a thread that its handlers cannot starve.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::context::TaskChannels;
use super::held_leases::{CancelReason, HeldLeases};
use crate::client::context::Inner;
use crate::error::Result;
use crate::model::{AttemptResult, HeartbeatResult, HeldTask, QueueName, Task, TaskState, Ttl, WorkerInfo};
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
    // Time of the next check for tasks that were started without the store knowing it.
    let mut next_check = due;
    loop {
        let now = BootInstant::now();
        let all = now >= due;
        let held = if all {
            leases.of_ttl(ttl)
        } else if now >= next_check {
            leases.unreported_starts(ttl, now)
        } else {
            Vec::new()
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
                Ok(()) => {
                    inner.availability.record_success();
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
            () = leases.progress_changed.notified() => due = due.min(last.plus(progress_interval)),
            Ok(()) = changes.changed() => due = due.min(last.plus(NOTIFIED_INTERVAL)),
        }
    }
}

async fn send_heartbeat(
    inner: &Inner,
    leases: &HeldLeases,
    worker: &WorkerDescription,
    (held, ttl): (&[HeldTask], Ttl),
) -> Result<()> {
    let mut remaining = held;
    loop {
        let (batch, later) = remaining.split_at(remaining.len().min(BATCH));
        let sent = BootInstant::now();
        let info = worker.now();
        let results = inner.tasks()?.heartbeat(&info, batch, ttl).await?;
        worker.reported_busy.store(info.busy > 0, Ordering::Relaxed);
        worker.reported_draining.store(info.draining, Ordering::Relaxed);
        leases.apply_heartbeats(batch, &results, sent);
        if later.is_empty() {
            return Ok(());
        }
        remaining = later;
    }
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
    let tasks = inner.tasks()?;
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
        let results = tasks.heartbeat(&worker.now(), &held, group.ttl).await?;
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
    task: &Task,
    ttl: Ttl,
    channels: &TaskChannels,
) -> Option<AttemptResult> {
    let (terms, leases) = (&channels.terms, &channels.leases);
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
                is_known = true;
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
