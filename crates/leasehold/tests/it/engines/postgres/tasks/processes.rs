//! Several worker processes, one of which is killed: no task is lost, and none is settled twice.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use leasehold::model::{AttemptResult, LeaseTasks, Settle, Settled, TaskState, Ttl, WorkerId};
use leasehold::store::{Store, StoreUrl, connect};
use leasehold::testing::shop::{queue, task};

use crate::engines::postgres::schema::Schema;

const PROCESSES: usize = 5;
const TASKS: u128 = 1_000;
/// Environment variable with the URL of the store; set only in worker processes.
const STORE: &str = "LEASEHOLD_TEST_WORKER_STORE";
/// Prefix of the output of a worker process: the test runner writes to the same stream.
const PREFIX: &str = "settled: ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_processes_complete_every_task_once_though_one_is_killed() {
    let Some(schema) = Schema::new() else { return };
    let store = schema.store().await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&(1..=TASKS).map(task).collect::<Vec<_>>()).await.unwrap();
    let (sender, settlements) = mpsc::channel();
    let mut workers: Vec<WorkerProcess> = (0..PROCESSES)
        .map(|number| WorkerProcess::start(number, &schema.url_with("pool=2"), &sender))
        .collect();
    drop(sender);
    let mut settled = BTreeSet::new();
    let mut killed = false;
    tokio::task::block_in_place(|| {
        // Ends when all processes have exited.
        for (number, id) in settlements {
            assert!(settled.insert(id.clone()), "{id} was settled twice");
            if !killed && number == 0 && settled.len() > 100 {
                workers[0].0.kill().unwrap();
                killed = true;
            }
        }
    });
    assert!(killed);
    let queues = tasks.queues().await.unwrap();
    assert_eq!(u128::from(queues[0].counts.get(TaskState::Succeeded)), TASKS);
    assert_eq!(queues[0].counts.open(), 0);
    // The killed process may have settled some tasks without reporting them.
    assert!(settled.len() as u128 > TASKS - 20, "{}", settled.len());
}

/// Worker process: this test binary, with one test.
struct WorkerProcess(Child);

impl WorkerProcess {
    fn start(number: usize, url: &str, sender: &mpsc::Sender<(usize, String)>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "engines::postgres::tasks::processes::worker_process"])
            .env(STORE, url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (output, sender) = (BufReader::new(child.stdout.take().unwrap()), sender.clone());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, id)) = line.split_once(PREFIX) {
                    let _ = sender.send((number, id.to_owned()));
                }
            }
        });
        Self(child)
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does nothing unless started as a worker process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process() {
    let Ok(url) = std::env::var(STORE) else { return };
    let store = connect(&StoreUrl::parse(&url).unwrap()).await.unwrap();
    let tasks = store.tasks().unwrap();
    let worker = WorkerId::from_uuid(uuid::Uuid::now_v7());
    loop {
        let mut arrivals = tasks.arrivals(&[queue("q")]);
        let request = LeaseTasks::new(worker, vec![queue("q")], 3, Ttl::from_secs(2));
        let leased = tasks.lease(&request).await.unwrap().tasks;
        if leased.is_empty() {
            tasks.recover(100).await.unwrap();
            if tasks.queues().await.unwrap()[0].counts.open() == 0 {
                return;
            }
            arrivals.next(Some(Duration::from_millis(100))).await;
            continue;
        }
        for task in leased {
            let settle = Settle { id: task.id, token: task.token, verdict: AttemptResult::Done(None) };
            if let [Settled::Now(_)] = tasks.settle(&[settle]).await.unwrap()[..] {
                println!("\n{PREFIX}{}", task.id);
            }
        }
    }
}
