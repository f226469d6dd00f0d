//! Remaining request quota of a service, and the time until which the service refuses requests.

use std::time::Duration;

use crate::error::Error;
use crate::model::{Timestamp, Ttl};
use crate::store::BootInstant;

/// Remaining request quota until the service resets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimit {
    /// Total number of requests in the period.
    pub limit: u64,
    /// Number of requests that are left.
    pub remaining: u64,
    /// Time at which the service resets the quota.
    pub renews_at: Timestamp,
}

impl RateLimit {
    /// Creates a quota as a service reported it.
    pub fn new(limit: u64, remaining: u64, renews_at: Timestamp) -> Self {
        Self { limit, remaining, renews_at }
    }

    /// Whether the quota is used up before the reset if `leases` leases of this `ttl` are renewed
    /// until then, with `requests` requests per renewal. Leases are renewed three times per TTL; a
    /// lease whose TTL lasts beyond the reset needs no request before it.
    pub fn ends_before(&self, leases: u64, ttl: Ttl, requests: u64, now: Timestamp) -> bool {
        let wait = self.renews_at.as_micros().saturating_sub(now.as_micros());
        let renewals = wait.div_ceil(ttl.as_micros().max(3) / 3);
        wait >= ttl.as_micros() && self.remaining < leases.saturating_mul(renewals).saturating_mul(requests)
    }
}

/// Error source of a store whose service refuses every request until a given time.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{said}")]
#[non_exhaustive]
pub struct RefusedUntil {
    /// Instant at which the service accepts requests again, on this machine's clock.
    pub until: BootInstant,
    /// Response of the service.
    pub said: String,
}

impl Error {
    /// Returns the remaining time during which the store refuses every request, if the service
    /// reported one: an earlier request fails. `None` for every other error.
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Store { source: Some(source), .. } = self else { return None };
        let refused = source.downcast_ref::<RefusedUntil>()?;
        Some(refused.until.after(BootInstant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StoreErrorKind;

    #[test]
    fn an_error_says_how_long_requests_are_refused() {
        let error = || Error::store(StoreErrorKind::Unavailable, "limit", "wait");
        assert_eq!(error().retry_after(), None);
        let until = BootInstant::now().plus(Duration::from_mins(1));
        let refused = error().because(RefusedUntil { until, said: "403: slow down".to_owned() });
        let left = refused.retry_after().unwrap();
        assert!(left > Duration::from_secs(50) && left <= Duration::from_mins(1), "{left:?}");
        let past = error().because(RefusedUntil { until: BootInstant::from_micros(0), said: String::new() });
        assert_eq!(past.retry_after(), Some(Duration::ZERO));
    }

    #[test]
    fn a_rate_limit_has_to_last_for_every_renewal_until_it_begins_anew() {
        let seconds = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
        let limit_of = |remaining| RateLimit { limit: 5000, remaining, renews_at: seconds(3600) };
        let ttl = Ttl::from_secs(30);
        // One hour contains 360 renewals.
        assert!(!limit_of(720).ends_before(1, ttl, 2, seconds(0)));
        assert!(limit_of(719).ends_before(1, ttl, 2, seconds(0)));
        assert!(limit_of(720).ends_before(2, ttl, 2, seconds(0)));
        assert!(limit_of(1).ends_before(1, ttl, 2, seconds(3570)));
        assert!(!limit_of(0).ends_before(1, ttl, 2, seconds(3571)), "the lease outlasts the wait");
        assert!(!limit_of(0).ends_before(1, ttl, 2, seconds(4000)), "it has begun anew");
    }
}
