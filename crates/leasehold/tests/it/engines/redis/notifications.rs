//! Notifications between processes: exactly the granted waiter, with few commands.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{LeaseId, LockName};
use leasehold::store::redis::RedisStore;
use leasehold::store::{LockStore, WaiterSubscription, Wakeup};

use super::cluster::MovingSlot;
use super::server::Server;
use super::support::{options, prefix};
use crate::engines::process::Process;
use crate::engines::support::engine_at;

const LOCK: &str = "lock";

impl Process {
    fn wait_until_acquired(&mut self) {
        assert_eq!(self.receive().as_deref(), Some("has it"), "the waiter has ended");
    }
}

async fn waiters(leasehold: &Leasehold, count: usize) {
    let name = LockName::new(LOCK).unwrap();
    let are_queued = async {
        while leasehold.locks().status(&name).await.unwrap().waiters.len() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), are_queued).await.expect("all waiters are queued");
}

#[tokio::test]
async fn a_release_notifies_only_the_next_holder_in_another_process() {
    let server = Server::start(&[]).await;
    let leasehold = Leasehold::connect(&server.url()).await.unwrap();
    let held = leasehold.lock(LOCK).ttl(Duration::from_mins(10)).acquire().await.unwrap();
    let mut first = Process::start(&["wait", &server.url()]);
    waiters(&leasehold, 1).await;
    let _second = Process::start(&["wait", &server.url()]);
    waiters(&leasehold, 2).await;
    // Both have subscribed, each to a channel of its own and to the common one.
    let subscribed = async {
        while server.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.unwrap().len() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), subscribed).await.expect("both subscribe");
    let scripts = server.calls("evalsha").await;
    held.release().await.unwrap();
    first.wait_until_acquired();
    // The release, and perhaps the renewal that extends the lease to its TTL, a ticket refresh, and the queries of both
    // once they have subscribed: the granted waiter received its lease, and the other one was not notified.
    assert_eq!(server.calls("publish").await, 1);
    let scripts = server.calls("evalsha").await - scripts;
    assert!((1..=5).contains(&scripts), "{scripts}");
}

#[tokio::test]
async fn a_release_on_a_cluster_notifies_the_next_holder_in_another_process() {
    let url = engine_at("redis-cluster");
    let url = format!("{url}&prefix={}", prefix());
    let leasehold = Leasehold::connect(&url).await.unwrap();
    let held = leasehold.lock(LOCK).ttl(Duration::from_mins(10)).acquire().await.unwrap();
    let mut waiter = Process::start(&["wait", &url]);
    waiters(&leasehold, 1).await;
    held.release().await.unwrap();
    waiter.wait_until_acquired();
}

/// Waits until wake-ups may have been lost.
async fn next_missed(changes: &mut WaiterSubscription) {
    let missed = async { while !matches!(changes.next(Duration::MAX).await, Wakeup::Missed) {} };
    tokio::time::timeout(Duration::from_secs(30), missed).await.expect("the waiter is woken");
}

async fn subscribe_waiter(url: &str) -> (RedisStore, WaiterSubscription) {
    let store = RedisStore::connect(options(url, &prefix())).await.unwrap();
    let id = LeaseId::from_uuid(uuid::Uuid::now_v7());
    let changes = store.subscribe_waiter(Some(&LockName::new(LOCK).unwrap()), &id);
    (store, changes)
}

/// Messages are lost until the subscription is established again.
#[tokio::test]
async fn waiters_are_woken_when_the_subscription_is_lost_and_established() {
    let server = Server::start(&[]).await;
    let (_store, mut changes) = subscribe_waiter(&server.url()).await;
    next_missed(&mut changes).await;
    let channels = async || server.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await.unwrap().len();
    assert_eq!(channels().await, 2, "the subscription is established");
    server.command::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
    next_missed(&mut changes).await;
    while channels().await < 2 {
        next_missed(&mut changes).await;
    }
}

/// The node that gives the slot of a channel away ends the subscription, and keeps the connection.
#[tokio::test]
async fn a_subscription_is_established_again_when_the_slot_of_its_channel_has_moved() {
    let mut moving = MovingSlot::of("any").await;
    let (_store, mut changes) = subscribe_waiter(&moving.url()).await;
    next_missed(&mut changes).await;
    let channels = moving.channels().await;
    assert_eq!(channels.len(), 2, "the subscription is established: {channels:?}");
    moving.change_key(&channels[0]).await;
    moving.begin().await;
    moving.finish().await;
    next_missed(&mut changes).await;
    let is_established = async { while moving.channels().await.len() < 2 {} };
    tokio::time::timeout(Duration::from_secs(30), is_established).await.expect("on the other node");
}

/// A connection that only receives messages notices that the server is gone without a word.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_connections_ask_whether_the_server_is_there() {
    let server = Server::start(&[]).await;
    let (_store, mut changes) = subscribe_waiter(&server.url()).await;
    next_missed(&mut changes).await;
    // Time until the keepalive timer of each connection to the server ends, in hundredths of a second.
    let timers = || -> Vec<Option<u64>> {
        let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let server = format!("0100007F:{:04X}", server.port());
        let fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let to_server = fields.filter(|fields| fields[2] == server && fields[3] == "01");
        to_server.map(|fields| u64::from_str_radix(fields[5].strip_prefix("02:")?, 16).ok()).collect()
    };
    let within_30_s = |timer: &Option<u64>| timer.is_some_and(|left| left <= 3_100);
    let are_idle = async {
        while timers().len() < 2 || !timers().iter().all(within_30_s) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(30), are_idle).await;
    assert!(ended.is_ok(), "{:?}", timers());
}
