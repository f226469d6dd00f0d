//! A write in flight when its lock is lost must not overwrite the state that the next holder has read, and a
//! write that fails or whose client disconnects leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::memory::MemoryStore;
use leasehold::store::{
    Capabilities, Cursor, Document, DocumentStore, LockStore, NewDocument, Page, PutIf, Store, TaskStore,
    Time,
};
use leasehold::{Error, Leasehold, Result, StoreErrorKind};
use leasehold_server::{Access, Limits, Server, TerraformOptions};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::terraform::{ADA, BOB, state, wait_for_chunks};
use crate::test_server::{Reply, TestServer};

/// Store that can delay the write of a state index, lose the response to it, and fail the write of a chunk.
struct Held {
    store: MemoryStore,
    armed: AtomicBool,
    /// Whether the response to each write of an index is lost, so that the driver repeats the write.
    repeats: AtomicBool,
    /// Whether all writes and deletions of chunks fail, except the write of the first chunk of a version.
    down: AtomicBool,
    /// Number of chunks that are written or deleted before a call that fails.
    chunks_left: AtomicUsize,
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
        let is_first_chunk = key.contains("/0000/") && expected.is_none();
        if key.contains("server/tf-chunk/") {
            if self.down.load(Ordering::SeqCst) && !is_first_chunk {
                return Err(cut());
            }
            if self.chunks_left.fetch_sub(1, Ordering::SeqCst) == 0 {
                // Another call fails after two more.
                self.chunks_left.store(2, Ordering::SeqCst);
                return Err(cut());
            }
        }
        if key.contains("server/tf/") && self.repeats.load(Ordering::SeqCst) {
            self.documents().put_if(key, expected, draft.clone()).await?;
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

fn cut() -> Error {
    Error::store(StoreErrorKind::Unavailable, "the connection was cut", "")
}

fn held() -> (Leasehold, Arc<Held>) {
    let [armed, repeats, down] = [false; 3].map(AtomicBool::new);
    let (arrived, go) = (Semaphore::new(0), Semaphore::new(0));
    let chunks_left = AtomicUsize::new(usize::MAX);
    let held = Arc::new(Held { store: MemoryStore::new(), armed, repeats, down, chunks_left, arrived, go });
    (Leasehold::with_store(held.clone()).unwrap(), held)
}

async fn server() -> (Arc<TestServer>, Arc<Held>) {
    let (leasehold, held) = held();
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

/// One of the deletions fails, too, and is repeated.
#[tokio::test]
async fn a_failed_write_leaves_no_chunks() {
    let (server, held) = server().await;
    server.lock(ADA).await;
    assert_eq!(server.put(ADA, 1).await.status, 200);
    let mut large = state(2);
    large["outputs"] = json!({ "x": "x".repeat(1_000_000) });
    held.chunks_left.store(3, Ordering::SeqCst);
    let failed = server.tf("POST", &format!("/tf/prod?ID={ADA}"), Some(&large)).await;
    assert_eq!((failed.status, failed.code()), (503, "STORE_UNAVAILABLE"));
    wait_for_chunks(&server.leasehold, 1).await;
    assert_eq!(server.get("/tf/prod").await.body, state(1));
    held.chunks_left.store(usize::MAX, Ordering::SeqCst);
    let again = server.tf("POST", &format!("/tf/prod?ID={ADA}"), Some(&large)).await;
    assert_eq!(again.status, 200, "{}", again.body);
    assert_eq!(server.get("/tf/prod").await.body, large);
}

#[tokio::test]
async fn a_write_whose_client_disconnects_is_completed() {
    let (server, held) = server().await;
    server.lock(ADA).await;
    held.armed.store(true, Ordering::SeqCst);
    let write = tokio::spawn({
        let server = server.clone();
        async move { server.put(ADA, 1).await }
    });
    held.arrived.acquire().await.unwrap().forget();
    write.abort();
    assert!(write.await.is_err());
    // The server notices that the connection is closed.
    tokio::time::sleep(Duration::from_millis(300)).await;
    held.go.add_permits(1);
    for _ in 0..2_000 {
        if server.get("/tf/prod").await.status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.get("/tf/prod").await.body, state(1));
}

/// The write continues in the server, which waits for it.
#[tokio::test]
async fn a_server_that_stops_completes_a_write_whose_client_disconnected() {
    let (leasehold, held) = held();
    let mut limits = Limits::default();
    limits.grace = Duration::from_mins(2);
    let server = Arc::new(TestServer::with(leasehold.clone(), Access::Open, limits).await);
    held.armed.store(true, Ordering::SeqCst);
    let write = tokio::spawn({
        let server = server.clone();
        async move { server.tf("POST", "/tf/prod", Some(&state(1))).await.status }
    });
    held.arrived.acquire().await.unwrap().forget();
    write.abort();
    assert!(write.await.is_err());
    let server = Arc::into_inner(server).expect("the write was dropped");
    let mut stop = std::pin::pin!(server.stop());
    let early = tokio::time::timeout(Duration::from_millis(500), &mut stop).await;
    assert!(early.is_err(), "the server has stopped during a write");
    held.go.add_permits(1);
    stop.await;
    let index = leasehold.store().documents().unwrap().get("\u{1}server/tf/prod").await.unwrap();
    assert!(index.unwrap().body.contains("\"present\":true"), "the write was completed before the stop");
}

#[tokio::test]
async fn a_write_whose_response_is_lost_leaves_no_chunks_of_removed_versions() {
    let (leasehold, held) = held();
    let mut options = TerraformOptions::default();
    options.versions = 1;
    let builder = Server::builder(leasehold.clone()).access(Access::Open).terraform(options);
    let server = TestServer::serve(builder.build(), leasehold).await;
    held.repeats.store(true, Ordering::SeqCst);
    for serial in 1..=4 {
        let reply = server.tf("POST", "/tf/prod", Some(&state(serial))).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
    wait_for_chunks(&server.leasehold, 2).await;
    assert_eq!(server.get("/tf/prod").await.body, state(4));
    assert_eq!(server.get("/tf/prod/history/3").await.body, state(3));
    // The deletion makes the current version an earlier one.
    assert_eq!(server.tf("DELETE", "/tf/prod", None).await.status, 200);
    wait_for_chunks(&server.leasehold, 1).await;
    assert_eq!(server.get("/tf/prod/history/4").await.body, state(4));
}

/// Each failed write leaves a chunk whose deletion is tried again for a minute.
#[tokio::test]
async fn writes_are_refused_while_too_many_earlier_ones_are_unfinished() {
    let (leasehold, held) = held();
    let mut limits = Limits::default();
    limits.wait = Duration::from_millis(50);
    let server = TestServer::with(leasehold, Access::Open, limits).await;
    let mut large = state(1);
    large["outputs"] = json!({ "x": "x".repeat(300_000) });
    let write = async || server.tf("POST", "/tf/prod", Some(&large)).await;
    held.down.store(true, Ordering::SeqCst);
    let is_refused = |reply: &Reply| reply.body["detail"].as_str().unwrap().contains("its maximum");
    let mut failed = 0;
    let refused = loop {
        let reply = write().await;
        assert_eq!((reply.status, reply.code()), (503, "STORE_UNAVAILABLE"), "{}", reply.body);
        if is_refused(&reply) {
            break reply;
        }
        failed += 1;
        assert!(failed <= 100, "{failed} writes are unfinished");
    };
    assert!(refused.headers.contains_key("retry-after"));
    wait_for_chunks(&server.leasehold, failed).await;
    held.down.store(false, Ordering::SeqCst);
    wait_for_chunks(&server.leasehold, 0).await;
    // The last writes end soon after their last deletions.
    let mut again = write().await;
    while again.status == 503 && is_refused(&again) {
        again = write().await;
    }
    assert_eq!(again.status, 200, "{}", again.body);
}

/// Maximum number of locks that a client acquires before its first successful write.
const MAX_ROUNDS: u32 = 1000;

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
    let written = Arc::new(AtomicU64::new(0));
    let adders = (0..8).map(|number| {
        let (server, written) = (server.clone(), written.clone());
        tokio::spawn(async move {
            // The forced releases may come before every write of the first rounds.
            for round in 0..MAX_ROUNDS {
                if round >= 25 && written.load(Ordering::SeqCst) > 0 {
                    break;
                }
                let id = format!("6a0c5bd6-9e56-4a07-8a3a-{number:04}{round:08}");
                if server.lock(&id).await.status != 200 {
                    continue;
                }
                let read = server.get("/tf/prod").await;
                let serial = match read.status {
                    200 => read.body["serial"].as_u64().unwrap(),
                    404 => 0,
                    status => panic!("the read has failed with {status}: {}", read.body),
                };
                let put = server.put(&id, serial + 1).await;
                // 503: the index changed too often during the write, and the state was not written.
                assert!(matches!(put.status, 200 | 409 | 503), "{}: {}", put.status, put.body);
                written.fetch_add(u64::from(put.status == 200), Ordering::SeqCst);
                server.unlock(&id).await;
            }
        })
    });
    for adder in adders.collect::<Vec<_>>() {
        adder.await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    thief.await.unwrap();
    let written = written.load(Ordering::SeqCst);
    assert!(written > 0, "every write came after the forced release of its lock");
    assert_eq!(server.get("/tf/prod").await.body["serial"], written);
}
