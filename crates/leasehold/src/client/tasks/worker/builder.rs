//! Worker: its settings, start and shutdown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::attempt::Handler;
use super::completer::run_completer;
use super::context::TaskContext;
use super::fetcher::TaskFetcher;
use super::heartbeat::{QueueGroup, WorkerDescription, run_heartbeats};
use super::held_leases::HeldLeases;
use super::slots::Slots;
use crate::client::context::Inner;
use crate::client::maintenance::{TaskMaintenance, run_task_maintenance};
#[cfg(feature = "schedules")]
use crate::client::schedules::run_scheduler;
use crate::client::tasks::task_type::{HandlerError, TaskType, attempt_result};
use crate::error::{Error, Result};
use crate::model::{
    AttemptResult, ExecutionInput, ExecutionSpec, Message, Payload, QueueName, Retention, Task, Ttl,
    ValidationError, ValueKind, WorkerId, WorkerInfo, WorkflowName, format_duration,
};
use crate::store;

/// Builder of a worker. Invalid arguments are reported by [`start`](Self::start).
#[must_use = "the worker does not run until start() is called"]
pub struct WorkerBuilder {
    inner: Arc<Inner>,
    handlers: BTreeMap<QueueName, (Ttl, Arc<Handler>)>,
    slots: u32,
    prefetch: Option<u32>,
    recover_every: Option<Duration>,
    max_runtime: Option<Ttl>,
    retention: Option<Retention>,
    cooperative_cancellation: bool,
    error: Option<Error>,
}

const DEFAULT_SLOTS: u32 = 10;
const MAX_RECOVER_INTERVAL: Duration = Duration::from_secs(5);

impl WorkerBuilder {
    pub(in crate::client) fn new(inner: Arc<Inner>) -> Self {
        let handlers = BTreeMap::new();
        Self {
            inner,
            handlers,
            slots: DEFAULT_SLOTS,
            prefetch: None,
            recover_every: None,
            max_runtime: None,
            retention: None,
            cooperative_cancellation: false,
            error: None,
        }
    }

    /// Handles one type of task. The handler's future is dropped if the lease is lost or the task
    /// has to stop; a panic fails the attempt.
    pub fn handle<W, R, F, Fut>(self, handler: F) -> Self
    where
        W: TaskType,
        R: Serialize + Send,
        F: Fn(TaskContext<W>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        self.handle_with((), move |task, ()| handler(task))
    }

