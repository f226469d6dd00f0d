//! Leases that a worker holds: until when each lease is valid, and which handlers have to stop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::model::{HeartbeatResult, HeldTask, Progress, Task, TaskId, Token, Ttl};
use crate::store::BootInstant;

/// Reason why a handler has to stop before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The lease is lost: further work has no effect, and may do harm.
    Lost,
    /// A caller has requested that the task be cancelled.
    Asked,
    /// The worker is stopping, and its grace period is over.
    Ending,
    /// The handler has reached its maximum run time.
    Overdue,
}

/// State of a lease, as its handler sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Earliest time at which the lease may expire, on this machine's boot clock.
    pub(super) valid_until: BootInstant,
    /// Reason why the handler has to stop before it is done, if it has to.
    pub(super) stop: Option<Stop>,
}

/// Whether the handler of a task was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// The task was prefetched and waits for a slot.
    No,
    /// The handler was started at this moment, and the store does not know it yet.
    Since(BootInstant),
    /// The store knows that the handler was started.
    Told,
}

/// Delay after which the start of a prefetched task is reported to the store, unless the task is
/// done by then: a call for each short task would cost more than the task.
const TELL_BEGUN_AFTER: Duration = Duration::from_millis(50);

/// All leases that a worker holds.
#[derive(Default)]
pub(super) struct Floor {
    hands: Mutex<BTreeMap<TaskId, Hand>>,
    /// Leases released since the start of a query for the worker's leases; `None` while no such
    /// query is in flight.
    gone: Mutex<Option<BTreeSet<(TaskId, Token)>>>,
    /// Notified when a handler has reported new progress.
    pub(super) news: Notify,
    /// Changes with each notification that another caller has changed a task of this worker.
    noticed: watch::Sender<()>,
}

/// One held lease.
struct Hand {
    token: Token,
    ttl: Ttl,
    begun: Begun,
    progress: Option<Progress>,
    terms: watch::Sender<Terms>,
}

impl Floor {
    /// Makes the worker send its heartbeat at once, to learn what another caller has changed.
    pub(super) fn notice(&self) {
        self.noticed.send_replace(());
    }

    /// Returns a receiver that changes with each notification from now on.
    pub(super) fn notices(&self) -> watch::Receiver<()> {
        self.noticed.subscribe()
    }

    /// Registers a lease that was requested at `sent`, and returns a receiver of its state.
    pub(super) fn take(&self, task: &Task, ttl: Ttl, sent: BootInstant) -> watch::Receiver<Terms> {
        let terms = Terms { valid_until: sent.plus(ttl.as_duration()), stop: None };
        let (terms, heard) = watch::channel(terms);
        let begun = if task.begun { Begun::Told } else { Begun::No };
        let hand = Hand { token: task.token, ttl, begun, progress: None, terms };
        // Receiving a task that the worker already holds means that the earlier lease was lost,
        // possibly undetected. Stop the earlier handler so that no two handlers run for one task.
        if let Some(mut earlier) = self.hands().insert(task.id, hand) {
            earlier.stop(Stop::Lost);
        }
        heard
    }

    /// Returns whether this lease is not held or may have expired: the answer that granted it may
    /// have arrived too late.
    pub(super) fn is_over(&self, id: TaskId, token: Token, now: BootInstant) -> bool {
        self.hands().get(&id).is_none_or(|hand| hand.token != token || hand.terms.borrow().valid_until <= now)
    }

    /// Removes a lease that was settled or lost.
    pub(super) fn let_go(&self, id: TaskId, token: Token) {
        let mut hands = self.hands();
        if hands.get(&id).is_some_and(|hand| hand.token == token) {
            hands.remove(&id);
            if let Some(gone) = &mut *self.gone() {
                gone.insert((id, token));
            }
        }
    }

    /// Starts to record the leases that are removed: an answer that is in flight may still contain
    /// them.
    pub(super) fn remember(&self) {
        *self.gone() = Some(BTreeSet::new());
    }

    /// Stops recording removed leases: no answer is in flight any more.
    pub(super) fn forget(&self) {
        *self.gone() = None;
    }

    /// Returns whether this lease is held, or was removed since [`remember`](Self::remember).
    pub(super) fn knows(&self, id: TaskId, token: Token) -> bool {
        let hands = self.hands();
        let gone = self.gone().as_ref().is_some_and(|gone| gone.contains(&(id, token)));
        gone || hands.get(&id).is_some_and(|hand| hand.token == token)
    }

    /// Returns the number of held leases.
    pub(super) fn len(&self) -> usize {
        self.hands().len()
    }

