//! Random operations on tasks through an engine and through the table of leasehold-model: every
//! answer, every task and every count must be equal.

use std::time::Duration;

use proptest::prelude::*;

use super::Fixture;
use super::random::{differs, play_all};
use super::shop::{ada, cancel, info, queue, retry, task, update, why, worker};
use crate::model::{
    AttemptResult, Change, FinishedFilter, HeldTask, LeaseTasks, NewTask, Pause, Payload, Priority, Progress,
    Reuse, Settle, Task, TaskId, TaskOp, TaskState, TaskTable, Token, Ttl,
};
use crate::store::{ListTasks, TaskStore};

#[derive(Debug, Clone)]
struct Step {
    what: What,
    pass_millis: u64,
}

#[derive(Debug, Clone)]
enum What {
    Enqueue(Vec<Added>),
    Lease { who: u128, max: u32, queues: usize, begin: u32, idle: bool },
    Beat { which: usize, old_token: bool, progress: bool, begun: bool },
    Settle { which: usize, old_token: bool, how: usize },
    SettleAll,
    Cancel { which: usize },
    Retry { which: usize },
    Update { which: usize, old: bool, what: usize },
    Want { which: usize },
    Recover { limit: u32 },
    Pause { queue: usize, on: bool },
    Archive,
    Purge,
}

#[derive(Debug, Clone)]
struct Added {
    number: u128,
    queue: usize,
    priority: i32,
    after: Option<u64>,
    key: Option<usize>,
    reuse: usize,
    lock: Option<usize>,
    room: Option<u32>,
    attempts: u32,
    wanted: Option<u64>,
}

const QUEUES: [&str; 2] = ["q", "r"];
/// Number of different tasks; small, so that the steps use the same tasks repeatedly.
const TASKS: usize = 12;

/// Runs `cases` random sequences through fresh engines, and compares every answer, every task and
/// every count with the table of the rules. Panics with the shortest sequence that differs.
pub fn tasks_agree_with_the_rules<F>(cases: u32, fresh: impl Fn() -> F)
where
    F: Future<Output = Fixture>,
{
    play_all(cases, prop::collection::vec(step(), 1..50), fresh, &play);
}

fn step() -> impl Strategy<Value = Step> {
    let added = (
        1..=TASKS as u128,
        0..QUEUES.len(),
        -1..2_i32,
        prop::option::weighted(0.3, 1..30_u64),
        prop::option::weighted(0.3, 0..2_usize),
        0..3_usize,
        prop::option::weighted(0.4, 0..2_usize),
        prop::option::weighted(0.4, 0..3_u32),
        (1..4_u32, prop::option::weighted(0.2, 1..30_u64)),
    )
        .prop_map(|(number, queue, priority, after, key, reuse, lock, room, (attempts, wanted))| Added {
            number,
            queue,
            priority,
            after,
            key,
            reuse,
            lock,
            room,
            attempts,
            wanted,
        });
    let which = || 0..TASKS;
    let old = || prop::bool::weighted(0.2);
    let what = prop_oneof![
        6 => prop::collection::vec(added, 1..5).prop_map(What::Enqueue),
        8 => (1..4_u128, 1..4_u32, 0..3_usize, 0..4_u32, any::<bool>())
            .prop_map(|(who, max, queues, begin, idle)| What::Lease { who, max, queues, begin, idle }),
        2 => (which(), old(), any::<bool>(), any::<bool>())
            .prop_map(|(which, old_token, progress, begun)| What::Beat { which, old_token, progress, begun }),
        6 => (which(), old(), 0..10_usize)
            .prop_map(|(which, old_token, how)| What::Settle { which, old_token, how }),
        1 => Just(What::SettleAll),
        1 => which().prop_map(|which| What::Cancel { which }),
        1 => which().prop_map(|which| What::Retry { which }),
        2 => (which(), old(), 0..6_usize).prop_map(|(which, old, what)| What::Update { which, old, what }),
        1 => which().prop_map(|which| What::Want { which }),
        2 => (1..4_u32).prop_map(|limit| What::Recover { limit }),
        1 => (0..QUEUES.len(), any::<bool>()).prop_map(|(queue, on)| What::Pause { queue, on }),
        1 => Just(What::Archive),
        1 => Just(What::Purge),
    ];
    let pass = prop_oneof![2 => Just(0), 3 => 1..3_000_u64, 1 => 3_000..40_000_u64];
    (what, pass).prop_map(|(what, pass_millis)| Step { what, pass_millis })
}

