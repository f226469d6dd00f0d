//! Requests with an id of the caller: a repetition gets the same lease, and a dropped request takes
//! nothing from the next one.

use std::time::Duration;

use leasehold::Error;
use leasehold::model::LeaseId;

use super::support::{memory, name, until};

/// Id of one test: waiters with the same id share their notifications in the whole process.
fn id(number: u128) -> LeaseId {
    LeaseId::from_uuid(uuid::Uuid::from_u128(0x0189_0a5d_ac96_774b_bcce_b302_099a_8000 + number))
}

#[tokio::test]
async fn the_same_id_gives_the_same_lease_and_token() {
    let leasehold = memory().await;
    let request = || leasehold.lock("lock").lease_id(id(1)).acquire();
    let first = request().await.unwrap().detach();
    let second = request().await.unwrap();
    assert_eq!((second.lease_id(), second.token()), (id(1), first[0].1.token));
    assert_eq!(leasehold.locks().status(&name("lock")).await.unwrap().holders.len(), 1);
}

#[tokio::test]
async fn a_lease_id_is_for_one_lock_and_keeping_a_ticket_requires_an_id() {
    let leasehold = memory().await;
    let several = leasehold.lock("a").and("b").lease_id(id(2)).acquire().await.unwrap_err();
    let without_id = leasehold.lock("a").keep_ticket().acquire().await.unwrap_err();
    assert_eq!((several.code(), without_id.code()), ("INVALID", "INVALID"));
}

#[tokio::test]
async fn a_dropped_request_leaves_its_ticket_to_the_next_one_with_the_same_id() {
    let leasehold = memory().await;
    let held = leasehold.lock("lock").acquire().await.unwrap();
    let request = || leasehold.lock("lock").lease_id(id(3)).wait(Duration::from_secs(30)).acquire();
    let first = tokio::spawn(request());
    until("it waits", async || leasehold.locks().status(&name("lock")).await.unwrap().waiters.len() == 1)
        .await;
    let second = tokio::spawn(request());
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    leasehold.clone().close().await;
    assert_eq!(leasehold.locks().status(&name("lock")).await.unwrap().waiters.len(), 1);
    held.release().await.unwrap();
    assert_eq!(second.await.unwrap().unwrap().lease_id(), id(3));
}

#[tokio::test]
async fn a_ticket_is_kept_after_the_timeout_only_on_request() {
    let leasehold = memory().await;
    let _held = leasehold.lock("lock").acquire().await.unwrap();
    let request = || leasehold.lock("lock").lease_id(id(4)).wait(Duration::from_millis(20));
    for (request, tickets) in [(request().keep_ticket(), 1), (request(), 0)] {
        assert!(matches!(request.acquire().await, Err(Error::Conflict { .. })));
        assert_eq!(leasehold.locks().status(&name("lock")).await.unwrap().waiters.len(), tickets);
    }
}