    /// Records the progress that a handler reports.
    pub(super) fn tell(&self, id: TaskId, token: Token, progress: Progress) {
        if let Some(hand) = self.hands().get_mut(&id).filter(|hand| hand.token == token) {
            hand.progress = Some(progress);
            self.news.notify_one();
        }
    }

    /// Records that the handler of a task is about to be started.
    pub(super) fn begin(&self, id: TaskId, token: Token) {
        if let Some(hand) = self.hands().get_mut(&id).filter(|hand| hand.token == token)
            && hand.begun == Begun::No
        {
            hand.begun = Begun::Since(BootInstant::now());
        }
    }

    /// Returns the leases of this ttl for a heartbeat, with their unreported changes.
    pub(super) fn held(&self, ttl: Ttl) -> Vec<HeldTask> {
        self.held_if(ttl, |_| true)
    }

    /// Returns the leases of this ttl whose handlers were started at least [`TELL_BEGUN_AFTER`] ago
    /// without the store knowing it.
    pub(super) fn untold(&self, ttl: Ttl, now: BootInstant) -> Vec<HeldTask> {
        let is_untold = |begun| matches!(begun, Begun::Since(at) if at.plus(TELL_BEGUN_AFTER) <= now);
        self.held_if(ttl, |hand| is_untold(hand.begun))
    }

    fn held_if(&self, ttl: Ttl, wanted: impl Fn(&Hand) -> bool) -> Vec<HeldTask> {
        let hands = self.hands();
        let of_ttl = hands.iter().filter(|(_, hand)| hand.ttl == ttl && wanted(hand));
        let held = |(id, hand): (&TaskId, &Hand)| HeldTask {
            id: *id,
            token: hand.token,
            progress: hand.progress.clone(),
            begun: hand.begun != Begun::No,
        };
        of_ttl.map(held).collect()
    }

    /// Applies the results of heartbeats that were sent at `sent`.
    pub(super) fn heard(&self, held: &[HeldTask], beats: &[HeartbeatResult], sent: BootInstant) {
        let mut hands = self.hands();
        for (held, beat) in held.iter().zip(beats) {
            let Some(hand) = hands.get_mut(&held.id).filter(|hand| hand.token == held.token) else {
                continue;
            };
            match beat {
                HeartbeatResult::Lost => hand.stop(Stop::Lost),
                HeartbeatResult::Extended(asked) => {
                    if held.begun {
                        hand.begun = Begun::Told;
                    }
                    if hand.progress == held.progress {
                        hand.progress = None;
                    }
                    hand.renew(sent.plus(hand.ttl.as_duration()), asked.as_ref().map(|_| Stop::Asked));
                }
            }
        }
    }

    /// Gives up the leases that have expired without an answer from the store, and returns their
    /// number.
    pub(super) fn give_up(&self, now: BootInstant) -> usize {
        let mut hands = self.hands();
        let is_over = |terms: Terms| terms.valid_until <= now && terms.stop.is_none();
        let over = hands.values_mut().filter(|hand| is_over(*hand.terms.borrow()));
        over.map(|hand| hand.stop(Stop::Lost)).count()
    }

    /// Stops the handler of one lease.
    pub(super) fn stop(&self, id: TaskId, token: Token, why: Stop) {
        if let Some(hand) = self.hands().get_mut(&id).filter(|hand| hand.token == token) {
            hand.stop(why);
        }
    }

    /// Stops every handler.
    pub(super) fn stop_all(&self) {
        self.hands().values_mut().for_each(|hand| hand.stop(Stop::Ending));
    }

    fn gone(&self) -> MutexGuard<'_, Option<BTreeSet<(TaskId, Token)>>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hands(&self) -> MutexGuard<'_, BTreeMap<TaskId, Hand>> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hand {
    /// Applies the answer to a heartbeat atomically: a handler never sees the renewal without the
    /// request to stop. A late answer never shortens a lease.
    fn renew(&mut self, until: BootInstant, stop: Option<Stop>) {
        self.terms.send_if_modified(|terms| {
            let later = until > terms.valid_until;
            terms.valid_until = terms.valid_until.max(until);
            stop.is_some_and(|why| terms.stop_because(why)) || later
        });
    }

    fn stop(&mut self, why: Stop) {
        self.terms.send_if_modified(|terms| terms.stop_because(why));
    }
}

impl Terms {
    /// Sets the reason to stop, and returns whether it changed. The first reason is kept, except
    /// that [`Stop::Lost`] replaces every other reason.
    fn stop_because(&mut self, why: Stop) -> bool {
        let stronger = self.stop.is_none() || (why == Stop::Lost && self.stop != Some(Stop::Lost));
        if stronger {
            self.stop = Some(why);
        }
        stronger
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NewTask, Payload, QueueName, Timestamp};

