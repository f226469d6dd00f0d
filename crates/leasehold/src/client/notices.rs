//! Notifications that make a guard renew its leases early.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::guard::Core;
use super::keeper::Diary;
use crate::store::{BootInstant, Subscription};

/// Age at which a guard subscribes to notifications: most guards are released earlier.
const SUBSCRIBE_AFTER: Duration = Duration::from_millis(500);
/// Minimum interval of renewals that notifications cause: any client may send them.
const NOTICED_EVERY: Duration = Duration::from_millis(20);

/// Notifications that a guard has subscribed to.
#[derive(Default)]
pub(super) struct Notices {
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
    pub(super) fn due_with_notices(&self, now: BootInstant, renew_at: BootInstant) -> BootInstant {
        let is_subscribed = {
            let mut notices = self.notices();
            notices.renew_at = Some(renew_at);
            notices.subscriptions.len() == self.len()
        };
        if is_subscribed || !self.inner.store.capabilities().wakes {
            return renew_at;
        }
        renew_at.min(now.plus(SUBSCRIBE_AFTER))
    }

    /// Subscribes to notifications for every lease without a subscription. Returns the time until
    /// the renewal if nothing else is due now.
    pub(super) fn subscribe(self: &Arc<Self>) -> Option<Duration> {
        if !self.inner.store.capabilities().wakes {
            return None;
        }
        let mut notices = self.notices();
        let ids: Vec<_> =
            self.parts()[notices.subscriptions.len()..].iter().map(|part| part.lease.ask.lease_id).collect();
        for id in &ids {
            let core = Arc::downgrade(self);
            let on_notice = move || core.upgrade().into_iter().for_each(|core| core.noticed());
            notices.subscriptions.push(self.inner.store.subscribe((*id).into(), Arc::new(on_notice)));
        }
        let left = notices.renew_at.map(|at| at.after(BootInstant::now()));
        left.filter(|left| !ids.is_empty() && !notices.pending && !left.is_zero())
    }

    /// Renews the guard at once because another caller may have changed one of its leases.
    fn noticed(self: &Arc<Self>) {
        let due = {
            let mut notices = self.notices();
            notices.pending = true;
            notices.earliest.map_or_else(BootInstant::now, |earliest| earliest.max(BootInstant::now()))
        };
        self.enter_at(self.inner.keeper.diary(), due);
    }

    /// Marks all earlier notifications as handled by the renewal that begins now.
    pub(super) fn answer_notices(&self) {
        let mut notices = self.notices();
        notices.pending = false;
        notices.earliest = Some(BootInstant::now().plus(NOTICED_EVERY));
    }

    /// Schedules the next renewal of the guard, or an immediate one if a notification arrived in
    /// the meantime.
    pub(super) fn enter_again(self: &Arc<Self>, diary: &Diary) {
        self.enter(diary, BootInstant::now());
        if self.notices().pending {
            self.noticed();
        }
    }

    /// Ends the subscriptions.
    pub(super) fn unsubscribe(&self) {
        let ended = std::mem::take(&mut self.notices().subscriptions);
        drop(ended); // After unlocking the mutex: a notification may be in progress.
    }

    fn notices(&self) -> MutexGuard<'_, Notices> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
