//! Data of each page, as read from the store at one point of its time, and the state in which all requests
//! share them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use leasehold::Execution;
use leasehold::client::{AttemptOutput, EventView, LockExplanation, TaskExplanation, WorkflowStatus};
use leasehold::model::{QueueStatus, Schedule, Task, TaskReason, Timestamp, WorkerStatus};
use leasehold::store::{Capabilities, HealthCheck};
use uuid::Uuid;

use super::figures::series::Minute;
use super::live::deadlocks::{DeadlockSearch, KnownDeadlocks};
use super::live::pollers::Pollers;
use super::live::snapshots::Snapshots;
use super::view::View;
use crate::metrics::StoreCounts;

/// Data of a page.
#[derive(Debug)]
pub(crate) struct Data {
    /// Time of the store when the page was read. All times left are computed from it.
    pub(crate) now: Timestamp,
    pub(crate) content: Content,
}

/// Content of a page.
#[derive(Debug)]
pub(crate) enum Content {
    Overview(Box<OverviewContent>),
    Locks { locks: Vec<LockExplanation>, next: Option<String> },
    Lock(Box<LockContent>),
    Queues(Vec<QueueStatus>),
    Tasks(Box<TasksContent>),
    Task(Box<TaskContent>),
    Executions { executions: Vec<Execution>, next: Option<String>, workflows: Vec<WorkflowStatus> },
    Execution(Box<Execution>),
    Schedules(Vec<Schedule>),
    Workers(Vec<WorkerStatus>),
    Audit { events: Vec<EventView>, next: Option<String> },
    Health(HealthContent),
}

/// State of the whole store, and its figures of the last 24 h.
#[derive(Debug)]
pub(crate) struct OverviewContent {
    pub(crate) counts: Option<Arc<StoreCounts>>,
    /// Locks that are in use: those with the most waiters first.
    pub(crate) locks: Vec<LockExplanation>,
    pub(crate) deadlocks: KnownDeadlocks,
    /// Queues that are paused or have failed tasks.
    pub(crate) queues: Vec<QueueStatus>,
    /// Workers that missed their heartbeats.
    pub(crate) dead_workers: Vec<WorkerStatus>,
    pub(crate) figures: Vec<Minute>,
    /// Bounds of the buckets of the waits, in seconds.
    pub(crate) bounds: Vec<f64>,
}

/// A lock with its history.
#[derive(Debug)]
pub(crate) struct LockContent {
    pub(crate) explanation: LockExplanation,
    /// Deadlocks of the store, if the lock has waiters.
    pub(crate) deadlocks: KnownDeadlocks,
    /// One page of events, newest first.
    pub(crate) events: Vec<EventView>,
    pub(crate) next: Option<String>,
    /// Events of the last 24 h, newest first, for the timeline.
    pub(crate) recent: Vec<EventView>,
}

/// A page of tasks.
#[derive(Debug)]
pub(crate) struct TasksContent {
    pub(crate) tasks: Vec<(Task, Option<TaskReason>)>,
    pub(crate) next: Option<String>,
    /// Number of tasks by state: of the queue, or of all queues.
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

/// A task with its explanation and its output.
#[derive(Debug)]
pub(crate) struct TaskContent {
    pub(crate) explanation: TaskExplanation,
    pub(crate) output: Vec<AttemptOutput>,
}

/// Health of the store.
#[derive(Debug)]
pub(crate) struct HealthContent {
    pub(crate) engine: &'static str,
    pub(crate) ping_micros: u64,
    pub(crate) checks: Vec<HealthCheck>,
    /// Remaining and total number of requests that the engine allows in its period.
    pub(crate) quota: Option<(u64, u64, Timestamp)>,
}

impl Data {
    /// Returns a number that differs when the content differs. The time of the read does not count, and
    /// neither does a value that changes with every read.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        let untimed = |lock: &LockExplanation| {
            let mut lock = lock.clone();
            lock.status.now = Timestamp::from_micros(0);
            format!("{lock:?}")
        };
        let rings =
            |deadlocks: &KnownDeadlocks| deadlocks.as_deadlocks().map(|search| format!("{:?}", search.found));
        match &self.content {
            Content::Overview(content) => {
                let OverviewContent { counts, locks, deadlocks, queues, dead_workers, figures, .. } =
                    &**content;
                rings(deadlocks).hash(&mut hash);
                for lock in locks {
                    untimed(lock).hash(&mut hash);
                }
                let dead: Vec<_> = dead_workers.iter().map(|worker| worker.info.id).collect();
                format!("{counts:?}{queues:?}{dead:?}{:?}", figures.last()).hash(&mut hash);
            }
            Content::Locks { locks, next } => {
                for lock in locks {
                    untimed(lock).hash(&mut hash);
                }
                next.hash(&mut hash);
            }
            Content::Lock(lock) => {
                untimed(&lock.explanation).hash(&mut hash);
                rings(&lock.deadlocks).hash(&mut hash);
                format!("{:?}", lock.events).hash(&mut hash);
            }
            Content::Task(content) => {
                let TaskContent { explanation, output } = &**content;
                format!("{:?}{:?}{output:?}", explanation.task, explanation.reasons).hash(&mut hash);
            }
            Content::Health(health) => format!("{:?}{:?}", health.checks, health.quota).hash(&mut hash),
            other => format!("{other:?}").hash(&mut hash),
        }
        hash.finish()
    }
}

/// State of the dashboard.
pub(crate) struct DashboardState {
    pub(crate) snapshots: Snapshots<View, Data>,
    /// Figures of the charts: recorded once a minute, so they are read less often than the rest.
    pub(crate) figures: Snapshots<(), (Vec<Minute>, Vec<f64>)>,
    pub(crate) deadlocks: Arc<DeadlockSearch>,
    pub(crate) pollers: Pollers<View>,
    /// Key of the CSRF tokens on an open server, whose viewers have no API token.
    pub(crate) csrf_key: String,
}

impl Default for DashboardState {
    fn default() -> Self {
        Self {
            snapshots: Snapshots::default(),
            figures: Snapshots::default(),
            deadlocks: Arc::default(),
            pollers: Pollers::default(),
            csrf_key: Uuid::new_v4().to_string(),
        }
    }
}

/// Interval at which an open page reads the store. Pages on engines that charge for requests, or allow
/// few of them, are updated less often.
pub(crate) fn refresh_interval(engine: &Capabilities) -> Duration {
    match engine.engine {
        "dynamodb" => Duration::from_secs(5),
        "github" => Duration::from_mins(1),
        _ => Duration::from_secs(1),
    }
}
