//! Changes of states that run in tasks of their own, so that they are completed if the client disconnects.
//! Their number is limited, and a server that stops waits for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::problem::Problem;

/// Maximum number of concurrent changes. Each may have a text of 32 MiB, and one whose client has
/// disconnected counts towards no other limit.
const MAX_WRITES: usize = 32;

/// Changes of states that this server is making.
pub(crate) struct StateWrites {
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
}

/// Permit for one change.
pub(super) struct WritePermit {
    permit: OwnedSemaphorePermit,
    tasks: TaskTracker,
}

impl Default for StateWrites {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_WRITES)), tasks: TaskTracker::new() }
    }
}

impl StateWrites {
    /// Waits for a permit, for at most this time.
    pub(super) async fn permit(&self, timeout: Duration) -> Result<WritePermit, Problem> {
        let permit = tokio::time::timeout(timeout, self.permits.clone().acquire_owned()).await;
        let permit = permit.map_err(|_| too_many())?.expect("the semaphore is never closed");
        Ok(WritePermit { permit, tasks: self.tasks.clone() })
    }

    /// Waits until all changes have ended.
    pub(crate) async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl WritePermit {
    /// Runs the change in a task that holds the permit until its end.
    pub(super) fn spawn(self, change: impl Future<Output = ()> + Send + 'static) {
        let Self { permit, tasks } = self;
        tasks.spawn(async move {
            change.await;
            drop(permit);
        });
    }
}

fn too_many() -> Problem {
    let detail =
        format!("the server is making {MAX_WRITES} changes of Terraform states, which is its maximum");
    Problem::new("STORE_UNAVAILABLE", detail)
        .hint("retry the request; changes take long while the store does not respond")
        .retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_change_holds_its_permit_until_it_has_ended() {
        let writes = StateWrites::default();
        let mut running = Vec::new();
        for _ in 0..MAX_WRITES {
            let (end, ended) = oneshot::channel::<()>();
            let permit = writes.permit(Duration::ZERO).await.expect("there are permits");
            permit.spawn(async { _ = ended.await });
            running.push(end);
        }
        let refused = writes.permit(Duration::from_millis(10)).await.err().unwrap();
        assert_eq!(refused.code(), "STORE_UNAVAILABLE");
        let waiting = writes.permit(Duration::from_mins(1));
        let (permit, ()) = tokio::join!(waiting, async { drop(running.pop()) });
        drop(permit.expect("a change has ended"));
        let finished = tokio::time::timeout(Duration::from_mins(1), writes.finished());
        let (finished, ()) = tokio::join!(finished, async { running.clear() });
        finished.expect("all changes have ended");
        assert_eq!(writes.permits.available_permits(), MAX_WRITES);
    }
}
