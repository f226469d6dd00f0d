//! Five processes and a thousand tasks, one process killed: no task is lost or settled twice.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use leasehold::model::{Settled, TaskState, Ttl};
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;

use super::support::{count, done, lease, new_tasks, queue, tasks};
use crate::engines::redis::support::{options, prefix};
use crate::engines::support::engine_at;

const TASKS: usize = 1000;
/// Environment variable of a worker process: its store, its prefix, and whether it will be killed.
const SETTINGS: &str = "LEASEHOLD_TEST_CREW";
/// Mark before each message of a process: the test runner prints on the same line.
const MARK: &str = "worker: ";

struct WorkerProcess {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl WorkerProcess {
    fn start(url: &str, prefix: &str, role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "engines::redis::tasks::processes::worker_process"])
            .env(SETTINGS, format!("{url} {prefix} {role}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Returns the next message; `None` when the process has ended.
    fn next_message(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some((_, message)) = line.trim_end().split_once(MARK) {
                return Some(message.to_owned());
            }
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn a_thousand_tasks_with_one_killed(url: &str) {
    let prefix = prefix();
    let store = RedisStore::connect(options(url, &prefix)).await.unwrap();
    tasks(&store).enqueue(&new_tasks(TASKS)).await.unwrap();
    let mut doomed = WorkerProcess::start(url, &prefix, "dies");
    let processes: Vec<_> = (0..4).map(|_| WorkerProcess::start(url, &prefix, "lives")).collect();
    let mut settled = Vec::new();
    while let Some(message) = doomed.next_message() {
        if message == "holds" {
            break;
        }
        settled.push(message);
    }
    doomed.child.kill().unwrap();
    doomed.child.wait().unwrap();
    for mut process in processes {
        while let Some(message) = process.next_message() {
            settled.push(message);
        }
    }
    let distinct: BTreeSet<_> = settled.iter().collect();
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
    let Some(url) = engine_at("redis") else { return };
    a_thousand_tasks_with_one_killed(&url).await;
}

#[tokio::test]
async fn no_task_of_a_cluster_is_lost_or_settled_twice() {
    let Some(url) = engine_at("redis-cluster") else { return };
    a_thousand_tasks_with_one_killed(&url).await;
}

/// Does nothing unless it was started as a worker process.
#[tokio::test]
async fn worker_process() {
    let Ok(settings) = std::env::var(SETTINGS) else { return };
    let [url, prefix, role] = settings.split(' ').collect::<Vec<_>>()[..] else { panic!("{settings}?") };
    let store = RedisStore::connect(options(url, prefix)).await.unwrap();
    for round in 0.. {
        let mut arrivals = store.tasks().unwrap().arrivals(&[queue()]);
        let leased = lease(&store, 10, Ttl::from_secs(2)).await.tasks;
        if leased.is_empty() {
            tasks(&store).recover(100).await.unwrap();
            let queues = tasks(&store).queues().await.unwrap();
            if queues[0].counts.open() == 0 {
                return;
            }
            arrivals.next(Some(Duration::from_millis(100))).await;
            continue;
        }
        if role == "dies" && round == 3 {
            println!("{MARK}holds");
            std::future::pending::<()>().await;
        }
        let settles: Vec<_> = leased.iter().map(done).collect();
        let answers = tasks(&store).settle(&settles).await.unwrap();
        for (task, answer) in leased.iter().zip(answers) {
            if answer == Settled::Now(TaskState::Succeeded) {
                println!("{MARK}{}", task.id);
            }
        }
    }
}
