//! Process of the tests that need several: a racer, a waiter or a worker on a store, or one connection.
//! It reports on standard output, one message per line.

use std::time::Duration;

use leasehold::model::{
    AttemptResult, LeaseTasks, QueueName, Settle, Settled, Task, TaskState, Ttl, WorkerId,
};
use leasehold::store::{Store, StoreUrl, connect};
use leasehold::{Error, Guard, Leasehold, StoreErrorKind};
use tokio::task::JoinSet;

const CLIENTS: usize = 8;
const LOCK: &str = "lock";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["race", url] => race(url).await,
        ["wait", url] => wait(url).await,
        ["work", url, batch, ttl, hold_in] => {
            let ttl = Ttl::from_millis(ttl.parse().unwrap());
            work(url, batch.parse().unwrap(), ttl, hold_in.parse().ok()).await;
        }
        ["connect", url] => {
            let error = open(url).await.err().expect("the connection should have been rejected");
            println!("{}\n{error}\n{}", error.code(), error.hint().unwrap_or_default());
        }
        _ => panic!("unknown arguments: {args:?}"),
    }
}

async fn open(url: &str) -> leasehold::Result<std::sync::Arc<dyn Store>> {
    connect(&StoreUrl::parse(url).unwrap()).await
}

/// Clients that race for one lock. Commands are read from standard input: `go` to request the lock at
/// once, `free` to release it, `turns N` to wait for it N times.
async fn race(url: &str) {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Leasehold::connect(url).await.unwrap());
    }
    let mut held = Vec::new();
    report(&held);
    while let Some(command) = tokio::task::block_in_place(|| std::io::stdin().lines().next()) {
        let command = command.unwrap();
        if let Some(turns) = command.strip_prefix("turns ") {
            println!("{}", take_turns(&clients, turns.parse().unwrap()).await.join(" "));
            continue;
        }
        match command.as_str() {
            "go" => held = acquire_all(&clients).await,
            "free" => {
                for guard in held.drain(..) {
                    guard.release().await.unwrap();
                }
            }
            other => panic!("unknown command {other}"),
        }
        report(&held);
    }
}

async fn acquire_all(clients: &[Leasehold]) -> Vec<Guard> {
    let mut requests = JoinSet::new();
    for client in clients {
        requests.spawn(client.lock(LOCK).ttl(Duration::from_secs(30)).acquire());
    }
    let answers = requests.join_all().await;
    answers
        .into_iter()
        .filter_map(|answer| match answer {
            Ok(guard) => Some(guard),
            Err(Error::Conflict { .. }) => None,
            Err(other) => panic!("{other}: {other:?}"),
        })
        .collect()
}

async fn take_turns(clients: &[Leasehold], count: usize) -> Vec<String> {
    let mut tasks = JoinSet::new();
    for client in clients {
        let client = client.clone();
        tasks.spawn(async move {
            let mut turns = Vec::new();
            for _ in 0..count {
                let guard = loop {
                    match client.lock(LOCK).wait(Duration::from_mins(5)).acquire().await {
                        Ok(guard) => break guard,
                        Err(error) => must_be_busy(error),
                    }
                };
                let (token, acquired) = (guard.token(), micros());
                tokio::task::yield_now().await;
                turns.push(format!("{token},{acquired},{}", micros()));
                guard.release().await.unwrap_or_else(must_be_busy);
            }
            turns
        });
    }
    tasks.join_all().await.concat()
}

/// Panics unless the engine was unavailable: on a busy machine it may exceed the timeout of a call.
fn must_be_busy(error: Error) {
    match error {
        Error::Store { kind: StoreErrorKind::Unavailable, .. } => {}
        other => panic!("{other:?}"),
    }
}

/// Returns the wall clock, which all processes share.
fn micros() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros()
}

fn report(held: &[Guard]) {
    let tokens: Vec<_> = held.iter().map(|guard| guard.token().to_string()).collect();
    println!("{}", tokens.join(" "));
}

/// Waits for the lock, reports that it has it, and holds it until it is killed.
async fn wait(url: &str) {
    let leasehold = Leasehold::connect(url).await.unwrap();
    let lock = leasehold.lock(LOCK).ttl(Duration::from_mins(10)).wait(Duration::from_mins(10));
    let _guard = lock.acquire().await.unwrap();
    println!("has it");
    std::future::pending::<()>().await;
}

/// Works on the queue `q` until it is empty, and reports each task that it has settled. In the round
/// `hold_in` it reports `holds`, and keeps its leases until it is killed.
async fn work(url: &str, batch: u32, ttl: Ttl, hold_in: Option<usize>) {
    let store = open(url).await.unwrap();
    let tasks = store.tasks().unwrap();
    let worker = WorkerId::from_uuid(uuid::Uuid::now_v7());
    let request = LeaseTasks::new(worker, vec![QueueName::new("q").unwrap()], batch, ttl);
    let mut rounds = 0;
    loop {
        let mut arrivals = tasks.subscribe_queues(&request.queues);
        let leased = tasks.lease(&request).await.unwrap().tasks;
        if leased.is_empty() {
            tasks.recover(100).await.unwrap();
            if tasks.queues().await.unwrap()[0].counts.open() == 0 {
                return;
            }
            arrivals.next(Some(Duration::from_millis(100))).await;
            continue;
        }
        rounds += 1;
        if Some(rounds) == hold_in {
            println!("holds");
            std::future::pending::<()>().await;
        }
        // The work takes a while, so that the process can be killed during it.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let done = |task: &Task| Settle { id: task.id, token: task.token, result: AttemptResult::Done(None) };
        let settle: Vec<_> = leased.iter().map(done).collect();
        for (settle, settled) in settle.iter().zip(tasks.settle(&settle).await.unwrap()) {
            if settled == Settled::Now(TaskState::Succeeded) {
                println!("{} {}", settle.id, settle.token);
            }
        }
    }
}
