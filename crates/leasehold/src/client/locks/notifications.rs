//! Notifications that make a guard renew its leases early.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::guard_core::Core;
use crate::client::background::RenewalTimers;
use crate::store::{BootInstant, Subscription};

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
    pending: bool,
    /// Earliest time of the next renewal that a notification causes.
    earliest: Option<BootInstant>,
}

impl Core {
    /// Returns the time at which a guard that is to be renewed at `renew_at` is due: earlier if it
    /// has not subscribed yet.
    pub(super) fn timer_due(&self, now: BootInstant, renew_at: BootInstant) -> BootInstant {
        let is_subscribed = {
            let mut notifications = self.notifications();
            notifications.renew_at = Some(renew_at);
            notifications.subscriptions.len() == self.len()
        };
        if is_subscribed || !self.inner.store.capabilities().push_notifications {
            return renew_at;
        }
        renew_at.min(now.plus(SUBSCRIBE_AFTER))
    }

    /// Subscribes to notifications for every lease without a subscription. Returns the time until
    /// the renewal if nothing else is due now.
    pub(super) fn subscribe(self: &Arc<Self>) -> Option<Duration> {
        if !self.inner.store.capabilities().push_notifications {
            return None;
        }
        let mut notifications = self.notifications();
        let ids: Vec<_> = self.leases()[notifications.subscriptions.len()..]
            .iter()
            .map(|held| held.lease.request.lease_id)
            .collect();
        for id in &ids {
            let core = Arc::downgrade(self);
            let on_notification =
                move || core.upgrade().into_iter().for_each(|core| core.notification_received());
            notifications
                .subscriptions
                .push(self.inner.store.subscribe((*id).into(), Arc::new(on_notification)));
        }
        let left = notifications.renew_at.map(|at| at.after(BootInstant::now()));
        left.filter(|left| !ids.is_empty() && !notifications.pending && !left.is_zero())
    }

    /// Renews the guard at once because another caller may have changed one of its leases.
    fn notification_received(self: &Arc<Self>) {
        let due = {
            let mut notifications = self.notifications();
            notifications.pending = true;
            notifications.earliest.map_or_else(BootInstant::now, |earliest| earliest.max(BootInstant::now()))
        };
        self.set_timer(self.inner.background.timers(), due);
    }

    /// Marks all earlier notifications as handled by the renewal that begins now.
    pub(super) fn mark_notifications_handled(&self) {
        let mut notifications = self.notifications();
        notifications.pending = false;
        notifications.earliest = Some(BootInstant::now().plus(MIN_RENEWAL_INTERVAL));
    }

    /// Schedules the next renewal of the guard, or an immediate one if a notification arrived in
    /// the meantime.
    pub(super) fn schedule_next(self: &Arc<Self>, timers: &RenewalTimers) {
        self.schedule_renewal(timers, BootInstant::now());
        if self.notifications().pending {
            self.notification_received();
        }
    }

    pub(super) fn unsubscribe(&self) {
        let ended = std::mem::take(&mut self.notifications().subscriptions);
        drop(ended); // After unlocking the mutex: a notification may be in progress.
    }

    fn notifications(&self) -> MutexGuard<'_, Notifications> {
        self.notifications.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
