//! Asking again with an id of one's own: the same lease, and nothing that a dropped asking takes from the next.

use std::time::Duration;

use leasehold::Error;
use leasehold::model::LeaseId;

use super::support::{memory, name, until};

/// An id for each test: those who wait under one id are known to each other in the whole process.
fn id(number: u128) -> LeaseId {
    LeaseId::from_uuid(uuid::Uuid::from_u128(0x0189_0a5d_ac96_774b_bcce_b302_099a_8000 + number))
}

#[tokio::test]
async fn the_same_id_gives_the_same_lease_and_token() {
    let leasehold = memory().await;
    let ask = || leasehold.lock("lock").lease_id(id(1)).acquire();
    let first = ask().await.unwrap().detach();
    let second = ask().await.unwrap();
    assert_eq!((second.lease_id(), second.token()), (id(1), first[0].1.token));
    assert_eq!(leasehold.status(&name("lock")).await.unwrap().holders.len(), 1);
}

#[tokio::test]
async fn an_id_names_one_lease_and_a_place_is_kept_for_an_id() {
    let leasehold = memory().await;
    let several = leasehold.lock("a").and("b").lease_id(id(2)).acquire().await.unwrap_err();
    let nameless = leasehold.lock("a").keep_ticket().acquire().await.unwrap_err();
    assert_eq!((several.code(), nameless.code()), ("INVALID", "INVALID"));
}

#[tokio::test]
async fn a_dropped_asking_leaves_its_ticket_to_the_next_with_the_same_id() {
    let leasehold = memory().await;
    let held = leasehold.lock("lock").acquire().await.unwrap();
    let ask = || leasehold.lock("lock").lease_id(id(3)).wait(Duration::from_secs(30)).acquire();
    let first = tokio::spawn(ask());
    until("it waits", async || leasehold.status(&name("lock")).await.unwrap().waiters.len() == 1).await;
    let second = tokio::spawn(ask());
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    leasehold.clone().close().await;
    assert_eq!(leasehold.status(&name("lock")).await.unwrap().waiters.len(), 1);
    held.release().await.unwrap();
    assert_eq!(second.await.unwrap().unwrap().lease_id(), id(3));
}

#[tokio::test]
async fn a_place_is_kept_when_patience_is_over_only_if_that_is_wanted() {
    let leasehold = memory().await;
    let _held = leasehold.lock("lock").acquire().await.unwrap();
    let ask = || leasehold.lock("lock").lease_id(id(4)).wait(Duration::from_millis(20));
    for (ask, places) in [(ask().keep_ticket(), 1), (ask(), 0)] {
        assert!(matches!(ask.acquire().await, Err(Error::Conflict { .. })));
        assert_eq!(leasehold.status(&name("lock")).await.unwrap().waiters.len(), places);
    }
}
