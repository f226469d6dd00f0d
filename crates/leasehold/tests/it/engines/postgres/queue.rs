//! A plain queue: joining it and handing over are one statement each, or one for both, and the same as the rules would do.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{LockName, Outcome};
use leasehold::store::postgres::PostgresStore;
use leasehold::testing::Player;

use super::server::{Schema, last_words};
use crate::engines::story;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_story_of_a_queue_agrees_with_the_rules() {
    let Some(schema) = Schema::new() else { return };
    let clock = clock();
    let stores = [schema.store_at(&clock, "pool=1").await, schema.store_at(&clock, "pool=1").await];
    story::of_a_queue(stores, &clock).await;
}
