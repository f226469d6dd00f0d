//! What a service that counts its requests still allows, and until when it refuses more of them.

use std::time::Duration;

use crate::error::Error;
use crate::model::{Timestamp, Ttl};
use crate::store::Moment;

/// What a service still allows until it counts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// So many requests it allows in all.
    pub limit: u64,
    /// So many of them are left.
    pub remaining: u64,
    /// When it counts anew.
    pub renews_at: Timestamp,
}

impl Budget {
    /// Whether it is used up before so many leases of this ttl can be kept until it begins anew, at so many requests for each
    /// renewal. Leases are renewed three times in their ttl; a lease that outlasts the wait needs none of it.
    pub fn ends_before(&self, leases: u64, ttl: Ttl, requests: u64, now: Timestamp) -> bool {
        let wait = self.renews_at.as_micros().saturating_sub(now.as_micros());
        let renewals = wait.div_ceil(ttl.as_micros().max(3) / 3);
        wait >= ttl.as_micros() && self.remaining < leases.saturating_mul(renewals).saturating_mul(requests)
    }
}

/// The cause of an error of a store whose service refuses every request until then.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{said}")]
pub struct RefusedUntil {
    /// When the service accepts requests again, on this machine's clock.
    pub until: Moment,
    /// The answer of the service.
    pub said: String,
}

impl Error {
    /// How long from now the store refuses every request, if it said so: a request before that is in vain. `None` for every
    /// other error.
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Store { source: Some(source), .. } = self else { return None };
        let refused = source.downcast_ref::<RefusedUntil>()?;
        Some(refused.until.after(Moment::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Trouble;

    #[test]
    fn an_error_says_how_long_requests_are_refused() {
        let error = || Error::store(Trouble::Unavailable, "limit", "wait");
        assert_eq!(error().retry_after(), None);
        let until = Moment::now().plus(Duration::from_mins(1));
        let refused = error().because(RefusedUntil { until, said: "403: slow down".to_owned() });
        let left = refused.retry_after().unwrap();
        assert!(left > Duration::from_secs(50) && left <= Duration::from_mins(1), "{left:?}");
        let past = error().because(RefusedUntil { until: Moment::from_micros(0), said: String::new() });
        assert_eq!(past.retry_after(), Some(Duration::ZERO));
    }

    #[test]
    fn a_budget_has_to_last_for_every_renewal_until_it_begins_anew() {
        let seconds = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
        let budget = |remaining| Budget { limit: 5000, remaining, renews_at: seconds(3600) };
        let ttl = Ttl::from_secs(30);
        // An hour is 360 renewals.
        assert!(!budget(720).ends_before(1, ttl, 2, seconds(0)));
        assert!(budget(719).ends_before(1, ttl, 2, seconds(0)));
        assert!(budget(720).ends_before(2, ttl, 2, seconds(0)));
        assert!(budget(1).ends_before(1, ttl, 2, seconds(3570)));
        assert!(!budget(0).ends_before(1, ttl, 2, seconds(3571)), "the lease outlasts the wait");
        assert!(!budget(0).ends_before(1, ttl, 2, seconds(4000)), "it has begun anew");
    }
}
