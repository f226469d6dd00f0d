//! Notifications between processes: exactly the granted waiter, with few commands.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::LockName;

use super::server::Server;
use crate::engines::support::engine_at;

/// Environment variable with the store of a waiter process.
const STORE: &str = "LEASEHOLD_TEST_WAITER_STORE";
const LOCK: &str = "lock";

/// Process that waits for the lock, prints a line when it has acquired it, and holds it until killed.
struct Waiter {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Waiter {
    fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "engines::redis::notifications::waiter_process"])
            .env(STORE, url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    fn wait_until_acquired(&mut self) {
        let mut line = String::new();
        while !line.contains("has it") {
            line.clear();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the waiter has ended");
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing unless it was started as a waiter process.
#[tokio::test]
async fn waiter_process() {
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
    let are_queued = async {
        while leasehold.status(&name).await.unwrap().waiters.len() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), are_queued).await.expect("all waiters are queued");
}

#[tokio::test]
async fn a_release_notifies_only_the_next_holder_in_another_process() {
    let Some(server) = Server::start(&[]).await else { return };
    let leasehold = Leasehold::connect(&server.url()).await.unwrap();
    let held = leasehold.lock(LOCK).ttl(Duration::from_mins(10)).acquire().await.unwrap();
    let mut first = Waiter::start(&server.url());
    waiters(&leasehold, 1).await;
    let _second = Waiter::start(&server.url());
    waiters(&leasehold, 2).await;
    // Both have subscribed, each to a channel of its own.
    let subscribed = async {
        while server.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), subscribed).await.expect("both subscribe");
    let scripts = server.calls("evalsha").await;
    held.release().await.unwrap();
    first.wait_until_acquired();
    // The release, and perhaps the renewal that extends the lease to its TTL or a ticket refresh: the
    // granted waiter received its lease, and the other one was not notified.
    assert_eq!(server.calls("publish").await, 1);
    let scripts = server.calls("evalsha").await - scripts;
    assert!((1..=3).contains(&scripts), "{scripts}");
}

#[tokio::test]
async fn a_release_on_a_cluster_notifies_the_next_holder_in_another_process() {
    let Some(url) = engine_at("redis-cluster") else { return };
    let url = format!("{url}&prefix={}", super::support::prefix());
    let leasehold = Leasehold::connect(&url).await.unwrap();
    let held = leasehold.lock(LOCK).ttl(Duration::from_mins(10)).acquire().await.unwrap();
    let mut waiter = Waiter::start(&url);
    waiters(&leasehold, 1).await;
    held.release().await.unwrap();
    waiter.wait_until_acquired();
}
