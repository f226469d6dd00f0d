//! Two handles on one store, as two hosts would have, and runners for them.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::{ExecutionId, Holder, Reason, TaskState, Ttl, WorkflowName};
use leasehold::store::memory::MemoryStore;
use leasehold::{Error, Execution, HandlerError, Leasehold, StartBuilder, StartResult, TaskContext, Worker};

/// A short lease, so that tests need not wait long; long enough for a busy machine.
pub(crate) const TTL: Duration = Duration::from_millis(900);

pub(crate) struct Lab {
    pub(crate) one: Leasehold,
    pub(crate) two: Leasehold,
    /// Whatever has to live as long as the store.
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

    /// Starts an execution that must be new, and at once.
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

    /// Who was in the way of a start, and whether it came at the same time.
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

    /// Waits until an execution is in this state, and gives it.
    pub(crate) async fn until(&self, id: ExecutionId, wanted: TaskState) -> Execution {
        let is_so = async || self.get(id).await.state == wanted;
        crate::client::support::until(&format!("{id} is {wanted}"), is_so).await;
        self.get(id).await
    }
}

/// A worker whose handlers do what their input says: `ok`, `fail`, or go on until they are stopped.
pub(crate) fn runner(leasehold: &Leasehold) -> (Worker, Arc<AtomicU32>) {
    runner_with(leasehold, TTL)
}

/// The same, with leases that last longer.
pub(crate) fn runner_with(leasehold: &Leasehold, ttl: Duration) -> (Worker, Arc<AtomicU32>) {
    let at_it = Arc::new(AtomicU32::new(0));
    let seen = at_it.clone();
    let worker = leasehold.worker().recover_every(Duration::from_millis(100));
    let worker = worker.workflow("deploy", ttl, move |run: TaskContext<String>| {
        let at_it = At::it(&seen);
        async move {
            let _at_it = at_it;
            match run.work.as_str() {
                "ok" => Ok(run.execution().map(|id| id.to_string())),
                "fail" => Err(HandlerError::fail("no such host")),
                _ => std::future::pending().await,
            }
        }
    });
    (worker.start().unwrap(), at_it)
}

/// Counts who is at work.
pub(crate) struct At(Arc<AtomicU32>);

impl At {
    pub(crate) fn it(count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for At {
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

pub(crate) fn why() -> Reason {
    Reason::new("the wrong branch").unwrap()
}

/// A lease that no test outlasts.
pub(crate) fn ttl() -> Ttl {
    Ttl::from_secs(60)
}
