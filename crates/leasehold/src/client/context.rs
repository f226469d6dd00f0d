//! Connection of a client: the store, its background threads, and what all parts of the client share.

use std::sync::Arc;

use super::availability::Availability;
use super::background::BackgroundThreads;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Acquire, Acquired, Holder, Lease, LockName, LockOp, NotHeld, Outcome, Renew, UnexpectedOutcome,
};
use crate::store::{self, LockStore, Store, TaskStore};

#[derive(Clone)]
pub(super) struct Inner {
    pub(super) store: Arc<dyn Store>,
    pub(super) background: Arc<BackgroundThreads>,
    pub(super) availability: Arc<Availability>,
    /// Default holder: host name and process id.
    pub(super) holder: Holder,
    /// Whether renewals are recorded in the history.
    pub(super) log_renewals: bool,
}

impl Inner {
    pub(super) fn new(store: Arc<dyn Store>) -> Result<Self> {
        let holder = Holder::new(format!("{}:{}", store::host_name(), std::process::id()))?;
        let (background, availability) = (Arc::new(BackgroundThreads::start()?), Arc::default());
        Ok(Self { store, background, availability, holder, log_renewals: false })
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

    /// Sends one acquire.
    pub(super) async fn acquire(&self, name: &LockName, acquire: Acquire) -> Result<Acquired> {
        let outcome = self.locks().apply(name, &LockOp::Acquire(acquire)).await?;
        checked(name, outcome.into_acquired())
    }

    /// Sends one renewal.
    pub(super) async fn renew(&self, name: &LockName, renew: Renew) -> Result<Result<Lease, NotHeld>> {
        let op = if self.log_renewals { LockOp::RenewLogged(renew) } else { LockOp::Renew(renew) };
        checked(name, self.locks().apply(name, &op).await?.into_renewed())
    }

    pub(super) async fn notify_holders(&self, name: &LockName, outcome: &Outcome) {
        store::notify_holders(&*self.store, name, outcome).await;
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

/// Returns the error for an operation on a lease that has ended.
pub(super) fn not_held(lock: &LockName, now: NotHeld) -> Error {
    Error::NotHeld { lock: lock.clone(), now: Box::new(now) }
}

/// Returns a name that a caller passed, validated.
pub(super) fn parsed<T>(name: impl TryInto<T, Error: Into<Error>>) -> Result<T> {
    name.try_into().map_err(Into::into)
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
}
