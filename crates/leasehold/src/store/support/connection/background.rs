//! Background thread with its own runtime, for engines that use network connections.
//!
//! A connection belongs to the runtime that opened it. On the caller's runtime, a caller that blocks
//! it would delay the renewals of all other callers, and the connections would close when that
//! runtime shuts down. Only an inline connection lives on the caller's runtime: the one on which the
//! store was connected.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result, StoreErrorKind};

/// Maximum time the thread keeps running after its owner is dropped, to finish the operations that
/// callers have abandoned.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Background thread. Dropping it stops the thread once the running operations have finished.
#[derive(Debug)]
pub(crate) struct Background {
    handle: Handle,
    tasks: TaskTracker,
    /// Dropped with the owner, which stops the thread.
    _alive: oneshot::Sender<()>,
}

impl Background {
    pub(crate) fn start(name: &str) -> Result<Self> {
        #[cfg(feature = "testing")]
        if crate::store::support::machine::simulation::is_running() {
            let (handle, tasks) = (Handle::current(), TaskTracker::new());
            return Ok(Self { handle, tasks, _alive: oneshot::channel().0 });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(cannot_start)?;
        let (alive, ended) = oneshot::channel::<()>();
        let (handle, tasks) = (runtime.handle().clone(), TaskTracker::new());
        let their_tasks = tasks.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread
            .spawn(move || {
                runtime.block_on(async {
                    let _ = ended.await;
                    their_tasks.close();
                    let _ = tokio::time::timeout(SHUTDOWN_GRACE, their_tasks.wait()).await;
                });
                // A DNS lookup in progress cannot be interrupted, and its result is no longer needed.
                runtime.shutdown_background();
            })
            .map_err(cannot_start)?;
        Ok(Self { handle, tasks, _alive: alive })
    }

    /// Returns the runtime of the thread: for connections, and for tasks that may be aborted when the
    /// owner is dropped.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs `work` on the thread. The work runs to completion even if the caller drops the returned
    /// future.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match self.tasks.spawn_on(work, &self.handle).await {
            Ok(result) => result,
            Err(error) => {
                let message = "the thread that talks to the store has failed";
                Err(Error::store(StoreErrorKind::Broken, message, "please report this").because(error))
            }
        }
    }
}

fn cannot_start(error: std::io::Error) -> Error {
    let message = "the thread that talks to the store cannot be started";
    Error::store(StoreErrorKind::Unavailable, message, "let this user have more threads").because(error)
}

/// Runtime on which a store was connected, if there was one. An inline connection lives on it: a lone caller
/// there reaches the server without a switch to the thread of the engine.
#[cfg(any(feature = "postgres", feature = "redis"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HomeRuntime(Option<tokio::runtime::Id>);

#[cfg(any(feature = "postgres", feature = "redis"))]
impl HomeRuntime {
    /// Returns the current runtime.
    pub(crate) fn current() -> Self {
        Self(Handle::try_current().ok().map(|handle| handle.id()))
    }

    /// Whether the caller is on this runtime.
    pub(crate) fn is_current(self) -> bool {
        self.0.is_some() && Self::current().0 == self.0
    }
}
