//! Leases that outlive their guard.

use std::time::Duration;

use super::support::{memory, name};

#[tokio::test]
async fn a_detached_lease_stays_and_is_released_by_its_id_and_token() {
    let leasehold = memory().await;
    let a = name("a");
    let guard = leasehold.lock("a").process(None).acquire().await.unwrap();
    let leases = guard.detach();
    let [(held, lease)] = leases.as_slice() else { panic!("{leases:?}") };
    leasehold.clone().close().await;
    assert_eq!(*held, a);
    assert!(leasehold.locks().status(&a).await.unwrap().is_locked);
    let (id, token) = (lease.request.lease_id, lease.token);
    leasehold.locks().renew(&a, id, token, None).await.unwrap();
    leasehold.locks().release(&a, id, token).await.unwrap();
    assert!(!leasehold.locks().status(&a).await.unwrap().is_locked);
}

#[tokio::test]
async fn a_handed_over_lease_is_confirmed_for_its_full_ttl() {
    let leasehold = memory().await;
    let first = leasehold.lock("a").acquire().await.unwrap();
    let ttl = Duration::from_mins(1);
    let next = leasehold.lock("a").ttl(ttl).process(None).wait(Duration::from_secs(10)).acquire();
    let (next, released) = tokio::join!(next, async {
        tokio::task::yield_now().await;
        first.release().await
    });
    released.unwrap();
    let next = next.unwrap();
    let token = next.token();
    next.confirm().await.unwrap();
    let (_, lease) = next.detach().remove(0);
    assert_eq!(lease.expires_at.since(lease.renewed_at), ttl);
    assert_eq!(lease.token, token);
}

#[tokio::test]
async fn a_detached_lease_is_not_renewed() {
    let leasehold = memory().await;
    let a = name("a");
    let lock = leasehold.lock("a").ttl(Duration::from_millis(300)).renew_at(0.05);
    let (_, lease) = lock.acquire().await.unwrap().detach().remove(0);
    let mut status = leasehold.locks().status(&a).await.unwrap();
    while status.is_locked {
        tokio::time::sleep(Duration::from_millis(10)).await;
        status = leasehold.locks().status(&a).await.unwrap();
    }
    // At most the one renewal that was in flight when the lease was detached.
    assert!(status.holders[0].renewals <= lease.renewals + 1, "{status:?}");
}
