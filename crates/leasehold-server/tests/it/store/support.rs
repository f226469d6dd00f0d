//! Server in a separate thread, as in another process, and stores that connect to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{Acquire, Holder, LockOp};
use leasehold::model::{LeaseId, LockName, LockRecord, LockRequest, Metadata, Mode, Priority, Slots, Ttl};
use leasehold::store::{Store, StoreUrl};
use leasehold_server::{Access, Limits, Server, ServerBuilder, listen};
use tokio::sync::oneshot;
use uuid::Uuid;

/// Server that stops when it is dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    end: Option<oneshot::Sender<End>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

enum End {
    Gently,
    AtOnce,
}

impl Served {
    /// Starts an open server over this store without background maintenance: the test controls the
    /// time.
    pub(crate) fn over(store: Arc<dyn Store>) -> Self {
        let builder = Server::builder(Leasehold::with_store(store).unwrap()).access(Access::Open);
        Self::of(builder.without_maintenance(), "127.0.0.1:0".parse().unwrap())
    }

    /// Starts a server over an empty store in memory.
    pub(crate) fn on_memory() -> Self {
        Self::over(Arc::new(leasehold::store::memory::MemoryStore::new()))
    }

    /// Starts a server at this address.
    pub(crate) fn with(leasehold: Leasehold, access: Access, at: SocketAddr) -> Self {
        Self::of(Server::builder(leasehold).access(access), at)
    }

    fn of(builder: ServerBuilder, at: SocketAddr) -> Self {
        let mut limits = Limits::default();
        limits.grace = Duration::from_secs(1);
        let server = builder.limits(limits).build();
        let (end, ended) = oneshot::channel();
        let (started, starts) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.unwrap();
            runtime.block_on(async {
                let listening = listen(&server, tokio::net::TcpListener::bind(at).await.unwrap()).unwrap();
                started.send(listening.address()).unwrap();
                if let Ok(End::Gently) | Err(_) = ended.await {
                    listening.stop().await;
                }
            });
            runtime.shutdown_background();
        });
        Self { address: starts.recv().unwrap(), end: Some(end), thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends the server without a shutdown.
    pub(crate) fn kill(mut self) {
        let _ = self.end.take().unwrap().send(End::AtOnce);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(End::Gently);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens a store that connects to the server at this address.
pub(crate) async fn open(url: &str) -> Arc<dyn Store> {
    leasehold::store::connect(&StoreUrl::parse(url).unwrap()).await.unwrap()
}

pub(crate) fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

/// Returns a new lease id.
pub(crate) fn lease_id() -> LeaseId {
    LeaseId::from_uuid(Uuid::now_v7())
}

/// Returns an exclusive acquire with this TTL.
pub(crate) fn acquire(lease_id: LeaseId, ttl: Duration) -> LockOp {
    let request = LockRequest {
        lease_id,
        holder: Holder::new("ada").unwrap(),
        mode: Mode::Exclusive,
        slots: Slots::default(),
        priority: Priority::default(),
        ttl: Ttl::try_from(ttl).unwrap(),
        metadata: Metadata::default(),
        process: None,
    };
    LockOp::Acquire(Acquire { request: Arc::new(request), queue: None, steal_after: None })
}

/// Returns the record of a lock.
pub(crate) async fn record(store: &Arc<dyn Store>, name: &LockName) -> LockRecord {
    let record = store.locks().get(name).await.unwrap();
    record.unwrap_or_else(|| LockRecord::new(name.clone()))
}