async fn play(f: &Fixture, steps: &[Step]) -> Result<(), String> {
    let mut table = TaskTable::default();
    for (number, step) in steps.iter().enumerate() {
        f.clock.advance(Duration::from_millis(step.pass_millis));
        let store = if number % 2 == 0 { &f.one } else { &f.two };
        let tasks = store.tasks().ok_or("an engine without tasks")?;
        step.play(tasks, &mut table, f).await.map_err(|why| format!("step {number}: {why}"))?;
        let other = if number % 2 == 0 { &f.two } else { &f.one };
        let tasks = other.tasks().ok_or("an engine without tasks")?;
        compare(tasks, &table).await.map_err(|why| format!("after step {number}: {why}"))?;
    }
    Ok(())
}

/// Compares everything that is stored with the table.
async fn compare(tasks: &dyn TaskStore, table: &TaskTable) -> Result<(), String> {
    let all = ListTasks { archived: true, limit: 1000, ..ListTasks::default() };
    let stored = tasks.list(&all).await.map_err(|error| error.to_string())?.items;
    let expected: Vec<Task> = table.tasks().rev().cloned().collect();
    for (stored, expected) in stored.iter().zip(&expected) {
        differs("a task", stored, expected)?;
    }
    differs("how many tasks there are", &stored.len(), &expected.len())?;
    differs("queues", &tasks.queues().await.map_err(|error| error.to_string())?, &table.queues())
}

impl Step {
    async fn play(&self, tasks: &dyn TaskStore, table: &mut TaskTable, f: &Fixture) -> Result<(), String> {
        let now = f.clock.now();
        let text = |error: crate::Error| error.to_string();
        match &self.what {
            What::Enqueue(added) => {
                let new: Vec<NewTask> = added.iter().map(Added::task).collect();
                let answer = tasks.enqueue(&new).await.map_err(text)?;
                differs("enqueue", &answer, &table.enqueue(&new, now))
            }
            What::Lease { who, max, queues, begin, idle } => {
                let queues =
                    [vec!["q"], vec!["r"], vec!["q", "r"]][*queues].iter().map(|name| queue(name)).collect();
                let ask = LeaseTasks::new(worker(*who), queues, *max, Ttl::from_secs(10));
                let ask = LeaseTasks { begin: *begin, idle: *idle, ..ask };
                let answer = tasks.lease(&ask).await.map_err(text)?;
                differs("lease", &answer, &table.lease(&ask, now))
            }
            What::Beat { which, old_token, progress, begun } => {
                let progress = progress.then(|| Progress::of(1, 2));
                let token = token(table, *which, *old_token);
                let held = [HeldTask { id: id(*which), token, progress, begun: *begun }];
                let ttl = Ttl::from_secs(10);
                let answer = tasks.heartbeat(&info(1), &held, ttl).await.map_err(text)?;
                differs("heartbeat", &answer, &table.heartbeat(&info(1), &held, ttl, now))
            }
            What::Settle { which, old_token, how } => {
                let settle = [Settle {
                    id: id(*which),
                    token: token(table, *which, *old_token),
                    verdict: verdict(*how),
                }];
                let answer = tasks.settle(&settle).await.map_err(text)?;
                differs("settle", &answer, &table.settle(&settle, now))
            }
            What::SettleAll => {
                let running = table.tasks().filter(|task| task.state == TaskState::Running);
                let settle = |task: &Task| Settle {
                    id: task.id,
                    token: task.token,
                    verdict: AttemptResult::Done(None),
                };
                let settle: Vec<Settle> = running.map(settle).collect();
                let answer = tasks.settle(&settle).await.map_err(text)?;
                differs("settle all", &answer, &table.settle(&settle, now))
            }
            What::Cancel { which } => self.change(tasks, table, *which, cancel(), f).await,
            What::Retry { which } => self.change(tasks, table, *which, retry(), f).await,
            What::Want { which } => {
                self.change(tasks, table, *which, TaskOp::Want(Ttl::from_secs(5)), f).await
            }
            What::Update { which, old, what } => {
                let version = table.get(id(*which)).map_or(1, |task| task.version);
                let mut change = Change { expected: version + u64::from(*old), ..Change::default() };
                match what {
                    0 => change.payload = Some(Payload::default()),
                    1 => change.priority = Priority::new(3).ok(),
                    2 => change.run_at = Some(now.plus(Ttl::from_secs(7))),
                    3 => change.run_at = Some(now),
                    4 => change.priority = Priority::new(-2).ok(),
                    _ => change.archived = Some(true),
                }
                self.change(tasks, table, *which, update(change), f).await
            }
            What::Recover { limit } => {
                let answer = tasks.recover(*limit).await.map_err(text)?;
                differs("recover", &answer, &table.recover(*limit, now))
            }
            What::Pause { queue: number, on } => {
                let name = queue(QUEUES[*number]);
                let pause = on.then(|| Pause { by: ada(), reason: None, at: now });
                let answer = tasks.pause(&name, pause.clone()).await.map_err(text)?;
                differs("pause", &answer, &table.pause(&name, pause))
            }
            What::Archive | What::Purge => {
                let which = FinishedFilter { queue: None, state: None, before: now, limit: 1000 };
                let answer = match self.what {
                    What::Archive => (tasks.archive(&which).await, table.archive(&which)),
                    _ => (tasks.purge(&which).await, table.purge(&which)),
                };
                differs("tidying up", &answer.0.map_err(text)?, &answer.1)
            }
        }
    }

