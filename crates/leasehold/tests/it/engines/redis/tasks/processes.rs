//! Five processes and a thousand tasks, one process killed: no task is lost or settled twice.

use std::collections::BTreeSet;

use leasehold::model::TaskState;
use leasehold::store::StoreUrl;
use leasehold::store::redis::{RedisOptions, RedisStore};

use super::support::{count, new_tasks, tasks};
use crate::engines::process::Process;
use crate::engines::redis::support::prefix;
use crate::engines::support::engine_at;

const TASKS: usize = 1000;

async fn a_thousand_tasks_with_one_killed(url: &str) {
    let store = RedisStore::connect(RedisOptions::from_url(&StoreUrl::parse(url).unwrap()).unwrap()).await;
    let store = store.unwrap();
    tasks(&store).enqueue(&new_tasks(TASKS)).await.unwrap();
    let mut doomed = Process::worker(url, 10, 2000, Some(4));
    let processes: Vec<_> = (0..4).map(|_| Process::worker(url, 10, 2000, None)).collect();
    let mut settled = doomed.receive_until(|message| message == "holds");
    assert_eq!(settled.pop().as_deref(), Some("holds"));
    doomed.kill();
    for mut process in processes {
        settled.extend(process.receive_until(|_| false));
    }
    let distinct: BTreeSet<_> = settled.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!((distinct.len(), settled.len()), (TASKS, TASKS), "each settled once");
    assert_eq!(count(&store, TaskState::Succeeded).await, TASKS as u64);
    let mut again = 0;
    for id in distinct {
        let task = tasks(&store).get(id.parse().unwrap()).await.unwrap().unwrap();
        // One change for each lease, one for each recovery, and one for the settlement.
        assert_eq!((task.state, task.version), (TaskState::Succeeded, u64::from(task.attempt) * 2 + 1));
        again += u32::from(task.attempt > 1);
    }
    assert!(again >= 10, "other processes did the tasks of the killed one: {again}");
}

#[tokio::test]
async fn no_task_of_a_thousand_is_lost_or_settled_twice() {
    let url = engine_at("redis");
    a_thousand_tasks_with_one_killed(&format!("{url}?prefix={}", prefix())).await;
}

#[tokio::test]
async fn no_task_of_a_cluster_is_lost_or_settled_twice() {
    let url = engine_at("redis-cluster");
    a_thousand_tasks_with_one_killed(&format!("{url}&prefix={}", prefix())).await;
}
