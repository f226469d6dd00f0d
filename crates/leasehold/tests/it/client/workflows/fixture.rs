//! Two handles on one store, as on two hosts, and workers for them.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::{ExecutionId, Holder, Reason, TaskState, Ttl, WorkflowName};
use leasehold::store::memory::MemoryStore;
use leasehold::{Error, Execution, HandlerError, Leasehold, StartBuilder, StartResult, TaskContext, Worker};

/// Lease time that keeps tests short and is long enough for a busy machine.
pub(crate) const TTL: Duration = Duration::from_millis(900);

pub(crate) struct Lab {
    pub(crate) one: Leasehold,
    pub(crate) two: Leasehold,
    /// Values that must live as long as the store.
    _keep: Box<dyn Any + Send + Sync>,
}

pub(crate) async fn memory() -> Lab {
    let store = Arc::new(MemoryStore::new());
    let client = || Leasehold::with_store(store.clone()).unwrap();
    Lab::new(client(), client(), ())
}

pub(crate) async fn sqlite() -> Lab {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let client = || async { Leasehold::connect(&url).await.unwrap() };
    Lab::new(client().await, client().await, folder)
}

impl Lab {
    pub(crate) fn new(one: Leasehold, two: Leasehold, keep: impl Any + Send + Sync) -> Self {
        Self { one, two, _keep: Box::new(keep) }
    }

    pub(crate) fn deploy(&self) -> StartBuilder {
        self.one.workflow("deploy")
    }

    /// Starts an execution, which must be new and must not be queued.
    pub(crate) async fn started(&self, start: StartBuilder, input: &str) -> Execution {
        match start.start(input).await.unwrap() {
            StartResult::Started(execution) => execution,
            other => panic!("not started: {other:?}"),
        }
    }

    pub(crate) async fn duplicate(&self, start: StartBuilder, input: &str) -> Execution {
        match start.start(input).await.unwrap() {
            StartResult::Duplicate(execution) => execution,
            other => panic!("no duplicate: {other:?}"),
        }
    }

    /// Returns the execution that blocks a start, and whether the two starts were concurrent.
    pub(crate) async fn locked(&self, start: StartBuilder, input: &str) -> (Option<ExecutionId>, bool) {
        match start.start(input).await.unwrap_err() {
            Error::WorkflowLocked { workflow, execution, raced, .. } => {
                assert_eq!(workflow, deploy());
                (execution, raced)
            }
            other => panic!("not locked: {other}"),
        }
    }

    pub(crate) async fn get(&self, id: ExecutionId) -> Execution {
        self.two.workflows().unwrap().get(id).await.unwrap()
    }

    /// Waits until an execution is in this state, and returns it.
    pub(crate) async fn until(&self, id: ExecutionId, wanted: TaskState) -> Execution {
        let condition = async || self.get(id).await.state == wanted;
        crate::client::support::until(&format!("{id} is {wanted}"), condition).await;
        self.get(id).await
    }
}

/// Starts a worker whose handlers do what their input says: `ok`, `fail`, or run until they are
/// cancelled.
pub(crate) fn runner(leasehold: &Leasehold) -> (Worker, Arc<AtomicU32>) {
    runner_with(leasehold, TTL)
}

/// Like [`runner`], with another TTL.
pub(crate) fn runner_with(leasehold: &Leasehold, ttl: Duration) -> (Worker, Arc<AtomicU32>) {
    let active = Arc::new(AtomicU32::new(0));
    let seen = active.clone();
    let worker = leasehold.worker().recover_every(Duration::from_millis(100));
    let worker = worker.workflow("deploy", ttl, move |run: TaskContext<String>| {
        let active = Active::enter(&seen);
        async move {
            let _active = active;
            match run.payload.as_str() {
                "ok" => Ok(run.execution().map(|id| id.to_string())),
                "fail" => Err(HandlerError::fail("no such host")),
                _ => std::future::pending().await,
            }
        }
    });
    (worker.start().unwrap(), active)
}

/// Counts the active handlers.
pub(crate) struct Active(Arc<AtomicU32>);

impl Active {
    pub(crate) fn enter(count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn deploy() -> WorkflowName {
    WorkflowName::new("deploy").unwrap()
}

pub(crate) fn ada() -> Holder {
    Holder::new("ada").unwrap()
}

pub(crate) fn reason() -> Reason {
    Reason::new("the wrong branch").unwrap()
}

/// TTL that no test outlasts.
pub(crate) fn ttl() -> Ttl {
    Ttl::from_secs(60)
}
