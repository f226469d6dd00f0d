//! Loops of a process that add tasks and start workflows, the handlers of its worker, and the end of all
//! tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{LockName, Payload, QueueName, Retention, RetryPolicy, Task, TaskId, TaskState, Ttl};
use leasehold::store::{ListTasks, Store};
use leasehold::{HandlerError, Leasehold, OnLocked, StartResult, TaskContext, Worker};
use leasehold_torture::history::Event;

use crate::audit;
use crate::guards::TASK_LOCK;
use crate::process::Process;
use crate::world::{Attempt, OpId, State, World, micros, millis, now};

/// Queue of the tasks, and name of the workflow.
const QUEUE: &str = "tasks";
const WORKFLOW: &str = "deploy";
/// Queue of the tasks of the schedule, and the interval of its ticks.
const TICKS: &str = "ticks";
const CRON: &str = "*/5 * * * *";
const TICK: Duration = Duration::from_mins(5);
/// More attempts than faults can use up.
const RETRIES: RetryPolicy =
    RetryPolicy { attempts: 100, initial_delay: Ttl::from_secs(1), max_delay: Ttl::from_secs(20) };
/// Longest time that a call takes that is not repeated.
const CALL_LIMIT: Duration = Duration::from_secs(15);
/// Longest time between two tasks of a loop, so that it ends soon after the last fault.
const MAX_PAUSE: Duration = Duration::from_mins(10);
/// Virtual time in which all tasks end after the last fault.
const TASKS_END_WITHIN: Duration = Duration::from_hours(1);

type Loop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts the worker of a process, and returns the loops that add its tasks.
pub(crate) fn start(process: &Arc<Process>, leasehold: &Leasehold, seed: u64) -> (Vec<Loop>, Worker) {
    let adds = |number: u64| Adds {
        process: process.clone(),
        leasehold: leasehold.clone(),
        rng: fastrand::Rng::with_seed(seed ^ number),
    };
    let mut loops: Vec<Loop> =
        vec![Box::pin(adds(1).tasks()), Box::pin(adds(2).executions()), Box::pin(adds(4).keep_finished())];
    if process.world.plan.schedule {
        loops.push(Box::pin(adds(3).schedule()));
    }
    let ttl = process.world.plan.ttl;
    let worker = leasehold
        .worker()
        .slots(3)
        .handle_queue(QUEUE, ttl, handler::<Payload>(process))
        .handle_queue(TICKS, ttl, handler::<Payload>(process))
        .workflow(WORKFLOW, ttl, handler::<String>(process));
    (loops, worker.start().expect("the settings of the worker are valid"))
}

type Handled = Pin<Box<dyn Future<Output = Result<u64, HandlerError>> + Send>>;

/// Returns a handler whose attempts stop while the process is paused.
fn handler<T: Send + Sync + 'static>(process: &Arc<Process>) -> impl Fn(TaskContext<T>) -> Handled + use<T> {
    let process = process.clone();
    move |task| Box::pin(process.pausing.run(attempt(process.clone(), task)))
}

