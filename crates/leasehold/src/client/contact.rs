//! Availability of the store as this process sees it. Logged once when the store becomes
//! unavailable and once when it is available again, not at every attempt.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Error;
use crate::store::BootInstant;

/// Time from the first failure during which failures are not logged as warnings: they may be one
/// lost connection.
const PATIENCE: Duration = Duration::from_secs(1);

/// Availability of the store.
#[derive(Default)]
pub(super) struct Contact {
    /// Whether the last call failed. Avoids contention on the mutex between successful calls.
    failing: AtomicBool,
    away: Mutex<Option<Away>>,
}

struct Away {
    since: BootInstant,
    told: bool,
}

impl Contact {
    /// Records a failed call that will be repeated.
    pub(super) fn failed(&self, what: &'static str, error: &Error) {
        if !error.is_retryable() {
            tracing::warn!(%error, "{what}");
            return;
        }
        tracing::debug!(%error, "{what}");
        let now = BootInstant::now();
        let mut away = self.away();
        self.failing.store(true, Ordering::Relaxed);
        let away = away.get_or_insert(Away { since: now, told: false });
        if !away.told && now.after(away.since) >= PATIENCE {
            away.told = true;
            tracing::warn!(%error, "the store does not answer; trying again until it does");
        }
    }

    /// Records a successful call.
    pub(super) fn answered(&self) {
        if !self.failing.load(Ordering::Relaxed) {
            return;
        }
        let mut away = self.away();
        self.failing.store(false, Ordering::Relaxed);
        if let Some(Away { since, told: true }) = away.take() {
            let seconds = BootInstant::now().after(since).as_secs();
            tracing::warn!("the store answers again, after {seconds} s");
        }
    }

    fn away(&self) -> MutexGuard<'_, Option<Away>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StoreErrorKind;

    fn told(contact: &Contact) -> Option<bool> {
        contact.away().as_ref().map(|away| away.told)
    }

    #[test]
    fn only_what_lasts_is_told_and_once() {
        let contact = Contact::default();
        let lost = Error::store(StoreErrorKind::Unavailable, "the connection was cut", "nothing");
        contact.failed("a heartbeat", &lost);
        assert_eq!(told(&contact), Some(false), "it may be one lost connection");
        contact.answered();
        assert_eq!(told(&contact), None);
        contact.failed("a heartbeat", &lost);
        let earlier = BootInstant::from_micros(BootInstant::now().as_micros().saturating_sub(2_000_000));
        contact.away().as_mut().unwrap().since = earlier;
        contact.failed("a heartbeat", &lost);
        assert_eq!(told(&contact), Some(true));
        contact.failed("a lease", &lost);
        assert_eq!(contact.away().as_ref().unwrap().since, earlier);
        contact.answered();
        assert_eq!(told(&contact), None);
    }
}
