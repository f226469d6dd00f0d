//! Five processes and a thousand tasks, one of them killed in the middle: none lost, none settled twice.

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
/// Where a process of the crew finds its store, its keys, and whether it is to die; not set in any other.
const CREW: &str = "LEASEHOLD_TEST_CREW";
/// Before what a process says: the test runner talks on the same line.
const SAYS: &str = "crew: ";

struct Member {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Member {
    fn start(url: &str, prefix: &str, fate: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "engines::redis::tasks::crew::a_process_of_the_crew"])
            .env(CREW, format!("{url} {prefix} {fate}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    /// What it says next; nothing when it has ended.
    fn hears(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.says.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some((_, said)) = line.trim_end().split_once(SAYS) {
                return Some(said.to_owned());
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn a_thousand_tasks_with_one_killed(url: &str) {
    let prefix = prefix();
    let store = RedisStore::connect(options(url, &prefix)).await.unwrap();
    tasks(&store).enqueue(&new_tasks(TASKS)).await.unwrap();
    let mut doomed = Member::start(url, &prefix, "dies");
    let crew: Vec<_> = (0..4).map(|_| Member::start(url, &prefix, "lives")).collect();
    let mut settled = Vec::new();
    while let Some(said) = doomed.hears() {
        if said == "holds" {
            break;
        }
        settled.push(said);
    }
    doomed.child.kill().unwrap();
    doomed.child.wait().unwrap();
    for mut member in crew {
        while let Some(said) = member.hears() {
            settled.push(said);
        }
    }
    let distinct: BTreeSet<_> = settled.iter().collect();
    assert_eq!((distinct.len(), settled.len()), (TASKS, TASKS), "each settled once");
    assert_eq!(count(&store, TaskState::Succeeded).await, TASKS as u64);
    let mut again = 0;
    for id in distinct {
        let task = tasks(&store).get(id.parse().unwrap()).await.unwrap().unwrap();
        // One step for each lease, one for each that was recovered, and one for the end.
        assert_eq!((task.state, task.version), (TaskState::Succeeded, u64::from(task.attempt) * 2 + 1));
        again += u32::from(task.attempt > 1);
    }
    assert!(again >= 10, "those that the dead one held were done by others: {again}");
}

#[tokio::test]
async fn of_a_thousand_tasks_none_is_lost_and_none_is_settled_twice() {
    let Some(url) = engine_at("redis") else { return };
    a_thousand_tasks_with_one_killed(&url).await;
}

#[tokio::test]
async fn on_a_cluster_too_none_is_lost_and_none_is_settled_twice() {
    let Some(url) = engine_at("redis-cluster") else { return };
    a_thousand_tasks_with_one_killed(&url).await;
}

/// Does nothing unless it was started as one of a crew.
#[tokio::test]
async fn a_process_of_the_crew() {
    let Ok(place) = std::env::var(CREW) else { return };
    let [url, prefix, fate] = place.split(' ').collect::<Vec<_>>()[..] else { panic!("{place}?") };
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
        if fate == "dies" && round == 3 {
            println!("{SAYS}holds");
            std::future::pending::<()>().await;
        }
        let settles: Vec<_> = leased.iter().map(done).collect();
        let answers = tasks(&store).settle(&settles).await.unwrap();
        for (task, answer) in leased.iter().zip(answers) {
            if answer == Settled::Now(TaskState::Succeeded) {
                println!("{SAYS}{}", task.id);
            }
        }
    }
}
