//! Several worker processes, one of which is killed: no task is lost, and none is settled twice.

use std::collections::BTreeSet;

use leasehold::model::TaskState;
use leasehold::store::Store;
use leasehold::testing::task_fixture::task;

use crate::engines::postgres::schema::Schema;
use crate::engines::process::Process;

const PROCESSES: usize = 5;
const TASKS: u128 = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_processes_complete_every_task_once_though_one_is_killed() {
    let schema = Schema::new();
    let store = schema.store().await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&(1..=TASKS).map(task).collect::<Vec<_>>()).await.unwrap();
    let url = schema.url_with("pool=2");
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| Process::worker(&url, 3, 2000, None)).collect();
    let mut messages = Vec::new();
    tokio::task::block_in_place(|| {
        // It is killed at any point of its work.
        messages.extend((0..20).map(|_| workers[0].receive().expect("it settles tasks")));
        workers[0].kill();
        for worker in &mut workers {
            messages.extend(worker.receive_until(|_| false));
        }
    });
    let mut settled = BTreeSet::new();
    for message in &messages {
        let (id, _) = message.split_once(' ').unwrap();
        assert!(settled.insert(id), "{id} was settled twice");
    }
    let queues = tasks.queues().await.unwrap();
    assert_eq!(u128::from(queues[0].counts.get(TaskState::Succeeded)), TASKS);
    assert_eq!(queues[0].counts.open(), 0);
    // The killed process may have settled some tasks without reporting them.
    assert!(settled.len() as u128 > TASKS - 20, "{}", settled.len());
}
