//! Records that the server has lost, by an eviction for example, while the indexes still have their ids:
//! they block no other task. Also lost counts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{
    Enqueued, FinishedFilter, LeaseTasks, LockName, NewTask, Payload, QueueName, TaskId, TaskState,
    Timestamp, Ttl, WorkerId,
};
use leasehold::store::Clock;
use leasehold::store::redis::RedisStore;

use super::support::{count, done, lease, new_task, new_tasks, tasks};
use crate::engines::redis::server::Server;
use crate::engines::redis::support::open;

const TTL: Ttl = Ttl::from_secs(30);

async fn setup() -> (Server, Clock, Arc<RedisStore>) {
    let (server, clock) = (Server::start(&[]).await, crate::engines::support::clock());
    let store = open(&server.url(), "p", &clock).await;
    (server, clock, store)
}

/// Removes the records of all tasks, and nothing else.
async fn lose_records(server: &Server) {
    assert_eq!(server.command::<u64>(&["DEL", "p:{t}:tasks"]).await.unwrap(), 1);
}

fn locked() -> NewTask {
    NewTask { lock: LockName::new("l").ok(), ..new_task() }
}

async fn leased_ids(store: &RedisStore) -> Vec<TaskId> {
    lease(store, 9, TTL).await.tasks.iter().map(|task| task.id).collect()
}

#[tokio::test]
async fn a_lost_task_does_not_keep_its_lock() {
    let (server, clock, store) = setup().await;
    // One task has the lock, and two wait for it.
    tasks(&*store).enqueue(&[locked(), locked(), locked()]).await.unwrap();
    lose_records(&server).await;
    let (first, second) = (locked(), locked());
    for new in [&first, &second] {
        clock.advance(Duration::from_secs(1));
        tasks(&*store).enqueue(std::slice::from_ref(new)).await.unwrap();
    }
    let leased = lease(&*store, 9, TTL).await.tasks;
    assert_eq!(leased.iter().map(|task| task.id).collect::<Vec<_>>(), [first.id]);
    tasks(&*store).settle(&[done(&leased[0])]).await.unwrap();
    assert_eq!(leased_ids(&store).await, [second.id]);
}

#[tokio::test]
async fn many_lost_tasks_do_not_keep_their_lock() {
    let (server, clock, store) = setup().await;
    for _ in 0..3 {
        let lost: Vec<_> = (0..500).map(|_| locked()).collect();
        tasks(&*store).enqueue(&lost).await.unwrap();
    }
    lose_records(&server).await;
    clock.advance(Duration::from_secs(1));
    // No other call for this lock follows.
    let new = locked();
    tasks(&*store).enqueue(std::slice::from_ref(&new)).await.unwrap();
    assert_eq!(leased_ids(&store).await, [new.id]);
    assert_eq!(count(&*store, TaskState::Blocked).await, 0);
}

/// One script searches the tasks of a limited number of locks. The next recovery searches those of the others.
#[tokio::test]
async fn lost_tasks_of_many_locks_do_not_keep_their_locks() {
    let (server, clock, store) = setup().await;
    let task = |number: u32| NewTask { lock: LockName::new(format!("lock:{number}")).ok(), ..new_task() };
    let one_for_each = || (0..150).map(task).collect::<Vec<_>>();
    // One task has each lock, and another one waits for it.
    tasks(&*store).enqueue(&one_for_each()).await.unwrap();
    tasks(&*store).enqueue(&one_for_each()).await.unwrap();
    lose_records(&server).await;
    clock.advance(Duration::from_secs(1));
    let new = one_for_each();
    tasks(&*store).enqueue(&new).await.unwrap();
    tasks(&*store).recover(10).await.unwrap();
    assert_eq!(count(&*store, TaskState::Blocked).await, 0);
    assert_eq!(server.command::<u64>(&["EXISTS", "p:{t}:unelected"]).await.unwrap(), 0);
    let leased = lease(&*store, 200, TTL).await.tasks;
    let ids = |ids: Vec<TaskId>| ids.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(ids(leased.iter().map(|task| task.id).collect()), ids(new.iter().map(|new| new.id).collect()));
    assert_eq!(count(&*store, TaskState::Pending).await, 0);
}

