//! Tasks that are enqueued in a transaction of the caller.

use std::time::Duration;

use leasehold::model::{Enqueued, TaskState};
use leasehold::store::Store;
use leasehold::testing::task_fixture::{queue, task, worker};

use crate::engines::postgres::schema::Schema;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_user_transaction_appear_with_its_commit() {
    let schema = Schema::new();
    let (store, other) = (schema.store().await, schema.store().await);
    let (tasks, mut client) = (store.tasks().unwrap(), schema.client().await);
    let all = [task(1), task(2).with_key("k").with_lock("l"), task(3).with_lock("l"), task(4).after(60)];
    for new in [&all[..1], &all[..]] {
        let transaction = client.transaction().await.unwrap();
        let added = store.enqueue_in_transaction(&transaction, new).await.unwrap();
        assert_eq!(added.answers[0], Enqueued::Added(task(1).id));
        assert!(tasks.get(task(1).id).await.unwrap().is_none(), "not before the commit");
        // Other callers that add to the same new queue do not wait for this transaction.
        tasks.enqueue(&[task(100)]).await.unwrap();
        transaction.rollback().await.unwrap();
        added.wake.after_commit();
    }
    assert!(tasks.get(task(1).id).await.unwrap().is_none(), "rolled back");
    let arrivals = other.tasks().unwrap();
    // Until the listener of the other store is connected.
    while !woken(&*store, arrivals).await {}
    let transaction = client.transaction().await.unwrap();
    let added = store.enqueue_in_transaction(&transaction, &all).await.unwrap();
    assert_eq!(added.answers, all.each_ref().map(|new| Enqueued::Added(new.id)));
    let mut waiting = arrivals.subscribe_queues(&[queue("q")]);
    transaction.commit().await.unwrap();
    added.wake.after_commit();
    let started = std::time::Instant::now();
    waiting.next(Some(Duration::from_secs(20))).await;
    assert!(
        started.elapsed() < Duration::from_millis(900),
        "found by polling, not by a notification: {:?}",
        started.elapsed()
    );
    let mut states = Vec::new();
    for number in 1..=4 {
        states.push(tasks.get(task(number).id).await.unwrap().unwrap().state);
    }
    assert_eq!(states, [TaskState::Pending, TaskState::Pending, TaskState::Blocked, TaskState::Scheduled]);
    // A worker whose cursor has advanced finds a task that was added before and committed after.
    let request = leasehold::model::LeaseTasks::new(
        worker(1),
        vec![queue("q")],
        100,
        leasehold::model::Ttl::from_secs(60),
    );
    let transaction = client.transaction().await.unwrap();
    let late = store.enqueue_in_transaction(&transaction, &[task(5)]).await.unwrap();
    tasks.enqueue(&[task(6)]).await.unwrap();
    assert!(tasks.lease(&request).await.unwrap().tasks.iter().any(|leased| leased.id == task(6).id));
    transaction.commit().await.unwrap();
    late.wake.after_commit();
    assert_eq!(
        tasks.lease(&request).await.unwrap().tasks.iter().map(|leased| leased.id).collect::<Vec<_>>(),
        [task(5).id]
    );
}

/// Whether a notification from one store reaches a worker on another.
async fn woken(from: &impl Store, to: &dyn leasehold::store::TaskStore) -> bool {
    let mut waiting = to.subscribe_queues(&[queue("hello")]);
    let id = leasehold::model::TaskId::from_uuid(uuid::Uuid::now_v7());
    let new = leasehold::model::NewTask { id, ..task(1).in_queue("hello") };
    from.tasks().unwrap().enqueue(&[new]).await.unwrap();
    let started = std::time::Instant::now();
    waiting.next(Some(Duration::from_millis(180))).await;
    started.elapsed() < Duration::from_millis(180)
}
