//! Notifications that make a guard renew its leases early: which leases are subscribed, and when the
//! next renewal is due.

use std::time::Duration;

use crate::model::LeaseId;
use crate::store::{BootInstant, OnNotice, Store, Subscription};

/// Age at which a guard subscribes to notifications: most guards are released earlier.
const SUBSCRIBE_AFTER: Duration = Duration::from_millis(500);
/// Minimum interval of renewals that notifications cause: any client may send them.
const MIN_RENEWAL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(super) struct Notifications {
    /// Subscriptions, one per lease, in the order of the leases.
    subscriptions: Vec<Subscription>,
    /// Time of the next renewal if no notification arrives.
    renew_at: Option<BootInstant>,
    /// Whether a notification arrived that no renewal has followed yet.
    pub(super) pending: bool,
    /// Earliest time of the next renewal that a notification causes.
    earliest: Option<BootInstant>,
}

impl Notifications {
    /// Returns the time at which a guard that is to be renewed at `renew_at` is due: earlier if one of
    /// its leases is not subscribed yet. `leases` is their number, or `None` if the store sends no
    /// notifications.
    pub(super) fn renewal_scheduled(
        &mut self,
        now: BootInstant,
        renew_at: BootInstant,
        leases: Option<usize>,
    ) -> BootInstant {
        self.renew_at = Some(renew_at);
        match leases {
            Some(leases) if leases != self.subscriptions.len() => renew_at.min(now.plus(SUBSCRIBE_AFTER)),
            _ => renew_at,
        }
    }

    /// Subscribes every lease without a subscription. Returns the time until the renewal if nothing
    /// else is due now.
    pub(super) fn subscribe(
        &mut self,
        store: &dyn Store,
        leases: &[LeaseId],
        on_notice: &OnNotice,
    ) -> Option<Duration> {
        let subscribed = self.subscriptions.len();
        for id in leases.iter().skip(subscribed) {
            self.subscriptions.push(store.subscribe((*id).into(), on_notice.clone()));
        }
        let left = self.renew_at.map(|at| at.after(BootInstant::now()));
        left.filter(|left| leases.len() > subscribed && !self.pending && !left.is_zero())
    }

    /// Records that another caller may have changed a lease; returns when the guard is to be renewed.
    pub(super) fn received(&mut self, now: BootInstant) -> BootInstant {
        self.pending = true;
        self.earliest.map_or(now, |earliest| earliest.max(now))
    }

    /// Marks all earlier notifications as handled by the renewal that begins now.
    pub(super) fn mark_handled(&mut self) {
        self.pending = false;
        self.earliest = Some(BootInstant::now().plus(MIN_RENEWAL_INTERVAL));
    }
}