/// Also those for which the script that leases has no time to search.
#[tokio::test]
async fn lost_tasks_of_many_queues_are_not_counted() {
    let (server, _, store) = setup().await;
    let queues: Vec<_> = (0..120).map(|queue| QueueName::new(format!("q{queue}")).unwrap()).collect();
    let new: Vec<_> = queues.iter().map(|queue| NewTask { queue: queue.clone(), ..new_task() }).collect();
    tasks(&*store).enqueue(&new).await.unwrap();
    lose_records(&server).await;
    let request = LeaseTasks::new(WorkerId::from_uuid(uuid::Uuid::now_v7()), queues, 50, TTL);
    assert!(tasks(&*store).lease(&request).await.unwrap().tasks.is_empty());
    let queues = tasks(&*store).queues().await.unwrap();
    let pending: u64 = queues.iter().map(|status| status.counts.get(TaskState::Pending)).sum();
    assert_eq!((queues.len(), pending), (120, 0));
    assert_eq!(server.command::<u64>(&["EXISTS", "p:{t}:ids"]).await.unwrap(), 0);
}

/// Otherwise no call would ever delete their payloads, which are stored beside the records.
#[tokio::test]
async fn nothing_remains_of_lost_tasks() {
    let (server, clock, store) = setup().await;
    let payload = Payload::of(&"x".repeat(1000)).unwrap();
    let large = |new: NewTask| NewTask { payload: payload.clone(), ..new };
    tasks(&*store).enqueue(&[large(new_task())]).await.unwrap();
    assert_eq!(lease(&*store, 1, TTL).await.tasks.len(), 1);
    // Two are pending, one of them with a lock, and the others blocked and scheduled.
    let others = [new_task(), locked(), locked(), new_task().after(10)].map(large);
    tasks(&*store).enqueue(&others).await.unwrap();
    assert_eq!(server.command::<u64>(&["HLEN", "p:{t}:payload"]).await.unwrap(), 5);
    lose_records(&server).await;
    clock.advance(Duration::from_secs(31));
    let new = locked();
    tasks(&*store).enqueue(std::slice::from_ref(&new)).await.unwrap();
    assert_eq!(leased_ids(&store).await, [new.id]);
    assert_eq!(server.command::<u64>(&["HLEN", "p:{t}:payload"]).await.unwrap(), 0);
    assert_eq!(server.command::<u64>(&["ZCARD", "p:{t}:ids"]).await.unwrap(), 1);
}

#[tokio::test]
async fn a_task_behind_many_lost_tasks_is_leased_by_the_next_call() {
    let (server, clock, store) = setup().await;
    for _ in 0..3 {
        tasks(&*store).enqueue(&new_tasks(500)).await.unwrap();
    }
    lose_records(&server).await;
    clock.advance(Duration::from_secs(1));
    let new = new_task();
    tasks(&*store).enqueue(std::slice::from_ref(&new)).await.unwrap();
    let leased = lease(&*store, 1, TTL).await.tasks;
    assert_eq!(leased.iter().map(|task| task.id).collect::<Vec<_>>(), [new.id]);
    assert_eq!(count(&*store, TaskState::Pending).await, 0);
}

#[tokio::test]
async fn queues_are_listed_after_their_counts_were_lost() {
    let (server, _, store) = setup().await;
    tasks(&*store).enqueue(&[new_task()]).await.unwrap();
    let leased = lease(&*store, 1, TTL).await.tasks;
    assert_eq!(server.command::<u64>(&["DEL", "p:{t}:q:q"]).await.unwrap(), 1);
    tasks(&*store).settle(&[done(&leased[0])]).await.unwrap();
    assert_eq!(count(&*store, TaskState::Running).await, 0);
    assert_eq!(count(&*store, TaskState::Succeeded).await, 1);
}

