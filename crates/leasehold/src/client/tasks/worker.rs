//! Worker: its settings, start and shutdown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::context::TaskContext;
use super::floor::Floor;
use super::foreman::{Foreman, Handler, Line};
use super::pulse::{About, beat_on};
use super::settler::settle_all;
use super::slots::Slots;
use super::upkeep::{Upkeep, look_after, tick_on};
use super::work::{HandlerError, TaskType, verdict};
use crate::client::leasehold::Inner;
use crate::error::{Error, Result};
use crate::model::{
    AttemptResult, Message, Payload, QueueName, Retention, Ttl, ValidationError, WorkerId, WorkerInfo,
    WorkflowName, format_duration,
};
use crate::store;

/// Builder of a worker. Invalid arguments are reported by [`start`](Self::start).
#[must_use = "nothing is done until start() is called"]
pub struct WorkerBuilder {
    inner: Arc<Inner>,
    handlers: BTreeMap<QueueName, (Ttl, Arc<Handler>)>,
    slots: u32,
    prefetch: Option<u32>,
    recover_every: Option<Duration>,
    max_runtime: Option<Ttl>,
    retention: Option<Retention>,
    patient: bool,
    pub(in crate::client) wrong: Option<Error>,
}

/// Default maximum number of tasks that a worker runs at once.
const SLOTS: u32 = 10;
/// Default maximum interval of the search for expired leases.
const RECOVER_AT_LEAST: Duration = Duration::from_secs(5);

