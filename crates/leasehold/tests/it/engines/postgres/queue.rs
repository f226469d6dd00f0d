//! A plain queue: joining it and handing over are one statement each, or one for both, and the same as the rules would do.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LeaseId, Leave, LockName, LockOp, LockRecord, Outcome, Release, Renew, Ttl};
use leasehold::store::postgres::PostgresStore;
use leasehold::store::{Cursor, ListEvents, LockStore, Span};
use leasehold::testing::Player;

use super::server::{Schema, last_words};
use crate::engines::support::clock;

#[tokio::test]
async fn joining_and_handing_over_are_one_statement_each() {
    let Some(schema) = Schema::new() else { return };
    let application = schema.name.clone();
    let options = schema.options(&format!("pool=1&application_name={application}"));
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
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

/// What waits for the lane goes together: whoever comes joins with the statement that hands over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_joins_with_the_hand_over() {
    let Some(schema) = Schema::new() else { return };
    let store = Arc::new(PostgresStore::connect(schema.options("pool=1")).await.unwrap());
    let client = schema.client().await;
    let player = |number, name| Player::new(store.clone(), number, LockName::new(name).unwrap());
    let [one, two, three] = [1, 2, 3].map(|number| player(number, "lock"));
    let other = player(4, "other");
    let lease = other.takes().await;
    assert!(matches!(other.releases(&lease).await, Outcome::Released(_)));
    let lease = one.takes().await;
    assert!(matches!(two.asks_in_line().await, Outcome::Queued(_)));

    let hold = format!("BEGIN; SELECT * FROM {}.locks WHERE name = 'other' FOR UPDATE", schema.name);
    client.batch_execute(&hold).await.unwrap();
    let lane = tokio::spawn(async move { other.asks().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let comes = tokio::spawn(async move { three.asks_in_line().await });
    let goes = tokio::spawn(async move { one.releases(&lease).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.batch_execute("COMMIT").await.unwrap();

    assert!(matches!(lane.await.unwrap(), Outcome::Granted(_)));
    assert!(matches!(goes.await.unwrap(), Outcome::Released(_)));
    let Outcome::Queued(queued) = comes.await.unwrap() else { panic!("not queued") };
    assert_eq!((queued.ahead, queued.conflict.waiters), (0, 1));
    assert_eq!(queued.conflict.holders[0].holder, two.ask.holder, "behind the one who was served");
    let sql = format!(
        "SELECT string_agg(kind, ' ' ORDER BY seq), count(DISTINCT by) FROM
            (SELECT seq, kind, xmin::text AS by FROM {}.events WHERE lock = 'lock' ORDER BY seq DESC LIMIT 3) e",
        schema.name
    );
    let row = client.query_one(&sql, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), ("released acquired queued", 1_i64), "one transaction");
}

/// Random operations of eight players on one lock, most of them such as a plain queue sees, and sometimes two at once: each as
/// the rules say.
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
        let mut random = || {
            let player = Player::new(store.clone(), dice.u128(1..9), name.clone());
            random_op(&mut dice, &player, &record)
        };
        let (one, two) = (random(), random());
        let (found, orders) = if dice.bool() {
            (vec![store.apply(&name, &one).await.unwrap()], vec![vec![one]])
        } else {
            let (first, second) = tokio::join!(store.apply(&name, &one), store.apply(&name, &two));
            // They may be done in either order; the answers stand in that of the asking.
            (vec![first.unwrap(), second.unwrap()], vec![vec![one.clone(), two.clone()], vec![two, one]])
        };
        let row = stores[0].get(&name).await.unwrap();
        let agrees = orders.iter().enumerate().find_map(|(turned, ops)| {
            let (mut after, mut told, mut outcomes) = (record.clone(), Vec::new(), Vec::new());
            for op in ops {
                let applied = after.apply(op, clock.now());
                told.extend(applied.events);
                outcomes.push(applied.outcome);
            }
            if turned == 1 {
                outcomes.reverse();
            }
            let same = outcomes == found && row == (after.version > 0).then(|| after.clone());
            same.then_some((after, told))
        });
        let (after, told) = agrees.unwrap_or_else(|| panic!("step {step}: {orders:?}\n{found:?}\n{row:?}"));
        record = after;
        events.extend(told);
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
