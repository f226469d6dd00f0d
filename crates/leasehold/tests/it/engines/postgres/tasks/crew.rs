//! Several processes, one of which is killed in the middle: no task is lost, and none is settled twice.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use leasehold::model::{AttemptResult, LeaseTasks, Settle, Settled, TaskState, Ttl, WorkerId};
use leasehold::store::{Store, StoreUrl, connect};
use leasehold::testing::shop::{queue, task};

use crate::engines::postgres::server::Schema;

const PROCESSES: usize = 5;
const TASKS: u128 = 1_000;
/// Where a process of the crew finds its store; not set in any other.
const STORE: &str = "LEASEHOLD_TEST_CREW_STORE";
/// Before what a process of the crew says: the test runner talks on the same line.
const SAYS: &str = "crew: ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_processes_of_which_one_is_killed_do_every_task_once() {
    let Some(schema) = Schema::new() else { return };
    let store = schema.store().await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&(1..=TASKS).map(task).collect::<Vec<_>>()).await.unwrap();
    let (say, said) = mpsc::channel();
    let mut crew: Vec<Member> =
        (0..PROCESSES).map(|number| Member::start(number, &schema.url_with("pool=2"), &say)).collect();
    drop(say);
    let mut settled = BTreeSet::new();
    let mut killed = false;
    tokio::task::block_in_place(|| {
        // It ends when all have ended.
        for (number, id) in said {
            assert!(settled.insert(id.clone()), "{id} was settled twice");
            if !killed && number == 0 && settled.len() > 100 {
                crew[0].0.kill().unwrap();
                killed = true;
            }
        }
    });
    assert!(killed);
    let queues = tasks.queues().await.unwrap();
    assert_eq!(u128::from(queues[0].counts.get(TaskState::Succeeded)), TASKS);
    assert_eq!(queues[0].counts.open(), 0);
    // The one that was killed may have settled some without a word.
    assert!(settled.len() as u128 > TASKS - 20, "{}", settled.len());
}

/// A process of the crew: this test binary once more, with one test.
struct Member(Child);

impl Member {
    fn start(number: usize, url: &str, say: &mpsc::Sender<(usize, String)>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "engines::postgres::tasks::crew::a_process_of_the_crew"])
            .env(STORE, url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (says, say) = (BufReader::new(child.stdout.take().unwrap()), say.clone());
        std::thread::spawn(move || {
            for line in says.lines().map_while(Result::ok) {
                if let Some((_, id)) = line.split_once(SAYS) {
                    let _ = say.send((number, id.to_owned()));
                }
            }
        });
        Self(child)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does nothing unless it was started for a crew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_the_crew() {
    let Ok(url) = std::env::var(STORE) else { return };
    let store = connect(&StoreUrl::parse(&url).unwrap()).await.unwrap();
    let tasks = store.tasks().unwrap();
    let worker = WorkerId::from_uuid(uuid::Uuid::now_v7());
    loop {
        let mut arrivals = tasks.arrivals(&[queue("q")]);
        let ask = LeaseTasks::new(worker, vec![queue("q")], 3, Ttl::from_secs(2));
        let leased = tasks.lease(&ask).await.unwrap().tasks;
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
                println!("\n{SAYS}{}", task.id);
            }
        }
    }
}
