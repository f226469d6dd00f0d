//! Five worker processes, two of which are killed while they work: no task is lost or settled twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::model::{AttemptResult, LeaseTasks, Settle, Settled, TaskState, Ttl, WorkerId};
use leasehold::store::Store;
use leasehold::store::sqlite::{SqliteOptions, SqliteStore};
use leasehold::testing::shop::{queue, task};
use uuid::Uuid;

const TASKS: u128 = 1000;
const WORKERS: usize = 5;
const BATCH: u32 = 10;
/// Environment variable with the folder of the store; set only for worker processes.
const FOLDER: &str = "LEASEHOLD_TEST_TASKS_FOLDER";
/// Environment variable with the number of the worker.
const NUMBER: &str = "LEASEHOLD_TEST_TASKS_NUMBER";

#[tokio::test]
async fn killed_workers_lose_no_task_and_settle_none_twice() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(SqliteOptions::new(folder.path().join("store.db"))).await.unwrap();
    let tasks = store.tasks().unwrap();
    let new: Vec<_> = (1..=TASKS).map(|number| task(number).attempts(10)).collect();
    tasks.enqueue(&new).await.unwrap();
    let mut workers: Vec<Worker> = (0..WORKERS).map(|number| Worker::start(folder.path(), number)).collect();
    let give_up = Instant::now() + Duration::from_mins(1);
    let open = async || tasks.queues().await.unwrap()[0].counts;
    let log = |number| fs::read_to_string(folder.path().join(format!("worker-{number}"))).unwrap_or_default();
    // The first worker holds leases that it will never settle; the second may be in any state.
    while !log(0).contains("holds") || !log(1).contains("settled") {
        assert!(Instant::now() < give_up, "the workers make no progress");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    workers[0].0.kill().unwrap();
    workers[1].0.kill().unwrap();
    while open().await.open() > 0 {
        assert!(Instant::now() < give_up, "not done: {:?}", open().await);
        tasks.recover(100).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(workers);
    assert_eq!(open().await.get(TaskState::Succeeded), u64::try_from(TASKS).unwrap());
    // A settlement that was confirmed is the only one of its task, with the token that is stored.
    let mut settlements: BTreeMap<String, u64> = BTreeMap::new();
    let mut active = BTreeSet::new();
    for number in 0..WORKERS {
        for line in log(number).lines().filter_map(|line| line.strip_prefix("settled ")) {
            let Some((id, token)) = line.split_once(' ') else { continue };
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

/// Worker process: this test binary, which runs only the test `worker_process`.
struct Worker(Child);

impl Worker {
    fn start(folder: &Path, number: usize) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "engines::sqlite::tasks::crash::worker_process"])
            .env(FOLDER, folder)
            .env(NUMBER, number.to_string())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does nothing unless the environment variables of a worker are set.
#[tokio::test]
async fn worker_process() {
    let (Ok(folder), Ok(number)) = (std::env::var(FOLDER), std::env::var(NUMBER)) else { return };
    let folder = Path::new(&folder);
    let mut log = File::create(folder.join(format!("worker-{number}"))).unwrap();
    let store = SqliteStore::open(SqliteOptions::new(folder.join("store.db"))).await.unwrap();
    let tasks = store.tasks().unwrap();
    let worker = WorkerId::from_uuid(Uuid::from_u128(number.parse::<u128>().unwrap() + 1));
    let request = LeaseTasks::new(worker, vec![queue("q")], BATCH, Ttl::from_millis(300));
    for round in 0.. {
        let mut arrivals = tasks.arrivals(&request.queues);
        let leased = tasks.lease(&request).await.unwrap().tasks;
        if leased.is_empty() {
            arrivals.next(None).await;
            continue;
        }
        if number == "0" && round == 2 {
            writeln!(log, "holds").unwrap();
            std::future::pending::<()>().await;
        }
        // The work takes a while, so that a worker can be killed during it.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let done = |task: &leasehold::model::Task| Settle {
            id: task.id,
            token: task.token,
            verdict: AttemptResult::Done(None),
        };
        let settle: Vec<_> = leased.iter().map(done).collect();
        for (settle, settled) in settle.iter().zip(tasks.settle(&settle).await.unwrap()) {
            if settled == Settled::Now(TaskState::Succeeded) {
                writeln!(log, "settled {} {}", settle.id, settle.token).unwrap();
            }
        }
    }
}
