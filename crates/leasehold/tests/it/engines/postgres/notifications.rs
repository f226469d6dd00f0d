//! Notifications: exactly the waiter that was granted the lock, and only if it is in another process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{LeaseId, LockName, LockOp, Withdraw};
use leasehold::store::postgres::PostgresStore;
use leasehold::store::{LockStore, Recipient, Store, Wakeup};
use leasehold::testing::TestClient;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};

use super::schema::{Schema, until_only_the_listener_remains};
use crate::engines::support::engine_at;

fn new_id() -> LeaseId {
    LeaseId::from_uuid(uuid::Uuid::now_v7())
}

/// Receives the notifications on the schema's channel.
async fn listen(schema: &Schema) -> mpsc::UnboundedReceiver<String> {
    let url = engine_at("postgres");
    let (client, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let (sender, notifications) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification.payload().to_owned());
            }
        }
    });
    client.batch_execute(&format!("LISTEN leasehold_{}", schema.name)).await.unwrap();
    tokio::spawn(async move {
        let _client = client;
        std::future::pending::<()>().await;
    });
    notifications
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_granted_waiter_of_another_process_is_notified() {
    let schema = Schema::new();
    let store = schema.store().await;
    let [one, two, three] = [1, 2, 3].map(|number| {
        let mut player = TestClient::new(store.clone(), number, LockName::new("lock").unwrap());
        player.request.lease_id = new_id();
        player
    });
    let mut notifications = listen(&schema).await;
    let lease = one.acquire().await;
    // No caller in this process waits for these grants.
    two.expect_queued().await;
    three.expect_queued().await;
    one.release(&lease).await;
    assert_eq!(notifications.recv().await.unwrap(), format!("{} lock", two.id()));
    // This waiter is in this process: a NOTIFY would be useless.
    let mut changes = three.subscribe();
    let lease = two.acquire().await;
    two.release(&lease).await;
    match changes.next(Duration::from_secs(10)).await {
        Wakeup::Granted(served) => assert_eq!(served.lease.request.lease_id, three.id()),
        other => panic!("{other:?}"),
    }
    let lease = three.acquire().await;
    three.release(&lease).await;
    assert!(notifications.try_recv().is_err());
}

/// Returns the next wake-up that is not a poll.
async fn next_wakeup(changes: &mut leasehold::store::WaiterSubscription) -> Wakeup {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match changes.next(Duration::from_secs(30)).await {
            Wakeup::Poll if Instant::now() < until => {}
            wake => return wake,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_from_another_process_wakes_the_waiter() {
    let schema = Schema::new();
    let mut options = schema.options("");
    // No poll happens in time.
    options.poll = Duration::from_mins(1);
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let waiter = new_id();
    let mut changes = store.subscribe_waiter(Some(&LockName::new("lock").unwrap()), &waiter);
    let client = schema.client().await;
    let channel = format!("leasehold_{}", schema.name);
    assert!(matches!(next_wakeup(&mut changes).await, Wakeup::Missed), "the listener is connected");
    client.query("SELECT pg_notify($1, $2)", &[&channel, &"nonsense"]).await.unwrap();
    client.query("SELECT pg_notify($1, $2)", &[&channel, &format!("{waiter} lock")]).await.unwrap();
    assert!(matches!(next_wakeup(&mut changes).await, Wakeup::Hint), "there is no such lease");

    // Now there is one. The table is authoritative, not the payload, and only if the lease is newer than the last request.
    let player = |number| TestClient::new(store.clone(), number, LockName::new("lock").unwrap());
    let (one, mut two) = (player(1), player(2));
    two.request.lease_id = waiter;
    one.acquire().await;
    two.expect_queued().await;
    let handed_over = format!(
        "UPDATE {schema}.locks SET layout = 1, lease_id = (queue -> 0 ->> 'id')::uuid,
             holder = queue -> 0 ->> 'holder', queue = NULL, version = version + 1",
        schema = schema.name
    );
    client.batch_execute(&handed_over).await.unwrap();
    client.query("SELECT pg_notify($1, $2)", &[&channel, &format!("{waiter} lock")]).await.unwrap();
    assert!(matches!(next_wakeup(&mut changes).await, Wakeup::Hint), "it has an old token");
    client.batch_execute(&format!("UPDATE {}.locks SET token = token + 1", schema.name)).await.unwrap();
    client.query("SELECT pg_notify($1, $2)", &[&channel, &format!("{waiter} lock")]).await.unwrap();
    match next_wakeup(&mut changes).await {
        Wakeup::Granted(served) => assert_eq!(served.lease, *two.record().await.lease(&waiter).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Notifications are lost until the listener is connected again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_woken_when_the_listener_is_lost_and_connected() {
    let schema = Schema::new();
    let mut options = schema.options(&format!("application_name={}", schema.name));
    options.poll = Duration::from_mins(1);
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let mut changes = store.subscribe_waiter(Some(&LockName::new("lock").unwrap()), &new_id());
    assert!(matches!(next_wakeup(&mut changes).await, Wakeup::Missed), "the listener is connected");
    let client = schema.client().await;
    let listens = "FROM pg_stat_activity WHERE application_name = $1 AND starts_with(query, 'LISTEN')";
    let kill = format!("SELECT pg_terminate_backend(pid) {listens}");
    let killed = client.query(&kill, &[&schema.name]).await.unwrap().len();
    assert_eq!(killed, 1);
    assert!(matches!(next_wakeup(&mut changes).await, Wakeup::Missed), "the listener is lost");
    let listens = format!("SELECT 1 {listens}");
    while client.query(&listens, &[&schema.name]).await.unwrap().is_empty() {
        assert!(matches!(next_wakeup(&mut changes).await, Wakeup::Missed), "the listener is connected again");
    }
}

/// A caller has borrowed the connection that listens, and has a transaction open on it that ends with a rollback: a notice
/// of another caller is not part of that transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_is_not_part_of_a_transaction_of_another_caller() {
    let schema = Schema::new();
    let name = LockName::new("lock").unwrap();
    TestClient::new(schema.store().await, 1, name.clone()).acquire().await;
    let settings = format!("application_name={}", schema.name);
    let store = Arc::new(PostgresStore::connect(schema.options(&settings)).await.unwrap());
    let _waits = store.subscribe_waiter(Some(&name), &new_id());
    let client = schema.client().await;
    // The next operation borrows the connection that listens.
    until_only_the_listener_remains(&client, &schema.name).await;
    let mut notifications = listen(&schema).await;
    let blocker = schema.client().await;
    let lock_row = format!("BEGIN; SELECT FROM {}.locks FOR UPDATE", schema.name);
    blocker.batch_execute(&lock_row).await.unwrap();
    let pid: i32 = blocker.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let withdraws = tokio::spawn({
        let (store, withdraw) = (store.clone(), LockOp::Withdraw(Withdraw { lease_id: new_id() }));
        async move { store.apply(&name, &withdraw).await }
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))";
    while !withdraws.is_finished() && client.query_one(waiting, &[&pid]).await.unwrap().get::<_, i64>(0) == 0
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let notice = uuid::Uuid::now_v7();
    let to = [Recipient::from_uuid(notice)];
    let ((), unlocked) = tokio::join!(biased; store.notify(&to), blocker.batch_execute("COMMIT"));
    unlocked.unwrap();
    let _ = withdraws.await.unwrap();
    let received = tokio::time::timeout(Duration::from_secs(10), notifications.recv()).await;
    assert_eq!(received.expect("the notice was sent").unwrap(), notice.to_string());
}
