//! Migration of tasks from schema version 3.

use leasehold::model::TaskState;
use leasehold::store::Store;
use leasehold::testing::Fixture;
use leasehold::testing::shop::{Shop, numbers, task};
use rusqlite::Connection;

use crate::engines::sqlite::suite::open;
use crate::engines::support::clock;

/// Reverts the tables to version 3, which had one head for all queues of a lock.
const BACK_TO_VERSION_3: &str = "
    DROP INDEX leasehold_tasks_head;
    DROP INDEX leasehold_tasks_blocked;
    DROP INDEX leasehold_tasks_wanted;
    DROP INDEX leasehold_tasks_due;
    DROP INDEX leasehold_tasks_finished;
    ALTER TABLE leasehold_tasks DROP COLUMN wanted_until;
    ALTER TABLE leasehold_tasks DROP COLUMN ahead;
    ALTER TABLE leasehold_tasks DROP COLUMN expiries;
    DROP TABLE tickets;
    DELETE FROM meta WHERE key IN ('boot_ids', 'wall_offset', 'boottime');
    CREATE INDEX leasehold_tasks_blocked ON leasehold_tasks (lock, rank, run_at, id) WHERE state = 1;
    UPDATE leasehold_tasks SET state = 1 WHERE queue = (SELECT id FROM leasehold_queues WHERE name = 'other');
    UPDATE leasehold_queues SET pending = 0, blocked = 2 WHERE name = 'other';
    CREATE UNIQUE INDEX leasehold_tasks_head ON leasehold_tasks (lock) WHERE lock IS NOT NULL AND state IN (2, 3);
    PRAGMA user_version = 3;
";

#[tokio::test]
async fn tasks_of_schema_version_3_wait_only_for_tasks_of_their_queue() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = folder.path().join("store.db");
    let store = open(&path, &clock, 1).await;
    let other = |number| task(number).in_queue("other").with_lock("l");
    let new = [task(1).with_lock("l"), other(2), other(3), task(4).with_lock("l")];
    store.tasks().unwrap().enqueue(&new).await.unwrap();
    drop(store);
    Connection::open(&path).unwrap().execute_batch(BACK_TO_VERSION_3).unwrap();
    let (one, two) = (open(&path, &clock, 1).await, open(&path, &clock, 1).await);
    let shop = Shop::from(Fixture::new(one, two, clock, folder));
    let states = [TaskState::Pending, TaskState::Pending, TaskState::Blocked, TaskState::Blocked];
    for (number, state) in (1..).zip(states) {
        assert_eq!(shop.state(number).await, state, "task {number}");
    }
    let counts = shop.tasks().queues().await.unwrap();
    for status in counts {
        let counts = (status.counts.get(TaskState::Pending), status.counts.get(TaskState::Blocked));
        assert_eq!(counts, (1, 1), "{}", status.queue);
    }
    let leased = shop.lease_from(1, 10, &["other"]).await.tasks;
    assert_eq!(numbers(&leased), [2]);
    shop.done(&leased[0]).await;
    assert_eq!(numbers(&shop.lease_from(1, 10, &["q", "other"]).await.tasks), [1, 3]);
}
