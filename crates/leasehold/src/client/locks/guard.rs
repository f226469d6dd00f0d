//! Guard of held locks: its status, its work, the release, and the error of guarded work; and the leases
//! that the current work runs under.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::futures::TaskLocalFuture;
use tokio_util::sync::CancellationToken;

use super::guard_core::{AcquiredLease, Core, GuardState, GuardStatus};
use crate::client::context::Inner;
use crate::error::{Error, Result};
use crate::model::{Lease, LeaseId, LeaseRef, LockName, StopRequest, Token, Ttl};
use crate::store::BootInstant;

/// Guard of one held lock, or of several that were acquired together. Its leases are renewed in the
/// background until the guard is released or dropped.
///
/// Prefer [`run`](Guard::run): it stops the work if the lease is lost, and releases the lock at the
/// end.
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    core: Arc<Core>,
}

impl Guard {
    /// Creates a guard of one lease and renews it from now on. If the lease has expired, the guard
    /// is lost at once.
    pub(super) fn new(inner: Arc<Inner>, lease: AcquiredLease, renew_at: f64, max_hold: Option<Ttl>) -> Self {
        Self { core: Core::start(inner, lease, renew_at, max_hold) }
    }

    pub(super) fn add(&self, lease: AcquiredLease) {
        let since = lease.since;
        self.core.add(lease);
        self.core.schedule_renewal(self.core.inner.background.timers(), since);
    }

    /// Returns whether every lease is still guaranteed to last. If not, the guard is lost from here
    /// on.
    pub(in crate::client) fn is_valid(&self) -> bool {
        if BootInstant::now() >= self.core.valid_until() {
            self.core.lose_at_deadline();
            return false;
        }
        self.state() != GuardState::Lost
    }

    /// Releases the remaining leases of a lost guard in the background. The receiver resolves at
    /// the end of that.
    pub(super) fn give_up(self) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        self.core.release_remaining(Some(done));
        receiver
    }

    /// Returns the fencing token (of the first lock by name), for every resource that the work
    /// writes to.
    pub fn token(&self) -> Token {
        self.core.leases()[0].lease.token
    }

    /// Returns the id of the lease; with several locks, that of the first by name.
    pub fn lease_id(&self) -> LeaseId {
        self.core.leases()[0].lease.request.lease_id
    }

    /// Returns every held lock with its lease, in the order of the names.
    pub fn leases(&self) -> Vec<(LockName, Lease)> {
        self.core.leases().iter().map(|held| (held.name.clone(), held.lease.clone())).collect()
    }

    /// Returns the public names of the leases, for [`LockBuilder::within`](super::LockBuilder::within).
    pub fn lease_refs(&self) -> Vec<LeaseRef> {
        self.core.leases().iter().map(|held| LeaseRef::of(&held.lease.request.lease_id)).collect()
    }

    /// Returns the current state.
    pub fn state(&self) -> GuardState {
        self.core.notifier().status.state
    }

    /// Returns a watch on the status of the guard, with the current status and all changes.
    pub fn watch(&self) -> watch::Receiver<GuardStatus> {
        self.core.watch()
    }

    /// Resolves when the lease is lost; never if it is released before.
    pub async fn lost(&self) {
        self.core.lost().cancelled().await;
    }

    /// Returns the reason of the loss if the lease was lost.
    pub fn loss(&self) -> Option<Error> {
        (self.state() == GuardState::Lost).then(|| self.core.lost_error())
    }

    /// Resolves when a caller requests the release of the lock.
    pub async fn release_requested(&self) -> StopRequest {
        let mut watch = self.watch();
        let request = watch
            .wait_for(|status| status.release_request.is_some())
            .await
            .ok()
            .and_then(|status| status.release_request.clone());
        match request {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }

    /// Returns a token that is cancelled when the lease is lost, for work that is controlled by
    /// such a token.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.core.lost().child_token()
    }

    /// Runs the work while the lock is held, then releases the lock.
    ///
    /// If the lease is lost in the meantime, the work is dropped at its current await point. If the loss is
    /// detected only after the work has ended, the error contains the value that the work returned: the work
    /// may have run concurrently with another holder.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let leasehold = leasehold::Leasehold::connect("memory:").await?;
    /// let guard = leasehold.lock("report").acquire().await?;
    /// match guard.run(async |lease| lease.token()).await {
    ///     Ok(token) => println!("done under token {token}"),
    ///     Err(lost) => match lost.value {
    ///         Some(token) => println!("done under token {token}, but {}", lost.error),
    ///         None => println!("stopped: {}", lost.error),
    ///     },
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn run<T>(self, work: impl AsyncFnOnce(LeaseHandle) -> T) -> Result<T, RunError<T>> {
        let (held, lost) = (LeaseHandle { core: self.core.clone() }, self.core.lost());
        let value = tokio::select! {
            biased;
            () = lost.cancelled() => return Err(RunError { error: self.core.lost_error(), value: None }),
            value = scope(self.lease_refs(), work(held)) => value,
        };
        // Checked without the store: work done after that time was not done under the lock.
        if !self.is_valid() {
            return Err(RunError { error: self.core.lost_error(), value: Some(value) });
        }
        match self.release().await {
            // The work ended within the lease. Log the failed release instead of failing the call.
            Err(error @ Error::Store { .. }) => {
                tracing::warn!(%error, "the work is done, but its lock could not be released; its lease will expire");
                Ok(value)
            }
            Err(error) => Err(RunError { error, value: Some(value) }),
            Ok(()) => Ok(value),
        }
    }

    /// Ensures that the leases last for their full TTL from about now. A lease that was granted to
    /// a ticket lasts only as long as the ticket until it is renewed, and the first of several
    /// leases may be close to its expiry when the last one is granted. For leases that are about to
    /// be [detached](Self::detach).
    pub async fn confirm(&self) -> Result<()> {
        for at in 0..self.core.len() {
            self.core.confirm(at).await?;
        }
        Ok(())
    }

    /// Releases the lock and waits for the confirmation of the store.
    pub async fn release(self) -> Result<()> {
        self.core.release(None).await
    }

    /// Releases the lock, but blocks it until `at_least` after its acquisition: for short jobs on
    /// hosts whose clocks differ.
    pub async fn release_at_least(self, at_least: Duration) -> Result<()> {
        let at_least = Ttl::new(at_least)?;
        self.core.release(Some(at_least)).await
    }

    /// Stops the renewals and returns the leases. They stay held until they expire, unless a caller
    /// renews or releases them by id and token. For work that continues where no guard can exist.
    pub fn detach(self) -> Vec<(LockName, Lease)> {
        self.core.close();
        self.core.released.store(true, Ordering::Release);
        self.leases()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.core.is_closed() {
            return self.core.release_remaining(None);
        }
        let core = self.core.clone();
        self.core.inner.background.spawn(async move {
            if let Err(error) = core.release(None).await {
                tracing::warn!(locks = %core.names(), %error, "failed to release a dropped guard; its leases will expire");
            }
        });
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("locks", &self.core.names())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// View of the lease for the work inside [`Guard::run`].
#[derive(Clone)]
pub struct LeaseHandle {
    core: Arc<Core>,
}

impl LeaseHandle {
    /// Returns the fencing token; with several locks, that of the first by name.
    pub fn token(&self) -> Token {
        self.core.leases()[0].lease.token
    }

    /// Returns the id of the lease; with several locks, that of the first by name.
    pub fn lease_id(&self) -> LeaseId {
        self.core.leases()[0].lease.request.lease_id
    }

    /// Returns the time until which the lease is guaranteed to last.
    pub fn valid_until(&self) -> BootInstant {
        self.core.valid_until()
    }

    /// Returns a token that is cancelled when the lease is lost.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.core.lost().child_token()
    }
}

