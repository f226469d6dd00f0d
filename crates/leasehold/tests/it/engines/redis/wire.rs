//! Faults on the wire between a store and Redis.

use std::sync::Arc;

use leasehold::model::Ttl;
use leasehold::store::Store;
use leasehold::store::redis::{RedisOptions, RedisStore};

use super::support::{options, prefix};
use crate::engines::proxy::Proxy;
use crate::engines::support::engine_at;
use crate::engines::wire::{self, Lab};

fn proxy() -> Proxy {
    Proxy::before(engine_at("redis").strip_prefix("redis://").unwrap().parse().unwrap())
}

async fn lab() -> Lab {
    let url = engine_at("redis");
    let (proxy, prefix) = (proxy(), prefix());
    let through =
        RedisStore::connect(options(&format!("redis://{}", proxy.address()), &prefix)).await.unwrap();
    let straight = RedisStore::connect(options(&url, &prefix)).await.unwrap();
    // Not at the connection on which the store moves events of the history at times.
    proxy.aim_at(wire::LOCK);
    Lab { proxy, through: Arc::new(through), straight: Arc::new(straight) }
}

#[tokio::test]
async fn a_release_whose_answer_is_lost_is_unknown_and_done_once() {
    let lab = lab().await;
    wire::a_release_whose_answer_is_lost_is_unknown_and_done_once(lab).await;
}

#[tokio::test]
async fn a_force_or_an_ask_whose_answer_is_lost_is_unknown_and_done_once() {
    let lab = lab().await;
    wire::a_force_or_an_ask_whose_answer_is_lost_is_unknown_and_done_once(lab).await;
}

#[tokio::test]
async fn an_acquire_that_comes_late_takes_no_lock() {
    let lab = lab().await;
    wire::an_acquire_that_comes_late_takes_no_lock(lab, None).await;
}

#[tokio::test]
async fn a_ticket_that_comes_late_joins_no_queue() {
    let lab = lab().await;
    wire::an_acquire_that_comes_late_takes_no_lock(lab, Some(Ttl::from_secs(30))).await;
}

#[tokio::test]
async fn an_acquire_that_was_dropped_takes_nothing_later() {
    let lab = lab().await;
    wire::an_acquire_on_a_broken_connection_takes_nothing_later(lab).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_fails_without_having_run() {
    let lab = lab().await;
    lab.proxy.aim_at("");
    wire::no_task_fails_without_having_run(lab).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_to_a_frozen_server_ends_in_time() {
    let lab = lab().await;
    wire::every_call_to_a_frozen_engine_ends_in_time(lab).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_connection_that_fails_is_tried_again() {
    let prefix = prefix();
    let proxy = || {
        let proxy = proxy();
        let options = options(&format!("redis://{}", proxy.address()), &prefix);
        (proxy, options)
    };
    let connect = async |options: &RedisOptions| {
        Ok(Arc::new(RedisStore::connect(options.clone()).await?) as Arc<dyn Store>)
    };
    wire::a_first_connection_that_fails_is_tried_again(proxy, connect).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_connection_to_a_frozen_server_ends_in_time() {
    let proxy = proxy();
    let options = options(&format!("redis://{}", proxy.address()), &prefix());
    let connect = async || Ok(Arc::new(RedisStore::connect(options.clone()).await?) as Arc<dyn Store>);
    wire::a_first_connection_to_a_frozen_engine_ends_in_time(&proxy, connect).await;
}
