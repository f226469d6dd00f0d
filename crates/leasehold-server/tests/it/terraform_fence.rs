//! A write in flight when its lock is lost must not overwrite the state that the next holder has read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use leasehold::store::memory::MemoryStore;
use leasehold::store::{
    Capabilities, Cursor, Document, DocumentStore, LockStore, NewDocument, Page, PutIf, Store, TaskStore,
    Time,
};
use leasehold::{Leasehold, Result};
use leasehold_server::Access;
use tokio::sync::Semaphore;

use crate::terraform::{ADA, BOB, state};
use crate::test_server::TestServer;

/// Store that can delay the write of a state index.
struct Held {
    store: MemoryStore,
    armed: AtomicBool,
    arrived: Semaphore,
    go: Semaphore,
}

impl Held {
    fn documents(&self) -> &dyn DocumentStore {
        self.store.documents().unwrap()
    }
}

#[async_trait]
impl Store for Held {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    fn url(&self) -> String {
        self.store.url()
    }
    fn locks(&self) -> &dyn LockStore {
        self.store.locks()
    }
    fn tasks(&self) -> Option<&dyn TaskStore> {
        self.store.tasks()
    }
    fn documents(&self) -> Option<&dyn DocumentStore> {
        Some(self)
    }
}

#[async_trait]
impl DocumentStore for Held {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    fn url(&self) -> String {
        self.store.url()
    }
    async fn get(&self, key: &str) -> Result<Option<Document>> {
        self.documents().get(key).await
    }
    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        if key.contains("server/tf/") && self.armed.swap(false, Ordering::SeqCst) {
            self.arrived.add_permits(1);
            self.go.acquire().await.unwrap().forget();
        }
        self.documents().put_if(key, expected, draft).await
    }
    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        self.documents().list(prefix, after, limit).await
    }
    async fn time(&self) -> Result<Time> {
        self.documents().time().await
    }
}

async fn server() -> (Arc<TestServer>, Arc<Held>) {
    let (armed, arrived, go) = (AtomicBool::new(false), Semaphore::new(0), Semaphore::new(0));
    let held = Arc::new(Held { store: MemoryStore::new(), armed, arrived, go });
    let leasehold = Leasehold::with_store(held.clone()).unwrap();
    (Arc::new(TestServer::over(leasehold, Access::Open).await), held)
}

#[tokio::test]
async fn a_write_in_flight_is_rejected_after_another_client_locked() {
    let (server, held) = server().await;
    server.lock(ADA).await;
    assert_eq!(server.put(ADA, 1).await.status, 200);
    held.armed.store(true, Ordering::SeqCst);
    let late = tokio::spawn({
        let server = server.clone();
        async move { server.put(ADA, 2).await }
    });
    // Ada's lease was active when the server checked it; now it is released by force, and Bob reads
    // the state.
    held.arrived.acquire().await.unwrap().forget();
    server.tf("UNLOCK", "/tf/prod", None).await;
    assert_eq!(server.lock(BOB).await.status, 200);
    assert_eq!(server.get("/tf/prod").await.body, state(1));
    held.go.add_permits(1);
    let late = late.await.unwrap();
    assert_eq!((late.status, late.code()), (409, "LEASE_LOST"));
    assert_eq!(server.get("/tf/prod").await.body, state(1));
    assert_eq!(server.put(BOB, 2).await.status, 200);
}

#[tokio::test]
async fn a_write_in_flight_is_rejected_after_a_forced_unlock() {
    let (server, held) = server().await;
    server.lock(ADA).await;
    held.armed.store(true, Ordering::SeqCst);
    let late = tokio::spawn({
        let server = server.clone();
        async move { server.put(ADA, 1).await }
    });
    held.arrived.acquire().await.unwrap().forget();
    assert_eq!(server.tf("UNLOCK", "/tf/prod", None).await.status, 200);
    held.go.add_permits(1);
    assert_eq!(late.await.unwrap().status, 409);
    assert_eq!(server.get("/tf/prod").await.status, 404);
}

/// Each client increments the number that it reads under its lock while another client unlocks by
/// force: no increment is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_confirmed_write_is_lost_although_locks_are_forced() {
    let server = Arc::new(TestServer::open().await);
    let over = Arc::new(AtomicBool::new(false));
    let thief = tokio::spawn({
        let (server, over) = (server.clone(), over.clone());
        async move {
            while !over.load(Ordering::SeqCst) {
                server.tf("UNLOCK", "/tf/prod", None).await;
                tokio::task::yield_now().await;
            }
        }
    });
    let adders = (0..8).map(|number| {
        let server = server.clone();
        tokio::spawn(async move {
            let mut written = 0;
            for round in 0..25 {
                let id = format!("6a0c5bd6-9e56-4a07-8a3a-0f8ad1{number:03}{round:03}");
                if server.lock(&id).await.status != 200 {
                    continue;
                }
                let serial = server.get("/tf/prod").await.body["serial"].as_u64().unwrap_or(0);
                written += u64::from(server.put(&id, serial + 1).await.status == 200);
                server.unlock(&id).await;
            }
            written
        })
    });
    let mut written = 0;
    for adder in adders.collect::<Vec<_>>() {
        written += adder.await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    thief.await.unwrap();
    assert!(written > 0);
    assert_eq!(server.get("/tf/prod").await.body["serial"], written);
}
