//! Faults on the wire between a store and PostgreSQL.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::Ttl;
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{ListLocks, LockStore, Store};

use super::faults::{proxy_before, through_proxy};
use super::schema::Schema;
use crate::engines::proxy::Fault;
use crate::engines::support::engine_at;
use crate::engines::wire::{self, Lab};

async fn lab_in(schema: &Schema) -> Lab {
    let (proxy, through) = through_proxy(schema, "").await;
    Lab { proxy, through, straight: schema.store().await }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_is_lost_is_unknown_and_done_once() {
    let schema = Schema::new();
    let lab = lab_in(&schema).await;
    wire::a_release_whose_answer_is_lost_is_unknown_and_done_once(lab).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_or_an_ask_whose_answer_is_lost_is_unknown_and_done_once() {
    let schema = Schema::new();
    let lab = lab_in(&schema).await;
    wire::a_force_or_an_ask_whose_answer_is_lost_is_unknown_and_done_once(lab).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_comes_late_takes_no_lock() {
    let schema = Schema::new();
    let lab = lab_in(&schema).await;
    wire::an_acquire_that_comes_late_takes_no_lock(lab, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_comes_late_joins_no_queue() {
    let schema = Schema::new();
    let lab = lab_in(&schema).await;
    wire::an_acquire_that_comes_late_takes_no_lock(lab, Some(Ttl::from_secs(30))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_was_dropped_takes_nothing_later() {
    let schema = Schema::new();
    let lab = lab_in(&schema).await;
    wire::an_acquire_on_a_broken_connection_takes_nothing_later(lab).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_fails_without_having_run() {
    let schema = Schema::new();
    let lab = lab_in(&schema).await;
    wire::no_task_fails_without_having_run(lab).await;
}

/// Behind a pooler in transaction mode the client does not know which server process a request went to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_pooler_an_acquire_that_comes_late_takes_no_lock() {
    let schema = Schema::at(engine_at("postgres-pooler"));
    wire::an_acquire_that_comes_late_takes_no_lock(lab_in(&schema).await, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_pooler_a_ticket_that_comes_late_joins_no_queue() {
    let schema = Schema::at(engine_at("postgres-pooler"));
    wire::an_acquire_that_comes_late_takes_no_lock(lab_in(&schema).await, Some(Ttl::from_secs(30))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_to_a_frozen_server_ends_in_time() {
    let schema = Schema::new();
    let lab = lab_in(&schema).await;
    wire::every_call_to_a_frozen_engine_ends_in_time(lab).await;
}

/// The health check waits for the connection that another call opens, and then opens one itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_health_check_of_a_frozen_server_ends_in_time() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "").await;
    proxy.set(Fault::BlackHole);
    proxy.cut_all();
    let (query, started) = (ListLocks::default(), Instant::now());
    let (listed, checked) = tokio::join!(biased; store.list(&query), store.check_health());
    assert!(listed.is_err() && checked.is_err(), "{listed:?} {checked:?}");
    assert!(started.elapsed() < Duration::from_millis(5700), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_connection_that_fails_is_tried_again() {
    let schema = Schema::new();
    let _tables = schema.store().await;
    let connect = async |options: &PostgresOptions| {
        Ok(Arc::new(PostgresStore::connect(options.clone()).await?) as Arc<dyn Store>)
    };
    wire::a_first_connection_that_fails_is_tried_again(|| proxy_before(&schema, ""), connect).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_connection_to_a_frozen_server_ends_in_time() {
    let schema = Schema::new();
    let _tables = schema.store().await;
    let (proxy, options) = proxy_before(&schema, "");
    let connect = async || Ok(Arc::new(PostgresStore::connect(options.clone()).await?) as Arc<dyn Store>);
    wire::a_first_connection_to_a_frozen_engine_ends_in_time(&proxy, connect).await;
}
