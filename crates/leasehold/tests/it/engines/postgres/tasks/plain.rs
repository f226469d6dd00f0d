//! Leases and settlements of plain tasks, which have statements of their own: the answers are those of the
//! general statements, which also take over where a queue is not plain.

use std::time::Duration;

use leasehold::model::{
    AttemptResult, HeartbeatResult, HeldTask, LeaseTasks, NewTask, Settle, Settled, Task, TaskState, Token,
    Ttl,
};
use leasehold::store::{Store, TaskStore};
use leasehold::testing::task_fixture::{info, queue, task, worker};

use crate::engines::postgres::schema::{Schema, last_statements};
use crate::engines::support::clock;

const TTL: Ttl = Ttl::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
/// Part of the statement that leases plain tasks.
const PLAIN: &str = "level AS MATERIALIZED";

fn request(max: u32, begin: u32) -> LeaseTasks {
    LeaseTasks { begin, idle: false, ..LeaseTasks::new(worker(1), vec![queue("q")], max, TTL) }
}

fn done(task: &Task) -> Settle {
    Settle { id: task.id, token: task.token, result: AttemptResult::Done(None) }
}

/// Enqueues these tasks one by one, a second apart, leases from them three times, and returns the leased
/// tasks as they were returned.
async fn lease_all(tasks: &dyn TaskStore, new: &[NewTask], advance: impl Fn()) -> Vec<Task> {
    for new in new {
        tasks.enqueue(std::slice::from_ref(new)).await.unwrap();
        advance();
    }
    let mut leased = Vec::new();
    for (max, begin) in [(4, 2), (3, 0), (100, 5)] {
        leased.extend(tasks.lease(&request(max, begin)).await.unwrap().tasks);
        advance();
    }
    leased
}

#[tokio::test]
async fn a_plain_lease_returns_what_it_has_stored() {
    let (schema, clock) = (Schema::new(), clock());
    let application = format!("plain-{}", schema.name);
    let store = schema.store_at(&clock, &format!("application_name={application}")).await;
    let tasks = store.tasks().unwrap();
    let new: Vec<NewTask> = (1..=12).map(task).collect();
    let leased = lease_all(tasks, &new, || clock.advance(SECOND)).await;
    assert_eq!(
        leased.iter().map(|task| task.id).collect::<Vec<_>>(),
        new.iter().map(|new| new.id).collect::<Vec<_>>()
    );
    let begun: Vec<bool> = leased.iter().map(|task| task.begun).collect();
    let expected = [[true, true, false, false].as_slice(), &[false; 3], &[true; 5]].concat();
    assert_eq!(begun, expected);
    let last = last_statements(&schema.client().await, &application).await;
    assert!(last.iter().any(|sql| sql.contains(PLAIN)), "the general statement was used: {last:?}");
    for task in &leased {
        assert_eq!(tasks.get(task.id).await.unwrap().as_ref(), Some(task));
    }
    let counts = tasks.queues().await.unwrap()[0].counts;
    assert_eq!((counts.get(TaskState::Pending), counts.get(TaskState::Running)), (0, 12));
}

/// The same tasks in a queue that is not plain, because it has had another priority, and in one that is.
#[tokio::test]
async fn both_statements_lease_the_same() {
    let (clocks, schemas) = ([clock(), clock()], [Schema::new(), Schema::new()]);
    let plain = schemas[0].store_at(&clocks[0], "").await;
    let general = schemas[1].store_at(&clocks[1], "").await;
    let other = task(99).with_priority(7);
    general.tasks().unwrap().enqueue(std::slice::from_ref(&other)).await.unwrap();
    let first = general.tasks().unwrap().lease(&request(1, 1)).await.unwrap().tasks;
    assert_eq!(first[0].id, other.id);
    let new: Vec<NewTask> =
        (1..=12).map(|number| if number == 9 { task(9).with_key("k") } else { task(number) }).collect();
    let one = lease_all(plain.tasks().unwrap(), &new, || clocks[0].advance(SECOND)).await;
    let two = lease_all(general.tasks().unwrap(), &new, || clocks[1].advance(SECOND)).await;
    assert_eq!(one, two);
}

#[tokio::test]
async fn only_the_holder_of_the_token_settles() {
    let schema = Schema::new();
    let store = schema.store().await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&(1..=3).map(task).collect::<Vec<_>>()).await.unwrap();
    let leased = tasks.lease(&request(3, 3)).await.unwrap().tasks;
    // The token of another task of the same call, and one that is too old.
    let older = Token::new(leased[0].token.get() - 1).unwrap();
    let settle = [done(&leased[0]), Settle { token: older, ..done(&leased[1]) }, done(&leased[2])];
    let settled = tasks.settle(&settle).await.unwrap();
    let succeeded = Settled::Now(TaskState::Succeeded);
    assert_eq!(settled, [succeeded, Settled::Lost, succeeded]);
    // A repeated settlement returns the same.
    assert_eq!(tasks.settle(&settle).await.unwrap(), [succeeded, Settled::Lost, succeeded]);
    let counts = tasks.queues().await.unwrap()[0].counts;
    assert_eq!((counts.get(TaskState::Running), counts.get(TaskState::Succeeded)), (1, 2));
}

/// A worker has leased a task again, and its first attempt is still running: it sends both leases.
#[tokio::test]
async fn an_ended_lease_beside_the_current_one_of_its_task_is_lost() {
    let schema = Schema::new();
    let store = schema.store().await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&[task(1)]).await.unwrap();
    let first = tasks.lease(&request(1, 1)).await.unwrap().tasks.remove(0);
    let back = Settle { result: AttemptResult::Return, ..done(&first) };
    tasks.settle(&[back]).await.unwrap();
    let second = tasks.lease(&request(1, 1)).await.unwrap().tasks.remove(0);
    assert!(second.token > first.token);
    let held = [&first, &second].map(|task| HeldTask::new(task.id, task.token));
    let beats = tasks.heartbeat(&info(1), &held, TTL).await.unwrap();
    assert_eq!(beats, [HeartbeatResult::Lost, HeartbeatResult::Extended(None)]);
}

/// Each of these tasks must stop the statement for plain tasks: it would return the wrong columns or the wrong
/// order.
#[tokio::test]
async fn a_task_that_is_not_plain_is_leased_in_its_order() {
    let (schema, clock) = (Schema::new(), clock());
    let store = schema.store_at(&clock, "").await;
    let tasks = store.tasks().unwrap();
    let mut once = task(3);
    once.retries.attempts = 1;
    let new = [task(1), task(2).with_lock("l"), once, task(4)];
    for new in &new {
        tasks.enqueue(std::slice::from_ref(new)).await.unwrap();
        clock.advance(SECOND);
    }
    let first = tasks.lease(&request(10, 2)).await.unwrap();
    // The third task must not be prefetched.
    assert_eq!(first.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [new[0].id, new[1].id]);
    assert!(first.more);
    assert_eq!(first.tasks[1].lock, new[1].lock);
    let second = tasks.lease(&request(10, 10)).await.unwrap();
    assert_eq!(second.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [new[2].id, new[3].id]);
    // A returned task comes before those that arrive later, with its next attempt.
    let back = Settle { result: AttemptResult::Return, ..done(&second.tasks[1]) };
    tasks.settle(&[back]).await.unwrap();
    tasks.enqueue(&[task(5)]).await.unwrap();
    let third = tasks.lease(&request(10, 10)).await.unwrap().tasks;
    assert_eq!(third.iter().map(|task| task.id).collect::<Vec<_>>(), [new[3].id, task(5).id]);
    assert!(third[0].token > second.tasks[1].token);
}