    fn task(token: u64) -> Task {
        let id = TaskId::from_uuid(uuid::Uuid::from_u128(1));
        let new = NewTask::new(id, QueueName::new("q").unwrap(), Payload::default());
        Task { token: Token::new(token).unwrap(), ..Task::new(&new, Timestamp::from_micros(1)) }
    }

    /// After a pause of the process, the answer with the new lease may be read before the expiry of
    /// the old lease is detected.
    #[test]
    fn taking_a_task_anew_stops_the_earlier_attempt() {
        let floor = Floor::default();
        let earlier = floor.take(&task(1), Ttl::from_secs(1), BootInstant::now());
        let later = floor.take(&task(2), Ttl::from_secs(1), BootInstant::now());
        assert_eq!(earlier.borrow().stop, Some(Stop::Lost));
        assert_eq!(later.borrow().stop, None);
        floor.let_go(task(1).id, task(1).token);
        assert!(floor.knows(task(2).id, task(2).token));
    }

    #[test]
    fn a_lease_whose_answer_comes_too_late_is_over() {
        let (floor, sent, ttl) = (Floor::default(), BootInstant::now(), Ttl::from_secs(1));
        let _stop = floor.take(&task(1), ttl, sent);
        let over = |token, now| floor.is_over(task(token).id, task(token).token, now);
        assert!(!over(1, sent));
        assert!(over(1, sent.plus(ttl.as_duration())));
        assert!(over(2, sent), "it is not in hand");
    }

    /// A prefetched task counts as an attempt only once it was started, and the start of a short
    /// task is not reported at all.
    #[test]
    fn a_start_is_told_once_and_only_if_the_store_does_not_know_it() {
        let (floor, ttl, task) = (Floor::default(), Ttl::from_secs(9), task(1));
        let _terms = floor.take(&task, ttl, BootInstant::now());
        let begun = |held: Vec<HeldTask>| held.iter().map(|held| held.begun).collect::<Vec<_>>();
        let later = BootInstant::now().plus(Duration::from_secs(1));
        assert_eq!((begun(floor.held(ttl)), begun(floor.untold(ttl, later))), (vec![false], vec![]));
        floor.begin(task.id, task.token);
        assert_eq!(begun(floor.untold(ttl, BootInstant::now())), [false; 0], "it may be done in a moment");
        let untold = floor.untold(ttl, later);
        assert_eq!((begun(floor.held(ttl)), begun(untold.clone())), (vec![true], vec![true]));
        floor.heard(&untold, &[HeartbeatResult::Extended(None)], BootInstant::now());
        assert_eq!((begun(floor.held(ttl)), begun(floor.untold(ttl, later))), (vec![true], vec![]));
    }

    /// A list that was read before a settlement contains a task that was done after the read: the
    /// task must not be started again.
    #[test]
    fn what_is_let_go_of_while_the_store_is_asked_is_still_known() {
        let (floor, task) = (Floor::default(), task(1));
        let id = task.id;
        let _stop = floor.take(&task, Ttl::from_secs(1), BootInstant::now());
        floor.remember();
        floor.let_go(id, task.token);
        assert!(floor.knows(id, task.token));
        floor.forget();
        assert!(!floor.knows(id, task.token));
    }

    /// A handler that saw the renewal first would consider the lease valid, and end as if by
    /// itself.
    #[test]
    fn a_renewal_and_the_request_to_stop_come_together() {
        let (floor, task, sent) = (Floor::default(), task(1), BootInstant::now());
        let mut heard = floor.take(&task, Ttl::from_secs(1), sent);
        let held = floor.held(Ttl::from_secs(1));
        let asked = crate::model::Asked {
            by: crate::model::Holder::new("ada").unwrap(),
            at: Timestamp::from_micros(1),
            reason: None,
        };
        heard.mark_unchanged();
        floor.heard(
            &held,
            &[HeartbeatResult::Extended(Some(asked))],
            sent.plus(std::time::Duration::from_millis(500)),
        );
        assert!(heard.has_changed().unwrap());
        let terms = *heard.borrow_and_update();
        assert_eq!(terms.stop, Some(Stop::Asked));
        assert!(terms.valid_until > sent.plus(std::time::Duration::from_secs(1)));
        assert!(!heard.has_changed().unwrap());
    }
}
