//! A thread with a runtime of its own for an engine that talks over the network.
//!
//! A connection belongs to the runtime it was opened in. If that were the caller's, a caller that blocks its runtime
//! would hold up the renewals of everybody else, and a runtime that ends would take the connections with it.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result, Trouble};

/// How long the thread goes on after its owner is gone, to finish what callers have left behind.
const LAST_CALL: Duration = Duration::from_secs(5);

/// The thread. Dropping it ends it as soon as what is under way is done.
#[derive(Debug)]
pub(crate) struct Background {
    handle: Handle,
    tasks: TaskTracker,
    /// Dropped with the owner, which ends the thread.
    _alive: oneshot::Sender<()>,
}

impl Background {
    pub(crate) fn start(name: &str) -> Result<Self> {
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
                    let _ = tokio::time::timeout(LAST_CALL, their_tasks.wait()).await;
                });
                // A name that is being looked up cannot be interrupted, and is not worth waiting for.
                runtime.shutdown_background();
            })
            .map_err(cannot_start)?;
        Ok(Self { handle, tasks, _alive: alive })
    }

    /// The thread's runtime: for connections, and for what may be cut short when the owner is gone.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Does something on the thread, to its end even if the caller does not wait for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match self.tasks.spawn_on(work, &self.handle).await {
            Ok(result) => result,
            Err(error) => {
                let message = "the thread that talks to the store has failed";
                Err(Error::store(Trouble::Broken, message, "please report this").because(error))
            }
        }
    }
}

fn cannot_start(error: std::io::Error) -> Error {
    let message = "the thread that talks to the store cannot be started";
    Error::store(Trouble::Unavailable, message, "let this user have more threads").because(error)
}
