//! What it costs, as the page says.

use super::support::{client, elsewhere, player};
use crate::engines::github::fake::Fake;
use crate::engines::github::support::fake;

/// All requests since the last time, and how many of them were writes.
fn cost(fake: &Fake) -> (usize, usize) {
    let asked = fake.asked();
    let writes = asked.iter().filter(|asked| !asked.contains(" GET ")).count();
    (asked.len(), writes)
}

#[tokio::test]
async fn an_uncontended_lock_costs_as_many_requests_as_the_page_says() {
    let Some(scene) = fake().await else { return };
    let fake = &scene.0;
    fake.asked();
    let ada = player(&scene, "ada", "lock").await;
    assert_eq!(cost(fake), (2, 0), "opening the store");
    let lease = ada.takes().await;
    assert_eq!(cost(fake), (3, 2), "the first acquire of all");
    ada.renews(&lease).await;
    assert_eq!(cost(fake), (2, 2), "renew");
    ada.releases(&lease).await;
    assert_eq!(cost(fake), (2, 2), "release");
    let lease = ada.takes().await;
    assert_eq!(cost(fake), (2, 2), "acquire where it is known");
    let bob = player(&scene, "bob", "lock").await;
    fake.asked();
    bob.is_refused().await;
    assert_eq!(cost(fake), (2, 0), "refused");
    bob.is_refused().await;
    assert_eq!(cost(fake), (1, 0), "refused again");
    ada.releases(&lease).await;
    let eve = player(&scene, "eve", "lock").await;
    fake.asked();
    eve.takes().await;
    assert_eq!(cost(fake), (4, 2), "acquire in a new process");
}

#[tokio::test]
async fn a_lock_that_is_an_issue_costs_what_people_see_too() {
    let Some(scene) = fake().await else { return };
    scene.0.new_issue("Deploy");
    let ada = player(&scene, "ada", "#1").await;
    scene.0.asked();
    let lease = ada.takes().await;
    assert_eq!(cost(&scene.0), (8, 4), "the first acquire of a process: {:?}", scene.0.asked());
    ada.renews(&lease).await;
    assert_eq!(cost(&scene.0), (2, 2), "renew");
    ada.releases(&lease).await;
    assert_eq!(cost(&scene.0), (6, 4), "release");
    ada.takes().await;
    assert_eq!(cost(&scene.0), (6, 4), "acquire");
}

#[tokio::test]
async fn a_list_reads_what_has_changed() {
    let Some(scene) = fake().await else { return };
    for number in 0..5 {
        player(&scene, "ada", &format!("lock {number}")).await.takes().await;
    }
    let bob = client(&scene.0, "bob", &scene.1).await;
    let locks = async || bob.locks().list(&leasehold::store::ListLocks::default()).await.unwrap().items.len();
    scene.0.asked();
    assert_eq!((locks().await, cost(&scene.0)), (5, (6, 0)));
    assert_eq!((locks().await, cost(&scene.0)), (5, (1, 0)));
    let ada = player(&scene, "ada", "lock 9").await;
    let lease = ada.takes().await;
    scene.0.asked();
    assert_eq!((locks().await, cost(&scene.0)), (6, (2, 0)));
    elsewhere(&scene, "ada", &ada).await.releases(&lease).await;
}
