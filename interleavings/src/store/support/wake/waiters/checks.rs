//! Grants that arrive while a waiter subscribes, sends requests and waits.

use std::sync::Arc;
use std::time::Duration;

use shuttle::future::{block_on, spawn, yield_now};
use shuttle::sync::Mutex;

use super::subject::{Waiters, Wakeup, wake_by_id};
use crate::model::{Holder, Lease, LeaseId, LeaseStatus, LockName, LockRequest, Timestamp, Token, Ttl};
use crate::simulated::{maybe_cancelled, polled};
use crate::store::BootInstant;

const POLL: Duration = Duration::from_secs(1);

fn lock() -> LockName {
    LockName::new("lock").expect("a name")
}

fn id() -> LeaseId {
    LeaseId::from_uuid(uuid::Uuid::from_u128(1))
}

fn lease(token: u64) -> Lease {
    let holder = Holder::new("ada").expect("a name");
    let time = Timestamp::from_micros(1);
    Lease {
        request: Arc::new(LockRequest::new(id(), holder, Ttl::from_secs(9))),
        token: Token::new(token).expect("a token"),
        acquired_at: time,
        renewed_at: time,
        expires_at: time,
        renewals: 0,
        status: LeaseStatus::Active,
        release_request: None,
        took_over: None,
    }
}

/// The waiter never queries the store: the lease itself has to arrive.
pub fn a_lease_that_is_granted_in_this_process_reaches_its_waiter() {
    block_on(async {
        let waiters = Waiters::default();
        let mut subscription = waiters.subscribe(Some(&lock()), id(), POLL);
        let granting = spawn(async move {
            wake_by_id(&id());
            assert!(waiters.wake_local(&lock(), vec![lease(7)], BootInstant::now()).is_empty());
        });
        let granted = loop {
            if let Wakeup::Granted(granted) = subscription.next(POLL).await {
                break granted;
            }
        };
        assert_eq!(granted.lease.token.get(), 7);
        granting.await.expect("no panic");
        drop(subscription);
        assert_eq!(
            waiters.wake_local(&lock(), vec![lease(8)], BootInstant::now()).len(),
            1,
            "nothing remains"
        );
    });
}

/// The store grants the lock, and then sends a hint. A waiter subscribes before it queries the store.
pub fn no_hint_is_lost_between_the_query_and_the_wait() {
    block_on(async {
        let (waiters, store) = (Waiters::default(), Arc::new(Mutex::new(false)));
        let granting = spawn({
            let store = store.clone();
            async move {
                *store.lock().expect("no panic") = true;
                yield_now().await;
                wake_by_id(&id());
            }
        });
        let mut subscription = waiters.subscribe(Some(&lock()), id(), POLL);
        loop {
            let granted = *store.lock().expect("no panic");
            if granted {
                break;
            }
            // A caller may drop one wait and begin another.
            maybe_cancelled(subscription.next(POLL)).await;
        }
        granting.await.expect("no panic");
    });
}

/// A lease that was granted before the last request was sent may be over by now.
pub fn a_lease_that_is_older_than_the_last_request_is_not_delivered() {
    block_on(async {
        let waiters = Waiters::default();
        let mut subscription = waiters.subscribe(Some(&lock()), id(), POLL);
        let granters: Vec<_> = [1, 3]
            .map(|number| {
                spawn(async move {
                    waiters.deliver_remote_grant(&lock(), lease(number), |request| number > request);
                })
            })
            .into();
        for request in [0, 2] {
            assert!(waiters.register_request(&lock(), &id(), request, BootInstant::now()));
            if let Some(Wakeup::Granted(granted)) = polled(subscription.next(POLL)).await {
                assert!(granted.lease.token.get() > request, "a lease from before the request");
            }
        }
        for granting in granters {
            granting.await.expect("no panic");
        }
    });
}
