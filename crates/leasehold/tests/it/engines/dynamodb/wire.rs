//! Faults on the wire between a store and DynamoDB.

use leasehold::model::Ttl;
use leasehold::store::{StoreUrl, connect};

use super::support::{at, new_table, separate_client};
use crate::engines::proxy::Proxy;
use crate::engines::wire::{self, Lab};

async fn lab() -> Lab {
    let url = new_table(&at()).await;
    let (proxy, through) = proxy_before(&url);
    Lab { proxy, through: separate_client(&through).await, straight: separate_client(&url).await }
}

/// Starts a proxy; returns it with the URL of a store that uses it.
fn proxy_before(url: &str) -> (Proxy, String) {
    let (before, rest) = url.split_once("endpoint=http://").expect("the tests' URL has an endpoint");
    let (host, after) = rest.split_once('&').unwrap_or((rest, ""));
    let proxy = Proxy::before(host.parse().unwrap());
    let through = format!("{before}endpoint=http://{}&{after}", proxy.address());
    (proxy, through)
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_to_a_frozen_service_ends_in_time() {
    let lab = lab().await;
    wire::every_call_to_a_frozen_engine_ends_in_time(lab).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_connection_that_fails_is_tried_again() {
    let table = new_table(&at()).await;
    let proxy = || {
        let (proxy, through) = proxy_before(&table);
        (proxy, StoreUrl::parse(&through).unwrap())
    };
    wire::a_first_connection_that_fails_is_tried_again(proxy, async |url| connect(url).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_connection_to_a_frozen_service_ends_in_time() {
    let (proxy, through) = proxy_before(&new_table(&at()).await);
    let url = StoreUrl::parse(&through).unwrap();
    let connect_through = async || connect(&url).await;
    wire::a_first_connection_to_a_frozen_engine_ends_in_time(&proxy, connect_through).await;
}
