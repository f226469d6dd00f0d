//! The server becomes a replica, while the connections to it stay open: a planned failover behind a name or a
//! virtual address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use leasehold::model::{Acquire, LockName, LockOp};
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;
use leasehold::testing::TestClient;
use tokio::net::{TcpListener, TcpStream};

use super::server::{Server, free_port};
use super::support::options;
use crate::engines::proxy::Proxy;

/// Address that leads new connections to one server. Those that are open stay.
struct Relay {
    address: SocketAddr,
    port: Arc<AtomicU16>,
}

impl Relay {
    async fn to(server: &Server) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, port) = (listener.local_addr().unwrap(), Arc::new(AtomicU16::new(server.port())));
        let target = port.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut server =
                    TcpStream::connect(("127.0.0.1", target.load(Ordering::Relaxed))).await.unwrap();
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
            }
        });
        Self { address, port }
    }

    fn lead_to(&self, server: &Server) {
        self.port.store(server.port(), Ordering::Relaxed);
    }
}

/// Makes the server a replica. Its master does not exist: the server must not load any data.
async fn demote(server: &Server) {
    let port = free_port().to_string();
    server.command::<String>(&["REPLICAOF", "127.0.0.1", &port]).await.unwrap();
}

fn acquire(client: &TestClient) -> LockOp {
    LockOp::Acquire(Acquire { request: Arc::new(client.request.clone()), queue: None, steal_after: None })
}

#[tokio::test]
async fn the_client_connects_again_to_the_new_master() {
    let (old, new) = (Server::start(&[]).await, Server::start(&[]).await);
    let relay = Relay::to(&old).await;
    let store = RedisStore::connect(options(&format!("redis://{}", relay.address), "p")).await.unwrap();
    let store = Arc::new(store);
    let client =
        |number: u128, lock: &str| TestClient::new(store.clone(), number, LockName::new(lock).unwrap());
    client(1, "one").acquire().await;
    demote(&old).await;
    relay.lead_to(&new);
    let two = client(2, "two");
    // The connection is kept for a moment after it was opened.
    let acquired = async {
        while let Err(error) = store.locks().apply(&two.lock, &acquire(&two)).await {
            assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), acquired).await.expect("the new master is found");
    let stored: Vec<String> = new.command(&["KEYS", "*:lock:*"]).await.unwrap();
    assert_eq!(stored.len(), 1, "{stored:?}");
}

/// A new connection would lead to the same server.
#[tokio::test]
async fn calls_to_a_replica_do_not_each_open_a_connection() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::before(SocketAddr::from(([127, 0, 0, 1], server.port())));
    let store = RedisStore::connect(options(&format!("redis://{}", proxy.address()), "p")).await.unwrap();
    let client = TestClient::new(Arc::new(store), 1, LockName::new("one").unwrap());
    demote(&server).await;
    let (started, before) = (Instant::now(), proxy.counts().connections);
    for _ in 0..50 {
        let error = client.store.locks().apply(&client.lock, &acquire(&client)).await.unwrap_err();
        assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    }
    let (opened, took) = (proxy.counts().connections - before, started.elapsed());
    assert!(opened <= took.as_secs() + 1, "{opened} connections in {took:?}");
}
