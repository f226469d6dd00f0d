//! A plain queue: joining it and handing over are one statement each, and the same as the rules would do.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LeaseId, Leave, LockName, LockOp, LockRecord, Outcome, Release, Renew, Ttl};
use leasehold::store::{Cursor, ListEvents, LockStore, Span};
use leasehold::testing::Player;

use super::server::{Schema, last_words};
use crate::engines::support::clock;

#[tokio::test]
async fn joining_and_handing_over_are_one_statement_each() {
    let Some(schema) = Schema::new() else { return };
    let application = schema.name.clone();
    let options = schema.options(&format!("pool=1&application_name={application}"));
    let store = Arc::new(leasehold::store::postgres::PostgresStore::connect(options).await.unwrap());
    let client = schema.client().await;
    let [one, two, three] =
        [1, 2, 3].map(|number| Player::new(store.clone(), number, LockName::new("lock").unwrap()));
    let lease = one.takes().await;
    for (ahead, player) in [&two, &three].into_iter().enumerate() {
        let Outcome::Queued(queued) = player.asks_in_line().await else { panic!("not queued") };
        assert_eq!((queued.ahead as usize, queued.conflict.waiters as usize), (ahead, ahead + 1));
        let words = last_words(&client, &application).await;
        assert!(words.last().unwrap().contains("jsonb_build_object"), "{words:?}");
    }
    assert!(matches!(one.releases(&lease).await, Outcome::Released(_)));
    // Whoever was served may wait in another process, which is told afterwards.
    let words = last_words(&client, &application).await;
    let last = words.last().unwrap();
    assert!(last.starts_with("WITH old AS") || last.contains("pg_notify"), "{words:?}");
    assert_eq!(words.len(), 1, "one connection for it all");
    assert!(two.record().await.lease(&two.id()).is_some());
}

/// Random operations of eight players on one lock, most of them such as a plain queue sees: each as the rules say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_story_of_a_queue_agrees_with_the_rules() {
    let Some(schema) = Schema::new() else { return };
    let clock = clock();
    // Two processes, one of which may not know what the other has made of the lock.
    let stores = [schema.store_at(&clock, "pool=1").await, schema.store_at(&clock, "pool=1").await];
    let name = LockName::new("lock").unwrap();
    let (mut record, mut events) = (LockRecord::new(name.clone()), Vec::new());
    let mut dice = fastrand::Rng::with_seed(23);
    for step in 0..1500 {
        clock.advance(Duration::from_millis(if dice.u8(0..40) == 0 { 9_000 } else { dice.u64(0..20) }));
        let store = stores[dice.usize(0..2)].clone();
        let player = Player::new(store.clone(), dice.u128(1..9), name.clone());
        let op = random_op(&mut dice, &player, &record);
        let expected = record.apply(&op, clock.now());
        events.extend(expected.events);
        assert_eq!(store.apply(&name, &op).await.unwrap(), expected.outcome, "step {step}: {op:?}");
        let found = stores[0].get(&name).await.unwrap();
        assert_eq!(found, (record.version > 0).then(|| record.clone()), "step {step}: {op:?}");
    }
    let mut ask = ListEvents { lock: Some(name), span: Span::After(Cursor::start()), limit: 1000 };
    let mut all = Vec::new();
    while all.len() < events.len() {
        let page = stores[0].history(&ask).await.unwrap();
        assert!(!page.items.is_empty(), "{} of {} events", all.len(), events.len());
        all.extend(page.items);
        ask.span = Span::After(page.next.unwrap());
    }
    assert_eq!(all, events);
}

fn random_op(dice: &mut fastrand::Rng, player: &Player, record: &LockRecord) -> LockOp {
    let holder = record.holders.first();
    match dice.u8(0..20) {
        // Mostly whoever has the lock gives it back, and others come.
        0..8 => holder.map_or_else(
            || LockOp::Leave(Leave { lease_id: player.id() }),
            |lease| {
                let at_least = (dice.u8(0..20) == 0).then_some(Ttl::from_millis(50));
                LockOp::Release(Release { lease_id: lease.ask.lease_id, token: lease.token, at_least })
            },
        ),
        8 => LockOp::Leave(Leave { lease_id: player.id() }),
        9 => {
            let (lease_id, token) = holder.map_or_else(
                || (LeaseId::from_uuid(uuid::Uuid::nil()), record.token),
                |lease| (lease.ask.lease_id, lease.token),
            );
            LockOp::Renew(Renew { lease_id, token, ttl: None })
        }
        _ => {
            let mut player = player.clone();
            match dice.u8(0..40) {
                0 => player = player.priority(1),
                1 => player = player.shared(),
                2 => player = player.slots(2),
                3..10 => player = player.meta("user", "ada \"b\" \u{1F600}"),
                _ => {}
            }
            let queue = (dice.u8(0..10) > 0).then_some(Ttl::from_secs(10));
            LockOp::Acquire(Acquire { ask: Arc::new(player.ask), queue, steal_after: None })
        }
    }
}