/// Error of guarded work that was stopped because its lease was lost, or that ended after its lease
/// had been lost.
///
/// Converts into its [`Error`], so `?` works where the value does not matter.
#[non_exhaustive]
pub struct RunError<T> {
    /// Cause of the error.
    pub error: Error,
    /// Value that the work returned, if it had ended. The work may have run concurrently with
    /// another holder of the lock.
    pub value: Option<T>,
}

impl<T> From<RunError<T>> for Error {
    fn from(run: RunError<T>) -> Self {
        run.error
    }
}

impl<T> std::fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = if self.value.is_some() { "Some(…)" } else { "None" };
        f.debug_struct("RunError")
            .field("error", &self.error)
            .field("value", &format_args!("{value}"))
            .finish()
    }
}

impl<T> std::fmt::Display for RunError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for RunError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

tokio::task_local! {
    /// Leases that the current work runs under, so that a request can declare that it was made within them.
    static ENCLOSING: Arc<[LeaseRef]>;
}

/// Returns work that runs under leases: a request that is made in it, and not in a task that it spawns, is
/// made within these leases and within those of the enclosing work.
pub(in crate::client) fn scope<F: Future>(
    leases: Vec<LeaseRef>,
    work: F,
) -> TaskLocalFuture<Arc<[LeaseRef]>, F> {
    let mut all = enclosing_leases();
    all.extend(leases);
    ENCLOSING.scope(all.into(), work)
}

/// Returns the leases that the current work runs under: those of [`Guard::run`] and of the locks of tasks,
/// from the outermost to the innermost. A process that starts others can pass them on; see
/// [`LockBuilder::within`](super::LockBuilder::within).
pub fn enclosing_leases() -> Vec<LeaseRef> {
    ENCLOSING.try_with(|leases| leases.to_vec()).unwrap_or_default()
}