    async fn change(
        &self,
        tasks: &dyn TaskStore,
        table: &mut TaskTable,
        which: usize,
        op: TaskOp,
        f: &Fixture,
    ) -> Result<(), String> {
        let answer = tasks.change(id(which), &op).await.map_err(|error| error.to_string())?;
        let expected = table.change(id(which), &op, f.clock.now()).zip(table.get(id(which)).cloned());
        differs("change", &answer, &expected)
    }
}

impl Added {
    fn task(&self) -> NewTask {
        let mut new = task(self.number)
            .in_queue(QUEUES[self.queue])
            .with_priority(self.priority)
            .attempts(self.attempts);
        if let Some(seconds) = self.after {
            new = new.after(seconds);
        }
        if let Some(key) = self.key {
            new = new.with_key(["k", "l"][key]);
            // Two tasks with the same key often have the same payload.
            new.payload = Payload::of(&(self.number % 2).to_string()).expect("short");
            new.reuse = [Reuse::Never, Reuse::Failed, Reuse::Finished][self.reuse];
        }
        if let Some(lock) = self.lock {
            new = new.with_lock(["one", "two"][lock]);
        }
        new.room = self.room;
        new.wanted = self.wanted.map(Ttl::from_secs);
        new
    }
}

fn id(which: usize) -> TaskId {
    task(which as u128 + 1).id
}

fn token(table: &TaskTable, which: usize, old: bool) -> Token {
    let token = table.get(id(which)).map(|task| task.token).unwrap_or_default();
    if old { Token::new(token.get().saturating_sub(1)).unwrap_or_default() } else { token }
}

fn verdict(how: usize) -> AttemptResult {
    match how {
        0 | 1 => AttemptResult::Done(Payload::new("[1]").ok()),
        2 => AttemptResult::Retry(why(), None),
        3 => AttemptResult::Retry(why(), Some(Ttl::from_secs(2))),
        4 => AttemptResult::Fail(why()),
        5 => AttemptResult::Snooze(Ttl::from_secs(3)),
        6 => AttemptResult::Abort(None),
        7 => AttemptResult::Abort(Some(why())),
        8 => AttemptResult::Defer(Ttl::from_secs(2)),
        _ => AttemptResult::Return,
    }
}