/// Attempts a task: records how long the attempt believes to hold it.
async fn attempt<T: Send + Sync>(process: Arc<Process>, task: TaskContext<T>) -> Result<u64, HandlerError> {
    let op = process.new_op();
    let mut until = task.valid_until();
    // Guards compete for the lock of tasks, and an attempt does not know when its lease on it ends.
    let lock = task.execution().and_then(|_| task.task().lock.as_ref().map(LockName::to_string));
    let (id, token) = (task.id(), task.token());
    process.record(Event::Attempt {
        op: op.1,
        task: id.to_string(),
        lock,
        token: token.get(),
        until: until.as_micros(),
    });
    audit::started(&process, op, id, until.as_micros());
    audit::attempt_believed(&process, op, (id, token), until.as_micros()).await;
    let started = now();
    audit::attempt_locked(&process, op, task.task(), task.lock_token(), started).await;
    let attempt = Attempt { op, ended: None, is_settled: false };
    process.world.state().attempts.insert((id, token), attempt);
    let ending = Ending { process: &process, op, is_done: false };
    let (held, fails) = {
        let mut rng = process.rng();
        let ttl = process.world.plan.ttl;
        let held = match rng.u8(0..20) {
            0 => ttl.mul_f64(1.0 + rng.f64()),
            1..4 => ttl.mul_f64(0.5 * rng.f64()),
            _ => Duration::from_millis(rng.u64(0..2_000)),
        };
        (held, rng.u8(0..20) == 0 && task.execution().is_none())
    };
    let mut work = std::pin::pin!(tokio::time::sleep(held));
    loop {
        tokio::select! {
            biased;
            () = &mut work => break,
            renewed = task.renewed(until) => {
                until = renewed;
                process.record(Event::Extended { op: op.1, until: until.as_micros() });
                audit::attempt_believed(&process, op, (id, token), until.as_micros()).await;
            }
        }
    }
    audit::attempt_locked(&process, op, task.task(), task.lock_token(), started).await;
    ending.done();
    {
        let State { attempts, unsettled, .. } = &mut *process.world.state();
        if let Some(attempt) = attempts.get_mut(&(id, token)) {
            attempt.ended = Some((now(), !fails));
            if !attempt.is_settled {
                unsettled.insert((id, token));
            }
        }
    }
    if fails {
        return Err(HandlerError::retry_in(Duration::from_secs(1), "a failure that the simulation injects"));
    }
    Ok(token.get())
}

/// Records the end of an attempt, also if its future is dropped.
struct Ending<'a> {
    process: &'a Process,
    op: OpId,
    is_done: bool,
}

impl Ending<'_> {
    fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.process.record(Event::Ended { op: self.op.1, lost: !self.is_done });
    }
}

/// Loop that adds tasks.
struct Adds {
    process: Arc<Process>,
    leasehold: Leasehold,
    rng: fastrand::Rng,
}

impl Adds {
    fn goes_on(&self) -> bool {
        !self.process.world.is_draining() && !self.process.is_killed()
    }

    /// Number that all processes share for a while, so that they use the same keys.
    fn shared_number(period: Duration) -> u64 {
        now() / micros(period)
    }

