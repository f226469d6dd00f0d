//! Random operations on tasks through an engine and through the table of leasehold-model: every
//! answer, every task and every count must be equal.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::Fixture;
use super::random::{differs, play_all};
use super::task_fixture::{ada, cancel, info, queue, retry, task, update, why, worker};
use crate::model::{
    AttemptResult, Fingerprint, FinishedFilter, HeldTask, LeaseTasks, NewTask, Pause, Payload, Priority,
    Progress, RetryPolicy, Reuse, Settle, Task, TaskId, TaskKey, TaskOp, TaskState, TaskTable, TaskUpdate,
    Timestamp, Token, Ttl, When,
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
    Lease { who: u128, max: u32, queues: usize, begin: u32, idle: bool, waits: bool },
    Beat { who: u128, held: Vec<Beat> },
    Settle(Vec<End>),
    SettleAll,
    Cancel { which: usize },
    Retry { which: usize },
    Update { which: usize, old: bool, what: usize },
    RenewRunner { which: usize },
    Recover { limit: u32 },
    Pause { queue: usize, on: bool },
    Archive { queue: Option<usize>, state: Option<usize> },
    Purge { queue: Option<usize>, state: Option<usize> },
}

#[derive(Debug, Clone)]
struct Beat {
    which: usize,
    old_token: bool,
    progress: bool,
    begun: bool,
}

#[derive(Debug, Clone)]
struct End {
    which: usize,
    old_token: bool,
    how: usize,
}

#[derive(Debug, Clone)]
struct Added {
    number: u128,
    queue: usize,
    priority: i32,
    /// Seconds until the task is due; negative if it was due in the past.
    due: Option<i64>,
    key: Option<usize>,
    reuse: usize,
    fingerprint: Option<u64>,
    lock: Option<usize>,
    room: Option<u32>,
    attempts: u32,
    runner_ttl: Option<u64>,
    timeout: Option<u64>,
}

const QUEUES: [&str; 3] = ["q", "r", "s"];
/// Sets of queues that workers lease from.
const LEASED: [&[&str]; 6] = [&["q"], &["r"], &["s"], &["q", "r"], &["s", "q"], &["q", "r", "s"]];
const KEYS: [&str; 2] = ["k", "l"];
/// Number of different tasks; small, so that the steps use the same tasks repeatedly.
const TASKS: usize = 15;

/// Runs `cases` random sequences through fresh engines, and compares every answer, every task and
/// every count with the table of the rules. Panics with the shortest sequence that differs.
#[track_caller]
pub fn tasks_agree_with_the_rules<F>(cases: u32, fresh: impl Fn() -> F)
where
    F: Future<Output = Fixture>,
{
    play_all(cases, prop::collection::vec(step(), 1..50), fresh, &play);
}

fn step() -> impl Strategy<Value = Step> {
    let which = || 0..TASKS;
    let old = || prop::bool::weighted(0.2);
    let beat = (which(), old(), any::<bool>(), any::<bool>())
        .prop_map(|(which, old_token, progress, begun)| Beat { which, old_token, progress, begun });
    let end = (which(), old(), 0..10_usize).prop_map(|(which, old_token, how)| End { which, old_token, how });
    let filter = || {
        (prop::option::weighted(0.3, 0..QUEUES.len()), prop::option::weighted(0.3, 0..TaskState::ALL.len()))
    };
    let what = prop_oneof![
        6 => prop::collection::vec(added(), 1..5).prop_map(What::Enqueue),
        8 => (1..6_u128, 1..5_u32, 0..LEASED.len(), 0..4_u32, any::<bool>(), any::<bool>()).prop_map(
            |(who, max, queues, begin, idle, waits)| What::Lease { who, max, queues, begin, idle, waits }
        ),
        2 => (1..6_u128, prop::collection::vec(beat, 1..4)).prop_map(|(who, held)| What::Beat { who, held }),
        6 => prop::collection::vec(end, 1..4).prop_map(What::Settle),
        1 => Just(What::SettleAll),
        1 => which().prop_map(|which| What::Cancel { which }),
        1 => which().prop_map(|which| What::Retry { which }),
        3 => (which(), old(), 0..9_usize).prop_map(|(which, old, what)| What::Update { which, old, what }),
        1 => which().prop_map(|which| What::RenewRunner { which }),
        2 => (1..4_u32).prop_map(|limit| What::Recover { limit }),
        1 => (0..QUEUES.len(), any::<bool>()).prop_map(|(queue, on)| What::Pause { queue, on }),
        1 => filter().prop_map(|(queue, state)| What::Archive { queue, state }),
        1 => filter().prop_map(|(queue, state)| What::Purge { queue, state }),
    ];
    let pass = prop_oneof![2 => Just(0), 3 => 1..3_000_u64, 1 => 3_000..40_000_u64];
    (what, pass).prop_map(|(what, pass_millis)| Step { what, pass_millis })
}

