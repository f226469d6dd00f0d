//! Wake-ups: exactly the waiter that has been served, and only if it is in another process.

use std::time::{Duration, Instant};

use leasehold::model::{LeaseId, LockName};
use leasehold::store::{LockStore, Wakeup};
use leasehold::testing::Player;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};

use super::server::Schema;
use crate::engines::support::engine_at;

fn new_id() -> LeaseId {
    LeaseId::from_uuid(uuid::Uuid::now_v7())
}

/// What is said on the schema's channel.
async fn listen(schema: &Schema) -> mpsc::UnboundedReceiver<String> {
    let url = engine_at("postgres").unwrap();
    let (client, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let (say, said) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = say.send(notification.payload().to_owned());
            }
        }
    });
    client.batch_execute(&format!("LISTEN leasehold_{}", schema.name)).await.unwrap();
    tokio::spawn(async move {
        let _client = client;
        std::future::pending::<()>().await;
    });
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_elsewhere_is_told_and_nobody_else() {
    let Some(schema) = Schema::new() else { return };
    let store = schema.store().await;
    let [one, two, three] = [1, 2, 3].map(|number| {
        let mut player = Player::new(store.clone(), number, LockName::new("lock").unwrap());
        player.ask.lease_id = new_id();
        player
    });
    let mut said = listen(&schema).await;
    let lease = one.takes().await;
    // Nobody in this process waits for these wake-ups.
    two.queues().await;
    three.queues().await;
    one.releases(&lease).await;
    assert_eq!(said.recv().await.unwrap(), format!("{} lock", two.id()));
    // This one does: a word to the database would be wasted.
    let mut changes = three.changes();
    let lease = two.takes().await;
    two.releases(&lease).await;
    match changes.next(Duration::from_secs(10)).await {
        Wakeup::Served(served) => assert_eq!(served.lease.ask.lease_id, three.id()),
        other => panic!("{other:?}"),
    }
    let lease = three.takes().await;
    three.releases(&lease).await;
    assert!(said.try_recv().is_err());
}

/// The next wake-up that is not for the clock: until the listener stands, a waiter polls.
async fn word(changes: &mut leasehold::store::WaiterSubscription) -> Wakeup {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match changes.next(Duration::from_secs(10)).await {
            Wakeup::Poll if Instant::now() < until => {}
            wake => return wake,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_word_from_elsewhere_wakes_the_waiter() {
    let Some(schema) = Schema::new() else { return };
    let mut options = schema.options("");
    // No poll would come in time.
    options.poll = Duration::from_mins(1);
    let store = leasehold::store::postgres::PostgresStore::connect(options).await.unwrap();
    let store = std::sync::Arc::new(store);
    let waiter = new_id();
    let mut changes = store.changes(Some(&LockName::new("lock").unwrap()), &waiter);
    let client = schema.client().await;
    let channel = format!("leasehold_{}", schema.name);
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(query, $1) AND state = 'idle'";
    while client.query_one(listens, &[&format!("LISTEN {channel}")]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.query("SELECT pg_notify($1, $2)", &[&channel, &"nonsense"]).await.unwrap();
    client.query("SELECT pg_notify($1, $2)", &[&channel, &format!("{waiter} lock")]).await.unwrap();
    assert!(matches!(word(&mut changes).await, Wakeup::Rung), "there is no such lease");

    // Now there is one. What is believed is the table, not the word, and only if it is newer than the last asking.
    let player = |number| Player::new(store.clone(), number, LockName::new("lock").unwrap());
    let (one, mut two) = (player(1), player(2));
    two.ask.lease_id = waiter;
    one.takes().await;
    two.queues().await;
    let handed_over = format!(
        "UPDATE {schema}.locks SET held = true, lease_id = (queue -> 0 ->> 'id')::uuid,
             holder = queue -> 0 ->> 'holder', record = NULL, queue = NULL, version = version + 1",
        schema = schema.name
    );
    client.batch_execute(&handed_over).await.unwrap();
    client.query("SELECT pg_notify($1, $2)", &[&channel, &format!("{waiter} lock")]).await.unwrap();
    assert!(matches!(word(&mut changes).await, Wakeup::Rung), "it has an old token");
    client.batch_execute(&format!("UPDATE {}.locks SET token = token + 1", schema.name)).await.unwrap();
    client.query("SELECT pg_notify($1, $2)", &[&channel, &format!("{waiter} lock")]).await.unwrap();
    match word(&mut changes).await {
        Wakeup::Served(served) => assert_eq!(served.lease, *two.record().await.lease(&waiter).unwrap()),
        other => panic!("{other:?}"),
    }
}
