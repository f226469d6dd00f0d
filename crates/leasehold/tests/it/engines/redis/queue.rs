//! Waiters in a list beside the record, and removed records and lists.

use std::sync::Arc;

use leasehold::model::{LockName, Outcome};
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;
use leasehold::testing::TestClient;

use super::server::Server;
use super::support::{open, options, prefix};
use crate::engines::queue_differential;
use crate::engines::support::{clock, engine_at};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_random_run_of_a_queue_agrees_with_the_rules() {
    let url = engine_at("redis");
    // Each bucket keeps its share of the events.
    let (url, prefix, clock) = (format!("{url}?events=1000000"), prefix(), clock());
    queue_differential::random_operations_agree(
        [open(&url, &prefix, &clock).await, open(&url, &prefix, &clock).await],
        &clock,
    )
    .await;
}

/// Lock and its clients.
struct Lock {
    server: Server,
    store: Arc<RedisStore>,
    name: LockName,
    clients: [TestClient; 4],
}

impl Lock {
    /// Returns a lock that the first client holds and two clients wait for, and the token.
    async fn with_two_waiters() -> (Self, u64) {
        let server = Server::start(&[]).await;
        let store = Arc::new(RedisStore::connect(options(&server.url(), "leasehold")).await.unwrap());
        let name = LockName::new("lock").unwrap();
        let clients = [1, 2, 3, 4].map(|number| TestClient::new(store.clone(), number, name.clone()));
        let token = clients[0].acquire().await.token.get();
        clients[1].expect_queued().await;
        clients[2].expect_queued().await;
        (Self { server, store, name, clients }, token)
    }

    async fn key(&self, kind: &str) -> String {
        let keys: Vec<String> = self.server.command(&["KEYS", &format!("*:{kind}:lock")]).await.unwrap();
        keys[0].clone()
    }

    /// Returns the indexes of the waiters, in order.
    async fn waiters(&self) -> Vec<usize> {
        let record = self.store.locks().get(&self.name).await.unwrap().unwrap();
        let number = |id| self.clients.iter().position(|player| player.id() == id).unwrap();
        record.waiters.iter().map(|ticket| number(ticket.request.lease_id)).collect()
    }

    /// Releases the lease of the holder and returns the index of that client.
    async fn release(&self) -> usize {
        let record = self.store.locks().get(&self.name).await.unwrap().unwrap();
        let lease = &record.holders[0];
        let number = self.clients.iter().position(|player| player.id() == lease.request.lease_id).unwrap();
        assert!(matches!(self.clients[number].release(lease).await, Outcome::Released(_)));
        number
    }
}

#[tokio::test]
async fn a_queue_is_kept_by_a_renewal_and_granted_in_order() {
    let (lock, token) = Lock::with_two_waiters().await;
    let listed = lock.store.locks().list(&leasehold::store::ListLocks::default()).await.unwrap();
    assert_eq!(listed.items[0].waiters.len(), 2);
    lock.clients[0].renew(&lock.clients[0].record().await.holders[0]).await;
    assert_eq!(lock.waiters().await, [1, 2], "a renewal keeps the queue");
    lock.clients[3].expect_queued().await;
    assert_eq!(lock.waiters().await, [1, 2, 3]);
    for number in 0..4 {
        assert_eq!(lock.release().await, number);
    }
    let record = lock.clients[0].record().await;
    assert!(record.holders.is_empty() && record.waiters.is_empty() && record.token.get() > token);
    let keys: Vec<String> = lock.server.command(&["KEYS", "*:queue:*"]).await.unwrap();
    assert!(keys.is_empty(), "no list is left: {keys:?}");
}

/// Waiters repeat their requests and so rejoin a removed queue; no client gets the lock twice.
#[tokio::test]
async fn a_removed_queue_is_rebuilt() {
    let (lock, _) = Lock::with_two_waiters().await;
    lock.server.command::<u64>(&["DEL", &lock.key("queue").await]).await.unwrap();
    assert!(lock.waiters().await.is_empty());
    for number in [3, 2, 1] {
        lock.clients[number].expect_queued().await;
    }
    assert_eq!(lock.waiters().await, [3, 2, 1]);
    for number in [0, 3, 2, 1] {
        assert_eq!(lock.release().await, number);
    }
}

/// A queue that outlived its record does not precede new waiters.
#[tokio::test]
async fn a_queue_without_its_record_is_discarded() {
    let (lock, _) = Lock::with_two_waiters().await;
    lock.server.command::<u64>(&["DEL", &lock.key("lock").await]).await.unwrap();
    lock.clients[3].acquire().await;
    lock.clients[0].expect_queued().await;
    assert_eq!(lock.waiters().await, [0]);
    assert_eq!((lock.release().await, lock.release().await), (3, 0));
    assert!(lock.clients[0].record().await.holders.is_empty());
}

/// Peeking and refreshing a ticket cost the same with any number of waiters: in commands, and in
/// bytes that the server sends.
#[tokio::test]
async fn a_waiter_costs_the_same_in_any_queue() {
    let server = Server::start(&[]).await;
    let store = Arc::new(RedisStore::connect(options(&server.url(), "leasehold")).await.unwrap());
    let sent = async || {
        let info: String = server.command(&["INFO", "stats"]).await.unwrap();
        let sent = info.lines().find_map(|line| line.trim_end().strip_prefix("total_net_output_bytes:"));
        let sent: u64 = sent.unwrap().parse().unwrap();
        let mut commands = [0; 4];
        for (count, command) in commands.iter_mut().zip(["lrange", "set", "setrange", "lset"]) {
            *count = server.calls(command).await;
        }
        (sent, commands)
    };
    let mut costs = Vec::new();
    for count in [10, 900] {
        let name = LockName::new(format!("lock-{count}")).unwrap();
        let player = |number: u128| TestClient::new(store.clone(), 100_000 + number, name.clone());
        player(0).acquire_for(600).await;
        for number in 1..=count {
            player(number).expect_queued_for(600).await;
        }
        let last = player(count);
        last.peek().await;
        let start = sent().await;
        for _ in 0..50 {
            assert!(last.peek().await.lease.is_none());
        }
        let peeked = sent().await;
        for _ in 0..50 {
            assert_eq!(last.expect_queued_for(600).await.ahead, u32::try_from(count).unwrap() - 1);
        }
        let refreshed = sent().await;
        assert_eq!(start.1, peeked.1, "a peek reads no list and writes nothing");
        let written: Vec<_> =
            refreshed.1.iter().zip(peeked.1).map(|(after, before)| after - before).collect();
        assert_eq!(written, [0, 0, 50, 50], "a refresh reads no list, and writes no record");
        costs.push((peeked.0 - start.0, refreshed.0 - peeked.0));
    }
    // Both include the commands of this test, whose replies grow with the numbers in them. Reading the
    // long queue fifty times would be millions of bytes.
    let [(peek, refresh), (peek_long, refresh_long)] = costs[..] else { panic!("{costs:?}") };
    assert!(peek_long < peek + 10_000 && refresh_long < refresh + 10_000, "{costs:?}");
}