    /// Handles one type of task with state that all its handlers share, such as a connection pool.
    pub fn handle_with<W, R, S, F, Fut>(self, state: S, handler: F) -> Self
    where
        W: TaskType,
        R: Serialize + Send,
        S: Clone + Send + Sync + 'static,
        F: Fn(TaskContext<W>, S) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let read = |task: &Task| task.payload.read::<W>();
        self.with_handler(QueueName::new(W::QUEUE), W::TTL, "payload", read, move |task| {
            handler(task, state.clone())
        })
    }

    /// Handles the tasks of a queue, whatever their payload is.
    pub fn handle_queue<Q, R, F, Fut>(self, queue: Q, ttl: Duration, handler: F) -> Self
    where
        Q: TryInto<QueueName, Error: Into<Error>>,
        R: Serialize + Send,
        F: Fn(TaskContext<Payload>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        self.with_handler(queue.try_into(), ttl, "payload", |task| Ok(task.payload.clone()), handler)
    }

    /// Handles the executions of a workflow: [`TaskContext::payload`] is the input. The worker holds
    /// the workflow's lock while the handler runs. If the handler fails, the execution fails: a
    /// retry is a new execution. If the worker stops before the handler is done, the execution is
    /// aborted.
    pub fn workflow<N, I, R, F, Fut>(self, name: N, ttl: Duration, handler: F) -> Self
    where
        N: TryInto<WorkflowName, Error: Into<Error>>,
        I: DeserializeOwned + Send + 'static,
        R: Serialize + Send,
        F: Fn(TaskContext<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let queue = name.try_into().map(|name| name.queue());
        self.with_handler(queue, ttl, "input", |task| ExecutionSpec::of(task).input.read::<I>(), handler)
    }

    /// Handles the executions of a workflow with the unchanged bytes that they were started with.
    pub fn workflow_raw<N, R, F, Fut>(self, name: N, ttl: Duration, handler: F) -> Self
    where
        N: TryInto<WorkflowName, Error: Into<Error>>,
        R: Serialize + Send,
        F: Fn(TaskContext<ExecutionInput>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let queue = name.try_into().map(|name| name.queue());
        self.with_handler(queue, ttl, "input", |task| Ok(ExecutionSpec::of(task).input), handler)
    }

    /// Handles the tasks of a queue with work that is read from the task; `what` names its source.
    fn with_handler<W, R, Fut>(
        self,
        queue: Result<QueueName, impl Into<Error>>,
        ttl: Duration,
        what: &'static str,
        read: fn(&Task) -> Result<W, ValidationError>,
        handler: impl Fn(TaskContext<W>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        W: Send + 'static,
        R: Serialize + Send,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let call: Box<Handler> = Box::new(move |task, lock_token, channels| {
            let handler = handler.clone();
            Box::pin(async move {
                match read(&task) {
                    Ok(work) => {
                        attempt_result(handler(TaskContext::new(work, task, lock_token, channels)).await)
                    }
                    Err(error) => {
                        let kind = std::any::type_name::<W>();
                        let message = format!("the {what} cannot be read as {kind}: {error}");
                        AttemptResult::Fail(Message::new(message))
                    }
                }
            })
        });
        let valid = queue.map_err(Into::into).and_then(|queue| {
            let ttl = Ttl::new(ttl)?;
            if self.handlers.contains_key(&queue) {
                let message = format!("queue '{queue}' has two handlers");
                return Err(Error::from(ValidationError::new(ValueKind::Worker, message)));
            }
            Ok((queue, ttl))
        });
        self.with(valid, |builder, (queue, ttl)| {
            builder.handlers.insert(queue, (ttl, call.into()));
        })
    }

    /// Sets the maximum number of tasks that run at once; 10 by default. A task that waits for its
    /// lock occupies no slot.
    pub fn slots(self, slots: u32) -> Self {
        let invalid = || format!("a worker cannot have {slots} slots; it has 1 to 10000");
        let valid = (1..=10_000).contains(&slots).then_some(slots);
        let valid = valid.ok_or_else(|| ValidationError::new(ValueKind::Worker, invalid()));
        self.with(valid, |builder, slots| builder.slots = slots)
    }

    /// Sets the number of tasks that the worker leases in addition to its slots, so that the next
    /// task is available when a slot becomes free. By default as many tasks as the worker completes
    /// within about 20 ms: none for tasks that take longer.
    pub fn prefetch(mut self, tasks: u32) -> Self {
        self.prefetch = Some(tasks.min(10_000));
        self
    }

    /// Sets the interval of the search for expired leases, from 10 ms to a day. By default a third
    /// of the shortest ttl, and at most 5 s, or the engine's [poll
    /// interval](crate::store::Capabilities::poll) if that is longer. Each pass runs after a random
    /// delay of half to all of the interval. Leasing tasks also finds expired leases, so that a
    /// long interval delays no busy queue.
    pub fn recover_every(self, every: Duration) -> Self {
        self.with(check_interval(every), |builder, every| builder.recover_every = Some(every))
    }

    /// Sets the maximum run time of a handler. A handler that reaches it is stopped: the attempt
    /// fails, and the next one follows if attempts are left. The time that a task waits for its
    /// lock does not count. An execution of a workflow ends as aborted, and its own limit applies
    /// too. By default a handler may run for as long as its lease can be renewed.
    pub fn max_runtime(self, max_runtime: Duration) -> Self {
        self.with(Ttl::new(max_runtime), |builder, limit| builder.max_runtime = Some(limit))
    }

    /// Sets how long finished tasks of this worker's queues are kept. The setting is stored, and
    /// applies to every process that purges tasks of these queues, until it is set again. `None`
    /// keeps tasks forever. By default the value that was [set before](crate::client::tasks::Tasks::set_retention)
    /// applies, or [seven days](Retention::DEFAULT). Keys are purged with their tasks, including
    /// the keys of schedule ticks: the retention must be longer than any process may be paused. An
    /// engine that [cannot purge](crate::store::TaskCapabilities::purge) keeps all tasks.
    pub fn keep_finished(self, keep: Option<Duration>) -> Self {
        let keep = keep.map(Ttl::new).transpose();
        self.with(keep, |builder, keep| builder.retention = Some(Retention::all(keep)))
    }

    /// Sets the retention of this worker's queues, like [`keep_finished`](Self::keep_finished),
    /// with a time for each state.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Keeps handlers running when they have to stop, instead of dropping them: a handler observes
    /// [`TaskContext::lost`] and ends by itself. The worker renews the lease until the handler has
    /// ended, if it can. For work in other processes, which has to be ended there, and before
    /// [`TaskContext::valid_until`]. If such a handler succeeds nevertheless, its result counts.
    pub fn cooperative_cancellation(mut self) -> Self {
        self.cooperative_cancellation = true;
        self
    }

    /// Sets a value that is valid; otherwise records the first error.
    fn with<T, E: Into<Error>>(mut self, value: Result<T, E>, set: impl FnOnce(&mut Self, T)) -> Self {
        match value {
            Ok(value) => set(&mut self, value),
            Err(error) => _ = self.error.get_or_insert_with(|| error.into()),
        }
        self
    }

    /// Starts the worker on the current Tokio runtime.
    pub fn start(self) -> Result<Worker> {
        let Self {
            inner,
            handlers,
            slots,
            prefetch,
            recover_every,
            max_runtime,
            retention,
            cooperative_cancellation,
            error,
        } = self;
        if let Some(error) = error {
            return Err(error);
        }
        if handlers.is_empty() {
            let message = "a worker without a handler has nothing to do";
            return Err(ValidationError::new(ValueKind::Worker, message).into());
        }
        inner.tasks()?;
        let min_ttl = inner.store.capabilities().min_ttl;
        if let Some((queue, (ttl, _))) = handlers.iter().find(|(_, (ttl, _))| *ttl < min_ttl) {
            let error = format!(
                "a ttl of {ttl} for queue '{queue}' is too short for this store; {min_ttl} is the least"
            );
            return Err(ValidationError::new(ValueKind::Worker, error).into());
        }
        let mut groups = BTreeMap::<Ttl, Vec<QueueName>>::new();
        for (queue, (ttl, _)) in &handlers {
            groups.entry(*ttl).or_default().push(queue.clone());
        }
        let shortest = *groups.keys().next().expect("there is at least one handler");
        let id = inner.store.new_worker_id();
        let description = Arc::new(WorkerDescription::new(WorkerInfo {
            id,
            host: store::host_name(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            queues: handlers.keys().cloned().collect(),
            slots,
            busy: 0,
            draining: false,
            every: Ttl::new(shortest.as_duration() / 3).unwrap_or(Ttl::MIN),
        }));
        let leases = Arc::<HeldLeases>::default();
        let (soft_stop, hard_stop) = (CancellationToken::new(), CancellationToken::new());
        // Heartbeats run on a separate thread, so that neither handlers nor maintenance can delay
        // them.
        let background = CancellationToken::new();
        for ttl in groups.keys() {
            let heartbeats = run_heartbeats(inner.clone(), leases.clone(), description.clone(), *ttl);
            inner.background.spawn_detached(until(&background, heartbeats));
        }
        let capabilities = inner.store.capabilities();
        // Where each query has a cost, no worker queries more often than the engine polls.
        let default_interval = (shortest.as_duration() / 3).min(MAX_RECOVER_INTERVAL).max(capabilities.poll);
        let every = recover_every.unwrap_or(default_interval);
        let purges = capabilities.tasks.purge;
        let queues = || handlers.keys().cloned().collect();
        let retention = retention.filter(|_| purges).map(|keep| (queues(), keep));
        let workflows = handlers.keys().any(|queue| WorkflowName::of_queue(queue).is_some());
        let maintenance = TaskMaintenance { inner: inner.clone(), every, purges, retention, workflows };
        inner.background.spawn_maintenance(until(&background, run_task_maintenance(maintenance)));
        #[cfg(feature = "schedules")]
        inner.background.spawn_maintenance(until(&background, run_scheduler(inner.clone())));
        let background = background.drop_guard();
        let weak = Arc::downgrade(&leases);
        let on_notification =
            move || weak.upgrade().into_iter().for_each(|leases| leases.changed.send_replace(()));
        let subscription = inner.store.subscribe(id.into(), Arc::new(on_notification));

        let (completions, receiver) = tokio::sync::mpsc::unbounded_channel();
        let completer = run_completer(inner.clone(), leases.clone(), receiver, hard_stop.clone());
        let completer = tokio::spawn(inner.background.in_process(completer));
        let fetcher = TaskFetcher {
            inner: inner.clone(),
            leases,
            worker: description,
            groups: groups.into_iter().map(|(ttl, queues)| QueueGroup { ttl, queues }).collect(),
            handlers: handlers.into_iter().map(|(queue, (_, handler))| (queue, handler)).collect(),
            slot_count: slots as usize,
            slots: Slots::new(slots as usize),
            prefetch: prefetch.map(|tasks| tasks as usize),
            completions,
            soft_stop: soft_stop.clone(),
            hard_stop: hard_stop.clone(),
            cooperative_cancellation,
            max_runtime,
        };
        let threads = inner.background.clone();
        let work = tokio::spawn(threads.in_process(async move {
            let _background = (background, subscription);
            fetcher.run().await;
            // All results have been handed to the completer; the worker is done when the completer is
            // done.
            if let Err(error) = completer.await {
                tracing::error!(%error, "the completer ended early");
            }
            if let Ok(tasks) = inner.tasks()
                && let Err(error) = tasks.deregister(id).await
            {
                tracing::debug!(%error, "failed to deregister the worker");
            }
        }));
        Ok(Worker { id, soft_stop, hard_stop: hard_stop.drop_guard(), work })
    }
}

/// Checks the interval of the search for expired leases: from 10 ms to a day.
fn check_interval(every: Duration) -> Result<Duration, ValidationError> {
    if (Duration::from_millis(10)..=Duration::from_hours(24)).contains(&every) {
        return Ok(every);
    }
    let message = format!("an interval of {} is out of bounds: 10ms to 1d", format_duration(every));
    Err(ValidationError::new(ValueKind::Duration, message))
}

fn until(
    end: &CancellationToken,
    work: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let end = end.clone();
    async move {
        end.run_until_cancelled(work).await;
    }
}

/// Running worker. Dropping it stops it, and returns the tasks that it holds.
#[must_use = "a worker stops when it is dropped"]
pub struct Worker {
    id: WorkerId,
    soft_stop: CancellationToken,
    hard_stop: DropGuard,
    work: JoinHandle<()>,
}

impl Worker {
    /// Returns the id of the worker, new for every start.
    pub const fn id(&self) -> WorkerId {
        self.id
    }

    /// Leases no more tasks, and waits for the running ones. Tasks that are not done after `grace`
    /// are dropped and returned to their queues. A task that is returned, before or after `grace`,
    /// does not count as an attempt.
    pub async fn stop(self, grace: Duration) {
        self.stop_when(tokio::time::sleep(grace)).await;
    }

    /// Leases no more tasks, and waits for the running ones. Tasks that are not done when
    /// `grace_over` resolves are dropped and returned to their queues.
    pub async fn stop_when(self, grace_over: impl Future<Output = ()>) {
        let Self { soft_stop, hard_stop, mut work, .. } = self;
        soft_stop.cancel();
        tokio::select! {
            biased;
            _ = &mut work => return,
            () = grace_over => {}
        }
        drop(hard_stop);
        let _ = work.await;
    }
}
