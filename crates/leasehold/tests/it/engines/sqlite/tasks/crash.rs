//! Five worker processes, two of which are killed while they work: no task is lost or settled twice.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::model::TaskState;
use leasehold::store::Store;
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::testing::task_fixture::task;

use crate::engines::process::Process;

const TASKS: u128 = 1000;
const WORKERS: usize = 5;
const BATCH: u32 = 10;

#[tokio::test]
async fn killed_workers_lose_no_task_and_settle_none_twice() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(SqliteOptions::new(folder.path().join("store.db"))).await.unwrap();
    let tasks = store.tasks().unwrap();
    let new: Vec<_> = (1..=TASKS).map(|number| task(number).attempts(10)).collect();
    tasks.enqueue(&new).await.unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let hold_in = |number| (number == 0).then_some(3);
    let mut workers: Vec<_> =
        (0..WORKERS).map(|number| Process::worker(&url, BATCH, 300, hold_in(number))).collect();
    // The first worker holds leases that it will never settle; the second may be in any state.
    let mut logs = vec![Vec::new(); WORKERS];
    logs[0] = workers[0].receive_until(|message| message == "holds");
    assert_eq!(logs[0].pop().as_deref(), Some("holds"));
    logs[1].extend(workers[1].receive());
    workers[0].kill();
    workers[1].kill();
    for (worker, log) in workers.iter_mut().zip(&mut logs) {
        log.extend(worker.receive_until(|_| false));
    }
    let counts = tasks.queues().await.unwrap()[0].counts;
    assert_eq!(counts.get(TaskState::Succeeded), u64::try_from(TASKS).unwrap());
    // A settlement that was confirmed is the only one of its task, with the token that is stored.
    let mut settlements: BTreeMap<String, u64> = BTreeMap::new();
    let mut active = BTreeSet::new();
    for (number, log) in logs.iter().enumerate() {
        // A killed worker may have written a part of its last line.
        for (id, token) in log.iter().filter_map(|line| line.split_once(' ')) {
            let Ok(token) = token.parse() else { continue };
            active.insert(number);
            let earlier = settlements.insert(id.to_owned(), token);
            assert_eq!(earlier, None, "{id} was settled twice");
        }
    }
    assert!(active.len() > 2, "only workers {active:?} settled tasks");
    let (mut confirmed, mut recovered) = (0, 0);
    for new in &new {
        let stored = tasks.get(new.id).await.unwrap().unwrap();
        assert_eq!(stored.state, TaskState::Succeeded);
        recovered += usize::from(stored.attempt > 1);
        if let Some(token) = settlements.get(&stored.id.to_string()) {
            assert_eq!(stored.token.get(), *token);
            confirmed += 1;
        }
    }
    // A killed worker may have settled a batch without logging it; the first worker settles none.
    assert!(
        confirmed + (WORKERS - 1) * BATCH as usize >= new.len(),
        "{confirmed} settlements were confirmed"
    );
    assert!(recovered >= BATCH as usize, "only {recovered} tasks were retried");
}
