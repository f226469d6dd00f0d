//! Random operations on the queue of one lock, compared with the model.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LeaseId, LockName, LockOp, LockRecord, Release, Renew, Ttl, Withdraw};
use leasehold::store::{Clock, Cursor, EventRange, ListEvents, Store};
use leasehold::testing::TestClient;

/// Applies random operations of eight clients to one lock, sometimes two at once, and compares each result with the
/// model. Most operations are typical of a plain queue. The stores act as two processes: one of them may not know
/// the changes of the other.
pub(super) async fn random_operations_agree<S: Store + 'static>(stores: [Arc<S>; 2], clock: &Clock) {
    let name = LockName::new("lock").unwrap();
    let (mut record, mut events) = (LockRecord::new(name.clone()), Vec::new());
    let mut dice = fastrand::Rng::with_seed(23);
    for step in 0..1500 {
        clock.advance(Duration::from_millis(if dice.u8(0..40) == 0 { 9_000 } else { dice.u64(0..20) }));
        let store = stores[dice.usize(0..2)].clone();
        let mut random = || {
            let client = TestClient::new(store.clone(), dice.u128(1..9), name.clone());
            random_op(&mut dice, &client, &record)
        };
        let (one, two) = (random(), random());
        let (found, orders) = if dice.bool() {
            (vec![store.locks().apply(&name, &one).await.unwrap()], vec![vec![one]])
        } else {
            let (first, second) =
                tokio::join!(store.locks().apply(&name, &one), store.locks().apply(&name, &two));
            // They may be applied in either order; the answers are in the order of the requests.
            (vec![first.unwrap(), second.unwrap()], vec![vec![one.clone(), two.clone()], vec![two, one]])
        };
        let row = stores[0].locks().get(&name).await.unwrap();
        let agrees = orders.iter().enumerate().find_map(|(index, ops)| {
            let (mut after, mut new_events, mut outcomes) = (record.clone(), Vec::new(), Vec::new());
            for op in ops {
                let applied = after.apply(op, clock.now());
                new_events.extend(applied.events);
                outcomes.push(applied.outcome);
            }
            if index == 1 {
                outcomes.reverse();
            }
            let same = outcomes == found && row == (after.version > 0).then(|| after.clone());
            same.then_some((after, new_events))
        });
        let (after, new_events) =
            agrees.unwrap_or_else(|| panic!("step {step}: {orders:?}\n{found:?}\n{row:?}"));
        record = after;
        events.extend(new_events);
    }
    let mut query = ListEvents::default().lock(name).span(EventRange::After(Cursor::start())).limit(1000);
    let mut all = Vec::new();
    while all.len() < events.len() {
        let page = stores[0].locks().history(&query).await.unwrap();
        assert!(!page.items.is_empty(), "{} of {} events", all.len(), events.len());
        all.extend(page.items);
        query.span = EventRange::After(page.next.unwrap());
    }
    assert_eq!(all, events);
}

fn random_op(dice: &mut fastrand::Rng, client: &TestClient, record: &LockRecord) -> LockOp {
    let holder = record.holders.first();
    match dice.u8(0..20) {
        // Mostly releases and acquisitions.
        0..8 => holder.map_or_else(
            || LockOp::Withdraw(Withdraw { lease_id: client.id() }),
            |lease| {
                let at_least = (dice.u8(0..20) == 0).then_some(Ttl::from_millis(50));
                LockOp::Release(Release { lease_id: lease.request.lease_id, token: lease.token, at_least })
            },
        ),
        8 => LockOp::Withdraw(Withdraw { lease_id: client.id() }),
        9 => {
            let (lease_id, token) = holder.map_or_else(
                || (LeaseId::from_uuid(uuid::Uuid::nil()), record.token),
                |lease| (lease.request.lease_id, lease.token),
            );
            LockOp::Renew(Renew { lease_id, token, ttl: None })
        }
        _ => {
            let mut client = client.clone();
            match dice.u8(0..40) {
                0 => client = client.priority(1),
                1 => client = client.shared(),
                2 => client = client.slots(2),
                3..10 => client = client.meta("user", "ada \"b\" \u{1F600}"),
                _ => {}
            }
            let queue = (dice.u8(0..10) > 0).then_some(Ttl::from_secs(10));
            LockOp::Acquire(Acquire { request: Arc::new(client.request), queue, steal_after: None })
        }
    }
}
