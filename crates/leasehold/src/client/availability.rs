//! Availability of the store as this process sees it. Logged once when the store becomes
//! unavailable and once when it is available again, not at every attempt.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Error;
use crate::store::BootInstant;

/// Time from the first failure during which failures are not logged as warnings: they may be one
/// lost connection.
const WARN_AFTER: Duration = Duration::from_secs(1);

/// Availability of the store.
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

    /// Records a successful call.
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
    use crate::error::StoreErrorKind;

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
