//! Connection of a client: the store, its background threads, and what all parts of the client share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::background::BackgroundThreads;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Acquire, Acquired, Holder, Lease, LockName, LockOp, NotHeld, Outcome, Renew, UnexpectedOutcome,
};
use crate::store::{self, BootInstant, Capabilities, LockStore, Store, TaskStore};

/// Maximum time for notices after an operation whose response was lost.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct Inner {
    pub(super) store: Arc<dyn Store>,
    /// Capabilities of the store when it was opened. Only `push_notifications` may change later.
    pub(super) capabilities: Capabilities,
    pub(super) background: Arc<BackgroundThreads>,
    pub(super) availability: Arc<Availability>,
    /// Default holder: host name and process id.
    pub(super) holder: Holder,
    pub(super) log_renewals: bool,
}

impl Inner {
    pub(super) fn new(store: Arc<dyn Store>) -> Result<Self> {
        let holder = Holder::new(format!("{}:{}", store::host_name(), std::process::id()))?;
        let (background, availability) = (Arc::new(BackgroundThreads::start()?), Arc::default());
        let capabilities = store.capabilities();
        Ok(Self { store, capabilities, background, availability, holder, log_renewals: false })
    }

    pub(super) fn locks(&self) -> &dyn LockStore {
        self.store.locks()
    }

    pub(super) fn tasks(&self) -> Result<&dyn TaskStore> {
        self.store.tasks().ok_or_else(|| {
            let message = format!("there are no tasks on {}", self.store.url());
            let hint = "use sqlite:, postgres://, redis:// or github:// for tasks";
            Error::store(StoreErrorKind::NotSupported, message, hint)
        })
    }

    pub(super) async fn acquire(&self, name: &LockName, acquire: Acquire) -> Result<Acquired> {
        let outcome = self.locks().apply(name, &LockOp::Acquire(acquire)).await?;
        checked(name, outcome.into_acquired())
    }

    pub(super) async fn renew(&self, name: &LockName, renew: Renew) -> Result<Result<Lease, NotHeld>> {
        let op = if self.log_renewals { LockOp::RenewLogged(renew) } else { LockOp::Renew(renew) };
        checked(name, self.locks().apply(name, &op).await?.into_renewed())
    }

    pub(super) async fn notify_holders(&self, name: &LockName, outcome: &Outcome) {
        store::notify_holders(&*self.store, name, outcome).await;
    }

    /// Notifies the holders whose leases an operation may have changed. Ends soon if the store does not
    /// answer.
    pub(super) async fn notify_in_doubt(&self, name: &LockName, op: &LockOp) {
        let notified = store::notify_in_doubt(&*self.store, name, op);
        self.background.within(NOTICE_TIMEOUT, notified).await;
    }
}

/// Returns the typed answer of a store. An answer that does not fit the operation is an error of the
/// store: nothing is known about the lock.
pub(super) fn checked<T>(lock: &LockName, answer: Result<T, UnexpectedOutcome>) -> Result<T> {
    answer.map_err(|error| {
        let message = format!("the store gave an invalid answer about lock '{lock}': {error}");
        let hint = "check that this program and the store's server have the same version";
        Error::store(StoreErrorKind::Broken, message, hint)
    })
}

pub(super) fn not_held(lock: &LockName, now: NotHeld) -> Error {
    Error::NotHeld { lock: lock.clone(), now: Box::new(now) }
}

pub(super) fn parsed<T>(name: impl TryInto<T, Error: Into<Error>>) -> Result<T> {
    name.try_into().map_err(Into::into)
}

/// Time from the first failure during which failures are not logged as warnings: they may be one
/// lost connection.
const WARN_AFTER: Duration = Duration::from_secs(1);

/// Availability of the store as this process sees it. Logged once when the store becomes unavailable
/// and once when it is available again, not at every attempt.
#[derive(Default)]
pub(super) struct Availability {
    /// Whether the last call failed. Avoids contention on the mutex between successful calls.
    failing: AtomicBool,
    outage: Mutex<Option<Outage>>,
}

struct Outage {
    since: BootInstant,
    logged: bool,
}

impl Availability {
    /// Records a failed call that will be repeated.
    pub(super) fn record_failure(&self, message: &'static str, error: &Error) {
        if !error.is_retryable() {
            tracing::warn!(%error, "{message}");
            return;
        }
        tracing::debug!(%error, "{message}");
        let now = BootInstant::now();
        let mut outage = self.outage();
        self.failing.store(true, Ordering::Relaxed);
        let outage = outage.get_or_insert(Outage { since: now, logged: false });
        if !outage.logged && now.after(outage.since) >= WARN_AFTER {
            outage.logged = true;
            tracing::warn!(%error, "the store does not answer; trying again until it does");
        }
    }

    pub(super) fn record_success(&self) {
        if !self.failing.load(Ordering::Relaxed) {
            return;
        }
        let mut outage = self.outage();
        self.failing.store(false, Ordering::Relaxed);
        if let Some(Outage { since, logged: true }) = outage.take() {
            let seconds = BootInstant::now().after(since).as_secs();
            tracing::warn!("the store answers again, after {seconds} s");
        }
    }

    fn outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_does_not_fit_is_an_error_of_the_store() {
        let lock = LockName::new("a").unwrap();
        let error = checked(&lock, Outcome::Withdrawn.into_released()).unwrap_err();
        let message = "the store gave an invalid answer about lock 'a': \
                       the operation 'release' was answered with 'withdrawn'";
        assert_eq!((error.code(), error.to_string().as_str()), ("STORE_BROKEN", message));
        assert!(!error.is_retryable());
    }

    fn logged(availability: &Availability) -> Option<bool> {
        availability.outage().as_ref().map(|outage| outage.logged)
    }

    #[test]
    fn a_lasting_outage_is_logged_once() {
        let availability = Availability::default();
        let lost = Error::store(StoreErrorKind::Unavailable, "the connection was cut", "nothing");
        availability.record_failure("a heartbeat", &lost);
        assert_eq!(logged(&availability), Some(false), "it may be one lost connection");
        availability.record_success();
        assert_eq!(logged(&availability), None);
        availability.record_failure("a heartbeat", &lost);
        let earlier = BootInstant::from_micros(BootInstant::now().as_micros().saturating_sub(2_000_000));
        availability.outage().as_mut().unwrap().since = earlier;
        availability.record_failure("a heartbeat", &lost);
        assert_eq!(logged(&availability), Some(true));
        availability.record_failure("a lease", &lost);
        assert_eq!(availability.outage().as_ref().unwrap().since, earlier);
        availability.record_success();
        assert_eq!(logged(&availability), None);
    }
}