fn added() -> impl Strategy<Value = Added> {
    let due = prop_oneof![6 => Just(None), 1 => (-20..0_i64).prop_map(Some), 3 => (1..30_i64).prop_map(Some)];
    (
        1..=TASKS as u128,
        0..QUEUES.len(),
        -1..2_i32,
        due,
        prop::option::weighted(0.3, 0..KEYS.len()),
        (0..3_usize, prop::option::weighted(0.2, 1..3_u64)),
        prop::option::weighted(0.4, 0..3_usize),
        prop::option::weighted(0.4, 0..3_u32),
        (1..4_u32, prop::option::weighted(0.2, 1..30_u64), prop::option::weighted(0.2, 1..30_u64)),
    )
        .prop_map(|(number, queue, priority, due, key, reuse, lock, room, rest)| Added {
            number,
            queue,
            priority,
            due,
            key,
            reuse: reuse.0,
            fingerprint: reuse.1,
            lock,
            room,
            attempts: rest.0,
            runner_ttl: rest.1,
            timeout: rest.2,
        })
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
    let tasks = f.one.tasks().ok_or("an engine without tasks")?;
    for (name, key) in QUEUES.into_iter().flat_map(|name| KEYS.map(|key| (name, key))) {
        let (name, key) = (queue(name), TaskKey::new(key).expect("a good key"));
        let owner = tasks.get_by_key(&name, &key).await.map_err(|error| error.to_string())?;
        differs("task with a key", &owner.as_ref(), &table.get_by_key(&name, &key))?;
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
                let new: Vec<NewTask> = added.iter().map(|added| added.task(now)).collect();
                let answer = tasks.enqueue(&new).await.map_err(text)?;
                differs("enqueue", &answer, &table.enqueue(&new, now))
            }
            What::Lease { who, max, queues, begin, idle, waits } => {
                let queues = LEASED[*queues].iter().map(|name| queue(name)).collect();
                let request = LeaseTasks::new(worker(*who), queues, *max, Ttl::from_secs(10));
                let request = LeaseTasks { begin: *begin, idle: *idle, waits_for_locks: *waits, ..request };
                let answer = tasks.lease(&request).await.map_err(text)?;
                differs("lease", &answer, &table.lease(&request, now))
            }
            What::Beat { who, held } => {
                let held = once_each(held, |beat| beat.which).map(|beat| HeldTask {
                    id: id(beat.which),
                    token: token(table, beat.which, beat.old_token),
                    progress: beat.progress.then(|| Progress::of(1, 2)),
                    begun: beat.begun,
                });
                let (held, ttl) = (held.collect::<Vec<_>>(), Ttl::from_secs(10));
                let answer = tasks.heartbeat(&info(*who), &held, ttl).await.map_err(text)?;
                differs("heartbeat", &answer, &table.heartbeat(&info(*who), &held, ttl, now))
            }
            What::Settle(ends) => {
                // The end of one task may make the next task of its lock pending.
                let lock = |end: &End| table.get(id(end.which)).and_then(|task| task.lock.clone());
                let ends = once_each(ends, |end| end.which);
                let ends = once_each(ends, |end| lock(end).ok_or(end.which));
                let settle = ends.map(|end| Settle {
                    id: id(end.which),
                    token: token(table, end.which, end.old_token),
                    result: verdict(end.how),
                });
                let settle: Vec<Settle> = settle.collect();
                let answer = tasks.settle(&settle).await.map_err(text)?;
                differs("settle", &answer, &table.settle(&settle, now))
            }
            What::SettleAll => {
                let running = table.tasks().filter(|task| task.state == TaskState::Running);
                let settle = |task: &Task| Settle {
                    id: task.id,
                    token: task.token,
                    result: AttemptResult::Done(None),
                };
                let settle: Vec<Settle> = running.map(settle).collect();
                let answer = tasks.settle(&settle).await.map_err(text)?;
                differs("settle all", &answer, &table.settle(&settle, now))
            }
            What::Cancel { which } => self.change(tasks, table, *which, cancel(), f).await,
            What::Retry { which } => self.change(tasks, table, *which, retry(), f).await,
            What::RenewRunner { which } => {
                self.change(tasks, table, *which, TaskOp::RenewRunner(Ttl::from_secs(5)), f).await
            }
            What::Update { which, old, what } => {
                let version = table.get(id(*which)).map_or(1, |task| task.version);
                let mut change = TaskUpdate { expected: version + u64::from(*old), ..TaskUpdate::default() };
                amend(&mut change, *what, now);
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
            What::Archive { queue, state } => {
                let filter = finished(*queue, *state, now);
                let answer = tasks.archive(&filter).await.map_err(text)?;
                differs("archive", &answer, &table.archive(&filter))
            }
            What::Purge { queue, state } => {
                let filter = finished(*queue, *state, now);
                let answer = tasks.purge(&filter).await.map_err(text)?;
                differs("purge", &answer, &table.purge(&filter))
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
    fn task(&self, now: Timestamp) -> NewTask {
        let mut new = task(self.number)
            .in_queue(QUEUES[self.queue])
            .with_priority(self.priority)
            .attempts(self.attempts);
        if let Some(seconds) = self.due {
            new = match u64::try_from(seconds) {
                // Half of the later ones are given as a time.
                Ok(seconds) if seconds % 2 == 0 => new.after(seconds),
                Ok(seconds) => NewTask { when: When::At(now.plus(Ttl::from_secs(seconds))), ..new },
                Err(_) => {
                    let ago = Duration::from_secs(seconds.unsigned_abs());
                    NewTask { when: When::At(now.minus(ago)), ..new }
                }
            };
        }
        if let Some(key) = self.key {
            new = new.with_key(KEYS[key]);
            // Two tasks with the same key often have the same payload.
            new.payload = Payload::of(&(self.number % 2).to_string()).expect("short");
            new.fingerprint = self.fingerprint.map(Fingerprint::from_u64);
            new.reuse = [Reuse::Never, Reuse::Failed, Reuse::Finished][self.reuse];
        }
        if let Some(lock) = self.lock {
            new = new.with_lock(["one", "two", "three"][lock]);
        }
        new.lock_queue_limit = self.room;
        new.runner_ttl = self.runner_ttl.map(Ttl::from_secs);
        new.timeout = self.timeout.map(Ttl::from_secs);
        new
    }
}

/// Returns the first item of each group: an engine may process the tasks of one call in any order.
fn once_each<'a, T: 'a, G: Ord>(
    items: impl IntoIterator<Item = &'a T>,
    group: impl Fn(&T) -> G,
) -> impl Iterator<Item = &'a T> {
    let mut seen = BTreeSet::new();
    items.into_iter().filter(move |item| seen.insert(group(item)))
}

/// Sets the fields of one of several kinds of updates.
fn amend(change: &mut TaskUpdate, kind: usize, now: Timestamp) {
    let later = now.plus(Ttl::from_secs(7));
    match kind {
        0 => change.payload = Some(Payload::default()),
        1 => change.priority = Priority::new(3).ok(),
        2 => change.run_at = Some(later),
        3 => change.run_at = Some(now),
        4 => change.priority = Priority::new(-2).ok(),
        5 => change.archived = Some(true),
        6 => change.archived = Some(false),
        7 => change.retries = Some(RetryPolicy { attempts: 2, ..RetryPolicy::default() }),
        _ => {
            change.payload = Payload::new("[2]").ok();
            change.priority = Priority::new(1).ok();
            change.run_at = Some(later);
        }
    }
}

fn finished(queue_number: Option<usize>, state: Option<usize>, before: Timestamp) -> FinishedFilter {
    let queue = queue_number.map(|number| queue(QUEUES[number]));
    FinishedFilter { queue, state: state.map(|state| TaskState::ALL[state]), before, limit: 1000 }
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
