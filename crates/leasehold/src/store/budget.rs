//! What a service that counts its requests still allows.

use crate::model::{Timestamp, Ttl};

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

#[cfg(test)]
mod tests {
    use super::*;

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