    async fn tasks(mut self) {
        let idle = self.process.world.plan.idle;
        while self.goes_on() {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(1_000..millis(MAX_PAUSE.min(3 * idle)))))
                .await;
            let Ok(payload) = Payload::of(&self.rng.u32(..10)) else { return };
            let mut task = self.leasehold.enqueue_to(QUEUE, payload).retries(RETRIES);
            let key = self.rng.bool().then(|| format!("key-{}", Self::shared_number(2 * idle)));
            if let Some(key) = &key {
                let Ok(payload) = Payload::of(&"same") else { return };
                task = self.leasehold.enqueue_to(QUEUE, payload).retries(RETRIES).key(key.as_str());
            }
            if self.rng.u8(0..3) == 0 {
                task = task.lock(TASK_LOCK);
            }
            let op = self.process.new_op();
            let started = now();
            self.process.record(Event::Enqueue { op: op.1, queue: QUEUE.to_owned(), key });
            match task.await {
                Ok(added) => {
                    let (task, duplicate) = (added.id.to_string(), added.duplicate);
                    self.process.record(Event::Enqueued { op: op.1, task, duplicate });
                }
                Err(error) => self.process.record(Event::Refused { op: op.1, code: error.code().into() }),
            }
            audit::ended(&self.process, op, "an enqueue", started, CALL_LIMIT);
        }
    }

    async fn executions(mut self) {
        let idle = self.process.world.plan.idle;
        while self.goes_on() {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(10_000..millis(MAX_PAUSE.min(6 * idle)))))
                .await;
            let key = format!("event-{}", Self::shared_number(6 * idle));
            let op = self.process.new_op();
            let queue = format!("workflow:{WORKFLOW}");
            self.process.record(Event::Enqueue { op: op.1, queue, key: Some(key.clone()) });
            let start = self.leasehold.workflow(WORKFLOW).key(key).on_locked(OnLocked::Queue(10_000));
            let started = now();
            match start.start("input").await {
                Ok(result) => {
                    let duplicate = matches!(result, StartResult::Duplicate(_));
                    if let Some(execution) = result.execution() {
                        let task = execution.id.task().to_string();
                        self.process.record(Event::Enqueued { op: op.1, task, duplicate });
                    }
                }
                Err(error) => self.process.record(Event::Refused { op: op.1, code: error.code().into() }),
            }
            audit::ended(&self.process, op, "a start", started, 3 * CALL_LIMIT);
        }
    }

    /// Sets that finished tasks are kept, because the end of a run looks for them; repeats it until it succeeds.
    async fn keep_finished(self) {
        let Ok(tasks) = self.leasehold.tasks() else { return };
        while self.goes_on() && tasks.set_retention(None, Some(Retention::all(None))).await.is_err() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Sets the schedule, and repeats it until it succeeds.
    async fn schedule(self) {
        while self.goes_on() {
            let Ok(payload) = Payload::of(&"tick") else { return };
            if self
                .leasehold
                .schedule_to("every-five-minutes", CRON, TICKS, payload)
                .retries(RETRIES)
                .await
                .is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Waits until all tasks have ended, records their ends, and checks the ticks of the schedule.
pub(crate) async fn finish(world: &World) {
    let acknowledged = acknowledged(world);
    let deadline = now() + micros(TASKS_END_WITHIN);
    while now() < deadline && !all_have_ended(world, &acknowledged).await {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    for id in acknowledged {
        let found = task(world, id).await;
        let state = found.as_ref().map_or("missing".to_owned(), |task| task.state.to_string());
        let terminal = found.as_ref().is_some_and(|task| task.state.is_terminal());
        let token = found.map_or(0, |task| task.token.get());
        world.record(0, Event::Final { task: id.to_string(), state, token, terminal });
    }
    check_ticks(world).await;
}

fn acknowledged(world: &World) -> BTreeSet<TaskId> {
    let state = world.state();
    let tasks = state.records.iter().filter_map(|record| match &record.event {
        Event::Enqueued { task, .. } => task.parse().ok(),
        _ => None,
    });
    tasks.collect()
}

async fn all_have_ended(world: &World, tasks: &BTreeSet<TaskId>) -> bool {
    for id in tasks {
        if task(world, *id).await.is_some_and(|task| !task.state.is_terminal()) {
            return false;
        }
    }
    true
}

async fn task(world: &World, id: TaskId) -> Option<Task> {
    world.engine.tasks()?.get(id).await.ok()?
}

/// Each tick has one task: none is lost, and none has two (S7, S8).
async fn check_ticks(world: &World) {
    let Ok(queue) = QueueName::new(TICKS) else { return };
    let Some(tasks) = world.engine.tasks() else { return };
    let mut ticks: BTreeMap<u64, u32> = BTreeMap::new();
    let mut query = ListTasks::default().queue(Some(queue)).limit(1000);
    loop {
        let Ok(page) = tasks.list(&query).await else { return };
        for task in page.items {
            let at = task.run_at.as_micros() / micros(TICK);
            *ticks.entry(at).or_default() +=
                u32::from(task.attempt <= 1 || task.state != TaskState::Scheduled);
        }
        query = query.after(page.next.clone());
        if page.next.is_none() {
            break;
        }
    }
    if let Some((tick, tasks)) = ticks.iter().find(|(_, tasks)| **tasks > 1) {
        let message = format!("tick {tick} of the schedule has {tasks} tasks");
        world.violation("S8", Vec::new(), message);
    }
    let (Some(first), Some(last)) = (ticks.keys().next(), ticks.keys().next_back()) else { return };
    if let Some(missing) = (*first..=*last).find(|tick| !ticks.contains_key(tick)) {
        world.violation("S7", Vec::new(), format!("tick {missing} of the schedule has no task"));
    }
}
