//! Network faults between a store and a server.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{EventKind, Holder, LeaseId, Reason, Ttl};
use leasehold::store::{ListEvents, StoreUrl, Wakeup, connect};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};

use super::proxy::{Fault, Proxy};
use super::support::{Served, name, open};
use super::wire::{self, Lab};

/// Creates a proxy in front of the server that fails on demand.
async fn lab(served: &Served) -> Lab {
    let proxy = Proxy::before(served.address);
    let through = open(&format!("http://{}", proxy.address())).await;
    Lab { proxy, through, straight: open(&served.url()).await }
}

#[tokio::test]
async fn a_release_whose_answer_is_lost_is_unknown_and_done_once() {
    let served = Served::on_memory();
    wire::a_release_whose_answer_is_lost_is_unknown_and_done_once(lab(&served).await).await;
}

#[tokio::test]
async fn a_force_or_an_ask_whose_answer_is_lost_is_unknown_and_done_once() {
    let served = Served::on_memory();
    wire::a_force_or_an_ask_whose_answer_is_lost_is_unknown_and_done_once(lab(&served).await).await;
}

/// A server records the API token beside the claimed name, or alone if both together are too long; the client
/// recognizes its own request.
#[tokio::test]
async fn an_ask_with_a_token_whose_answer_is_lost_is_made_once() {
    let direct = Leasehold::connect("memory:").await.unwrap();
    let token = TokenStore::new(direct.clone()).create("olga", Role::Operator, None).await.unwrap().text;
    let served = Served::with(direct.clone(), Access::Tokens(Vec::new()), "127.0.0.1:0".parse().unwrap());
    let proxy = Proxy::before(served.address);
    let operator = Leasehold::connect(&format!("http://{token}@{}", proxy.address())).await.unwrap();
    let long = "x".repeat(250);
    for (lock, by, recorded) in [
        ("beside", "auditor", "auditor via olga"),
        ("same", "olga", "olga"),
        ("alone", long.as_str(), "olga"),
    ] {
        let guard = direct.lock(lock).acquire().await.unwrap();
        let connections = proxy.counts().connections;
        proxy.set(Fault::DropReplies(1));
        let (by, reason) = (Holder::new(by).unwrap(), Reason::new("stuck").unwrap());
        assert_eq!(operator.locks().request_release(lock, by, Some(reason)).await.unwrap(), 1);
        assert!(proxy.counts().connections > connections, "no answer was lost");
        let query = ListEvents::default().lock(name(lock)).limit(100);
        let events = direct.locks().history(&query).await.unwrap().items;
        let asked = events.iter().filter(|event| event.kind == EventKind::ReleaseRequested);
        let by: Vec<_> = asked.map(|event| event.by.as_ref().unwrap().as_str()).collect();
        assert_eq!(by, [recorded], "{events:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn an_acquire_that_comes_late_takes_no_lock() {
    let served = Served::on_memory();
    wire::an_acquire_that_comes_late_takes_no_lock(lab(&served).await, None).await;
}

#[tokio::test]
async fn a_ticket_that_comes_late_joins_no_queue() {
    let served = Served::on_memory();
    wire::an_acquire_that_comes_late_takes_no_lock(lab(&served).await, Some(Ttl::from_secs(30))).await;
}

#[tokio::test]
async fn an_acquire_that_was_dropped_takes_nothing_later() {
    let served = Served::on_memory();
    wire::an_acquire_on_a_broken_connection_takes_nothing_later(lab(&served).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_fails_without_having_run() {
    let served = Served::on_memory();
    wire::no_task_fails_without_having_run(lab(&served).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_to_a_frozen_server_ends_in_time() {
    let served = Served::on_memory();
    wire::every_call_to_a_frozen_engine_ends_in_time(lab(&served).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_connection_that_fails_is_tried_again() {
    let served = Served::on_memory();
    let proxy = || {
        let proxy = Proxy::before(served.address);
        let url = StoreUrl::parse(&format!("http://{}", proxy.address())).unwrap();
        (proxy, url)
    };
    wire::a_first_connection_that_fails_is_tried_again(proxy, async |url| connect(url).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_connection_to_a_frozen_server_ends_in_time() {
    let served = Served::on_memory();
    let proxy = Proxy::before(served.address);
    let url = StoreUrl::parse(&format!("http://{}", proxy.address())).unwrap();
    let connect_through = async || connect(&url).await;
    wire::a_first_connection_to_a_frozen_engine_ends_in_time(&proxy, connect_through).await;
}

/// The lost reply may have had wake-ups.
#[tokio::test]
async fn waiters_are_woken_after_a_lost_long_poll() {
    let served = Served::on_memory();
    let lab = lab(&served).await;
    let sent = lab.proxy.counts().there;
    let id = LeaseId::from_uuid(uuid::Uuid::now_v7());
    let mut changes = lab.through.locks().subscribe_waiter(Some(&name("lock")), &id);
    while lab.proxy.counts().there == sent {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    lab.proxy.cut_all();
    let woken = async { while !matches!(changes.next(Duration::MAX).await, Wakeup::Missed) {} };
    tokio::time::timeout(Duration::from_secs(30), woken).await.expect("the waiter is woken");
}