#[tokio::test]
async fn a_lost_task_does_not_fill_the_queue_of_its_lock() {
    let (server, _, store) = setup().await;
    let alone = || [NewTask { lock_queue_limit: Some(0), ..locked() }];
    tasks(&*store).enqueue(&alone()).await.unwrap();
    lose_records(&server).await;
    let new = alone();
    assert_eq!(tasks(&*store).enqueue(&new).await.unwrap(), [Enqueued::Added(new[0].id)]);
    assert_eq!(tasks(&*store).enqueue(&alone()).await.unwrap(), [Enqueued::LockQueueFull(new[0].id)]);
    assert_eq!(leased_ids(&store).await, [new[0].id]);
}

#[tokio::test]
async fn a_workflow_starts_beside_a_lost_execution() {
    let (server, _, store) = setup().await;
    let leasehold = Leasehold::with_store(store).unwrap();
    let first = leasehold.workflow("deploy").start("v1").await.unwrap();
    lose_records(&server).await;
    let start = leasehold.workflow("deploy").start("v1");
    let second = tokio::time::timeout(Duration::from_secs(30), start).await.expect("the start ends").unwrap();
    assert_ne!(first.execution().unwrap().id, second.execution().unwrap().id);
}

#[tokio::test]
async fn expired_leases_behind_lost_tasks_are_ended() {
    let (server, clock, store) = setup().await;
    // More than one script examines.
    tasks(&*store).enqueue(&new_tasks(150)).await.unwrap();
    assert_eq!(lease(&*store, 200, TTL).await.tasks.len(), 150);
    lose_records(&server).await;
    tasks(&*store).enqueue(&[new_task()]).await.unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(lease(&*store, 9, TTL).await.tasks.len(), 1);
    clock.advance(Duration::from_secs(31));
    assert_eq!(tasks(&*store).recover(1000).await.unwrap().returned, 1);
    assert_eq!(server.command::<u64>(&["ZCARD", "p:{t}:running"]).await.unwrap(), 0);
}

#[tokio::test]
async fn due_tasks_behind_lost_tasks_are_promoted() {
    let (server, clock, store) = setup().await;
    // As many as one script examines.
    let lost: Vec<_> = new_tasks(1000).into_iter().map(|new| new.after(10)).collect();
    tasks(&*store).enqueue(&lost).await.unwrap();
    lose_records(&server).await;
    let new = new_task().after(20);
    tasks(&*store).enqueue(std::slice::from_ref(&new)).await.unwrap();
    clock.advance(Duration::from_secs(21));
    assert_eq!(tasks(&*store).recover(10).await.unwrap().promoted, 0);
    assert_eq!(count(&*store, TaskState::Scheduled).await, 1);
    assert_eq!(leased_ids(&store).await, [new.id]);
}

#[tokio::test]
async fn finished_tasks_are_purged_although_some_are_lost() {
    let (server, clock, store) = setup().await;
    let finish = async || {
        tasks(&*store).enqueue(&[new_task()]).await.unwrap();
        let leased = lease(&*store, 1, TTL).await.tasks;
        tasks(&*store).settle(&[done(&leased[0])]).await.unwrap();
        clock.advance(Duration::from_secs(1));
    };
    finish().await;
    lose_records(&server).await;
    finish().await;
    let filter =
        FinishedFilter { queue: None, state: None, before: Timestamp::from_micros(u64::MAX), limit: 9 };
    tasks(&*store).archive(&filter).await.unwrap();
    assert_eq!(count(&*store, TaskState::Succeeded).await, 0);
    tasks(&*store).purge(&filter).await.unwrap();
    for key in ["p:{t}:f4:q", "p:{t}:a4:q", "p:{t}:tasks", "p:{t}:ids"] {
        assert_eq!(server.command::<u64>(&["EXISTS", key]).await.unwrap(), 0, "{key}");
    }
}
