//! Tests of the number of requests in docs/engines/github.md.

use super::support::{client, elsewhere, test_client};
use crate::engines::github::fake::Fake;
use crate::engines::github::support::fake;

/// Returns the number of all requests since the last call, and of the writes among them.
fn cost(fake: &Fake) -> (usize, usize) {
    let requests = fake.requests();
    let writes = requests.iter().filter(|request| !request.contains(" GET ")).count();
    (requests.len(), writes)
}

#[tokio::test]
async fn an_uncontended_lock_costs_the_documented_number_of_requests() {
    let scenario = fake().await;
    let fake = &scenario.0;
    fake.requests();
    let ada = test_client(&scenario, "ada", "lock").await;
    assert_eq!(cost(fake), (2, 0), "opening the store");
    let lease = ada.acquire().await;
    assert_eq!(cost(fake), (3, 2), "the first acquire of all");
    ada.renew(&lease).await;
    assert_eq!(cost(fake), (2, 2), "renew");
    ada.release(&lease).await;
    assert_eq!(cost(fake), (2, 2), "release");
    let lease = ada.acquire().await;
    assert_eq!(cost(fake), (2, 2), "acquire where it is known");
    let bob = test_client(&scenario, "bob", "lock").await;
    fake.requests();
    bob.expect_conflict().await;
    assert_eq!(cost(fake), (2, 0), "refused");
    bob.expect_conflict().await;
    assert_eq!(cost(fake), (1, 0), "refused again");
    ada.release(&lease).await;
    let eve = test_client(&scenario, "eve", "lock").await;
    fake.requests();
    eve.acquire().await;
    assert_eq!(cost(fake), (4, 2), "acquire in a new process");
}

#[tokio::test]
async fn a_lock_on_an_issue_also_costs_its_display() {
    let scenario = fake().await;
    scenario.0.new_issue("Deploy");
    let ada = test_client(&scenario, "ada", "#1").await;
    scenario.0.requests();
    let lease = ada.acquire().await;
    assert_eq!(cost(&scenario.0), (8, 4), "the first acquire of a process: {:?}", scenario.0.requests());
    ada.renew(&lease).await;
    assert_eq!(cost(&scenario.0), (2, 2), "renew");
    ada.release(&lease).await;
    assert_eq!(cost(&scenario.0), (6, 4), "release");
    ada.acquire().await;
    assert_eq!(cost(&scenario.0), (6, 4), "acquire");
}

#[tokio::test]
async fn a_list_reads_only_changed_refs() {
    let scenario = fake().await;
    for number in 0..5 {
        test_client(&scenario, "ada", &format!("lock {number}")).await.acquire().await;
    }
    let bob = client(&scenario.0, "bob", &scenario.1).await;
    let locks = async || bob.locks().list(&leasehold::store::ListLocks::default()).await.unwrap().items.len();
    scenario.0.requests();
    assert_eq!((locks().await, cost(&scenario.0)), (5, (6, 0)));
    assert_eq!((locks().await, cost(&scenario.0)), (5, (1, 0)));
    let ada = test_client(&scenario, "ada", "lock 9").await;
    let lease = ada.acquire().await;
    scenario.0.requests();
    assert_eq!((locks().await, cost(&scenario.0)), (6, (2, 0)));
    elsewhere(&scenario, "ada", &ada).await.release(&lease).await;
}
