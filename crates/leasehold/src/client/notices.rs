//! The notices of a guard: what makes it renew before its time.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::guard::Core;
use super::keeper::Diary;
use crate::store::{Moment, Subscription};

/// A guard that lives longer than this subscribes to notices: most are released before.
const SUBSCRIBE_AFTER: Duration = Duration::from_millis(500);
/// Notices make a guard renew at most this often: they may come from anybody.
const NOTICED_EVERY: Duration = Duration::from_millis(20);

/// The notices that a guard has subscribed to.
#[derive(Default)]
pub(super) struct Notices {
    /// One for each lease, in the order of the leases.
    subscriptions: Vec<Subscription>,
    /// When the leases are to be renewed if no notice comes.
    renew_at: Option<Moment>,
    /// Whether one came that no renewal has followed yet.
    pending: bool,
    /// The earliest time for the next renewal because of one.
    earliest: Option<Moment>,
}

impl Core {
    /// When a guard is due that is to be renewed at `renew_at`: earlier if it has yet to subscribe.
    pub(super) fn due_with_notices(&self, now: Moment, renew_at: Moment) -> Moment {
        let is_subscribed = {
            let mut notices = self.notices();
            notices.renew_at = Some(renew_at);
            notices.subscriptions.len() == self.len()
        };
        if is_subscribed || !self.inner.store.abilities().wakes {
            return renew_at;
        }
        renew_at.min(now.plus(SUBSCRIBE_AFTER))
    }

    /// Subscribes to the notices for every lease that has no subscription yet. Returns the time until the renewal if that
    /// was all there is to do now.
    pub(super) fn subscribe(self: &Arc<Self>) -> Option<Duration> {
        if !self.inner.store.abilities().wakes {
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
        let left = notices.renew_at.map(|at| at.after(Moment::now()));
        left.filter(|left| !ids.is_empty() && !notices.pending && !left.is_zero())
    }

    /// Another caller may have changed something about a lease of this guard: it is renewed at once.
    fn noticed(self: &Arc<Self>) {
        let due = {
            let mut notices = self.notices();
            notices.pending = true;
            notices.earliest.map_or_else(Moment::now, |earliest| earliest.max(Moment::now()))
        };
        self.enter_at(self.inner.keeper.diary(), due);
    }

    /// A renewal begins: it answers every notice that came before.
    pub(super) fn answer_notices(&self) {
        let mut notices = self.notices();
        notices.pending = false;
        notices.earliest = Some(Moment::now().plus(NOTICED_EVERY));
    }

    /// Enters the guard for its next renewal, or for now if a notice came meanwhile.
    pub(super) fn enter_again(self: &Arc<Self>, diary: &Diary) {
        self.enter(diary, Moment::now());
        if self.notices().pending {
            self.noticed();
        }
    }

    /// Ends the subscriptions.
    pub(super) fn unsubscribe(&self) {
        let ended = std::mem::take(&mut self.notices().subscriptions);
        drop(ended); // Without the lock: a notice may be under way.
    }

    fn notices(&self) -> MutexGuard<'_, Notices> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