impl WorkerBuilder {
    pub(in crate::client) fn new(inner: Arc<Inner>) -> Self {
        let handlers = BTreeMap::new();
        Self {
            inner,
            handlers,
            slots: SLOTS,
            prefetch: None,
            recover_every: None,
            max_runtime: None,
            retention: None,
            patient: false,
            wrong: None,
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
    pub fn handle_with<W, R, S, F, Fut>(mut self, state: S, handler: F) -> Self
    where
        W: TaskType,
        R: Serialize + Send,
        S: Clone + Send + Sync + 'static,
        F: Fn(TaskContext<W>, S) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let call: Box<Handler> = Box::new(move |task, lock_token, ties| {
            let (handler, state) = (handler.clone(), state.clone());
            Box::pin(async move {
                let work = match task.payload.read::<W>() {
                    Ok(work) => work,
                    Err(error) => {
                        let kind = std::any::type_name::<W>();
                        return AttemptResult::Fail(Message::new(format!(
                            "the payload cannot be read as {kind}: {error}"
                        )));
                    }
                };
                verdict(handler(TaskContext::new(work, task, lock_token, ties), state).await)
            })
        });
        match (QueueName::new(W::QUEUE), Ttl::new(W::TTL)) {
            (Ok(queue), Ok(ttl)) => self.with_handler(queue, ttl, call),
            (Err(error), _) | (_, Err(error)) => {
                self.wrong.get_or_insert(error.into());
                self
            }
        }
    }

    /// Handles the tasks of a queue, whatever their payload is.
    pub fn handle_queue<Q, R, F, Fut>(mut self, queue: Q, ttl: Duration, handler: F) -> Self
    where
        Q: TryInto<QueueName>,
        Q::Error: Into<Error>,
        R: Serialize + Send,
        F: Fn(TaskContext<Payload>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let call: Box<Handler> = Box::new(move |task, lock_token, ties| {
            let (handler, payload) = (handler.clone(), task.payload.clone());
            Box::pin(async move { verdict(handler(TaskContext::new(payload, task, lock_token, ties)).await) })
        });
        match (queue.try_into(), Ttl::new(ttl)) {
            (Ok(queue), Ok(ttl)) => return self.with_handler(queue, ttl, call),
            (Err(error), _) => _ = self.wrong.get_or_insert_with(|| error.into()),
            (_, Err(error)) => _ = self.wrong.get_or_insert_with(|| error.into()),
        }
        self
    }

    pub(in crate::client) fn with_handler(mut self, queue: QueueName, ttl: Ttl, call: Box<Handler>) -> Self {
        if let Some((name, _)) = self.handlers.get_key_value(&queue) {
            let twice = ValidationError(format!("queue '{name}' has two handlers"));
            self.wrong.get_or_insert(twice.into());
        }
        self.handlers.insert(queue, (ttl, call.into()));
        self
    }

    /// Sets the maximum number of tasks that run at once; 10 by default. A task that waits for its
    /// lock occupies no slot.
    pub fn slots(mut self, slots: u32) -> Self {
        if !(1..=10_000).contains(&slots) {
            let wrong = ValidationError(format!("a worker cannot have {slots} slots; it has 1 to 10000"));
            self.wrong.get_or_insert(wrong.into());
        }
        self.slots = slots;
        self
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
    pub fn recover_every(mut self, every: Duration) -> Self {
        match check_interval(every) {
            Ok(every) => self.recover_every = Some(every),
            Err(invalid) => _ = self.wrong.get_or_insert(invalid.into()),
        }
        self
    }

    /// Sets the maximum run time of a handler. A handler that reaches it is stopped: the attempt
    /// fails, and the next one follows if attempts are left. The time that a task waits for its
    /// lock does not count. An execution of a workflow ends as aborted, and its own limit applies
    /// too. By default a handler may run for as long as its lease can be renewed.
    pub fn max_runtime(mut self, longest: Duration) -> Self {
        match Ttl::new(longest) {
            Ok(longest) => self.max_runtime = Some(longest),
            Err(invalid) => _ = self.wrong.get_or_insert(invalid.into()),
        }
        self
    }

    /// Sets how long finished tasks of this worker's queues are kept. The setting is stored, and
    /// applies to every process that purges tasks of these queues, until it is set again. `None`
    /// keeps tasks forever. By default the value that was [set before](super::Tasks::set_retention)
    /// applies, or [seven days](Retention::DEFAULT). Keys are purged with their tasks, including
    /// the keys of schedule ticks: the retention must be longer than any process may be paused. An
    /// engine that [cannot purge](crate::store::TaskCapabilities::forgets) keeps all tasks.
    pub fn keep_finished(mut self, keep: Option<Duration>) -> Self {
        match keep.map(Ttl::new).transpose() {
            Ok(keep) => self.retention = Some(Retention::all(keep)),
            Err(invalid) => _ = self.wrong.get_or_insert(invalid.into()),
        }
        self
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
    pub fn patient(mut self) -> Self {
        self.patient = true;
        self
    }

    /// Starts the worker on the current Tokio runtime.
    pub fn start(self) -> Result<Worker> {
        let Self { inner, handlers, slots, prefetch, recover_every, max_runtime, retention, patient, wrong } =
            self;
        if let Some(error) = wrong {
            return Err(error);
        }
        if handlers.is_empty() {
            return Err(ValidationError("a worker without a handler has nothing to do".to_owned()).into());
        }
        inner.tasks()?;
        let least = inner.store.capabilities().min_ttl;
        if let Some((queue, (ttl, _))) = handlers.iter().find(|(_, (ttl, _))| *ttl < least) {
            let short = format!(
                "a ttl of {ttl} for queue '{queue}' is too short for this store; {least} is the least"
            );
            return Err(ValidationError(short).into());
        }
        let mut lines = BTreeMap::<Ttl, Vec<QueueName>>::new();
        for (queue, (ttl, _)) in &handlers {
            lines.entry(*ttl).or_default().push(queue.clone());
        }
        let shortest = *lines.keys().next().expect("there is a handler");
        let id = inner.store.new_worker_id();
        let about = Arc::new(About::new(WorkerInfo {
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
        let floor = Arc::<Floor>::default();
        let (ending, over) = (CancellationToken::new(), CancellationToken::new());
        // Heartbeats run on a separate thread, so that neither handlers nor maintenance can delay
        // them.
        let background = CancellationToken::new();
        for ttl in lines.keys() {
            let pulse = beat_on(inner.clone(), floor.clone(), about.clone(), *ttl);
            inner.keeper.spawn_detached(until(&background, pulse));
        }
        let capabilities = inner.store.capabilities();
        // Where each query has a cost, no worker queries more often than the engine polls.
        let usual = (shortest.as_duration() / 3).min(RECOVER_AT_LEAST).max(capabilities.poll);
        let every = recover_every.unwrap_or(usual);
        let forgets = capabilities.tasks.forgets;
        let queues = || handlers.keys().cloned().collect();
        let retention = retention.filter(|_| forgets).map(|keep| (queues(), keep));
        let workflows = handlers.keys().any(|queue| WorkflowName::of_queue(queue).is_some());
        let upkeep = Upkeep { inner: inner.clone(), every, forgets, retention, workflows };
        inner.keeper.spawn_upkeep(until(&background, look_after(upkeep)));
        inner.keeper.spawn_upkeep(until(&background, tick_on(inner.clone())));
        let background = background.drop_guard();
        let noticed = Arc::downgrade(&floor);
        let on_notice = move || noticed.upgrade().into_iter().for_each(|floor| floor.notice());
        let subscription = inner.store.subscribe(id.into(), Arc::new(on_notice));

        let (ended, to_settle) = tokio::sync::mpsc::unbounded_channel();
        let settler = tokio::spawn(settle_all(inner.clone(), floor.clone(), to_settle, over.clone()));
        let foreman = Foreman {
            inner: inner.clone(),
            floor,
            about,
            lines: lines.into_iter().map(|(ttl, queues)| Line { ttl, queues }).collect(),
            handlers: handlers.into_iter().map(|(queue, (_, handler))| (queue, handler)).collect(),
            slots: slots as usize,
            free: Slots::new(slots as usize),
            prefetch: prefetch.map(|tasks| tasks as usize),
            ended,
            ending: ending.clone(),
            over: over.clone(),
            patient,
            max_runtime,
        };
        let work = tokio::spawn(async move {
            let _background = (background, subscription);
            foreman.work().await;
            // All results have been handed to the settler; the worker is done when the settler is
            // done.
            if let Err(error) = settler.await {
                tracing::error!(%error, "settling ended early");
            }
            if let Ok(tasks) = inner.tasks()
                && let Err(error) = tasks.leave(id).await
            {
                tracing::debug!(%error, "could not say good-bye");
            }
        });
        Ok(Worker { id, ending, over: over.drop_guard(), work })
    }
}

/// Checks the interval of the search for expired leases: from 10 ms to a day.
pub(in crate::client) fn check_interval(every: Duration) -> Result<Duration, ValidationError> {
    let bounds = Duration::from_millis(10)..=Duration::from_hours(24);
    if bounds.contains(&every) {
        return Ok(every);
    }
    Err(ValidationError(format!("an interval of {} is out of bounds: 10ms to 1d", format_duration(every))))
}

/// Runs a future until the token is cancelled.
fn until(
    end: &CancellationToken,
    work: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let end = end.clone();
    async move {
        end.run_until_cancelled(work).await;
    }
}

/// Running worker. Dropping it gives back the tasks that it holds.
#[must_use = "a worker that is dropped works no more"]
pub struct Worker {
    id: WorkerId,
    ending: CancellationToken,
    over: DropGuard,
    work: JoinHandle<()>,
}

impl Worker {
    /// Returns the id of the worker, new for every start.
    pub const fn id(&self) -> WorkerId {
        self.id
    }

    /// Leases no more tasks, and waits for the running ones. Tasks that are not done after `grace`
    /// are dropped and given back. A task that is given back, before or after `grace`, does not
    /// count as an attempt.
    pub async fn stop(self, grace: Duration) {
        self.stop_when(tokio::time::sleep(grace)).await;
    }

    /// Leases no more tasks, and waits for the running ones. Tasks that are not done when `enough`
    /// resolves are dropped and given back.
    pub async fn stop_when(self, enough: impl Future<Output = ()>) {
        let Self { ending, over, mut work, .. } = self;
        ending.cancel();
        tokio::select! {
            biased;
            _ = &mut work => return,
            () = enough => {}
        }
        drop(over);
        let _ = work.await;
    }
}
