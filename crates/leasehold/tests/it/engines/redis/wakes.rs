//! Wake-ups between processes: exactly the served waiter, and few commands.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::LockName;

use super::private::Server;
use crate::engines::support::engine_at;

/// Where a process that waits finds its store; not set in any other.
const STORE: &str = "LEASEHOLD_TEST_WAITER_STORE";
const LOCK: &str = "lock";

/// Another process that waits for the lock, says so when it has it, and keeps it until it is ended.
struct Waiter {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Waiter {
    fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "engines::redis::wakes::a_process_that_waits"])
            .env(STORE, url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    fn has_it(&mut self) {
        let mut line = String::new();
        while !line.contains("has it") {
            line.clear();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "the waiter has ended");
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing unless it was started to wait.
#[tokio::test]
async fn a_process_that_waits() {
    let Ok(url) = std::env::var(STORE) else { return };
    let leasehold = Leasehold::connect(&url).await.unwrap();
    let _guard = leasehold
        .lock(LOCK)
        .ttl(Duration::from_mins(10))
        .wait(Duration::from_mins(10))
        .acquire()
        .await
        .unwrap();
    println!("has it");
    std::future::pending::<()>().await;
}

async fn waiters(leasehold: &Leasehold, count: usize) {
    let name = LockName::new(LOCK).unwrap();
    let in_line = async {
        while leasehold.status(&name).await.unwrap().waiters.len() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), in_line).await.expect("they stand in line");
}

#[tokio::test]
async fn a_release_wakes_the_one_that_is_served_in_another_process() {
    let Some(server) = Server::start(&[]).await else { return };
    let leasehold = Leasehold::connect(&server.url()).await.unwrap();
    let held = leasehold.lock(LOCK).ttl(Duration::from_mins(10)).acquire().await.unwrap();
    let mut first = Waiter::start(&server.url());
    waiters(&leasehold, 1).await;
    let _second = Waiter::start(&server.url());
    waiters(&leasehold, 2).await;
    // Both have subscribed, each to a channel of its own.
    let subscribed = async {
        while server.says::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), subscribed).await.expect("both subscribe");
    let scripts = server.calls("evalsha").await;
    held.release().await.unwrap();
    first.has_it();
    // The release, and perhaps the renewal that makes a lease whole or a waiter's sign of life; the one that was served
    // was told its lease, and the other one was not woken.
    assert_eq!(server.calls("publish").await, 1);
    let scripts = server.calls("evalsha").await - scripts;
    assert!((1..=3).contains(&scripts), "{scripts}");
}

#[tokio::test]
async fn it_does_so_on_a_cluster_too() {
    let Some(url) = engine_at("redis-cluster") else { return };
    let url = format!("{url}&prefix={}", super::support::prefix());
    let leasehold = Leasehold::connect(&url).await.unwrap();
    let held = leasehold.lock(LOCK).ttl(Duration::from_mins(10)).acquire().await.unwrap();
    let mut waiter = Waiter::start(&url);
    waiters(&leasehold, 1).await;
    held.release().await.unwrap();
    waiter.has_it();
}
