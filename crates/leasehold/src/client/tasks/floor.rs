//! What a worker has in hand: its leases, until when each of them lasts, and which handlers have to stop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::model::{Beat, HeldTask, Progress, Task, TaskId, Token, Ttl};
use crate::store::Moment;

/// Why a handler has to stop before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The lease is lost: whatever it still does is in vain, and may do harm.
    Lost,
    /// Somebody wants the task stopped.
    Asked,
    /// The worker ends, and its patience is over.
    Ending,
    /// It has run for as long as it may.
    Overdue,
}

/// How a lease is, for its handler.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Until when it lasts at least, on this machine's boot clock.
    pub(super) valid_until: Moment,
    /// Whether the handler has to stop before it is done.
    pub(super) stop: Option<Stop>,
}

/// Whether the handler of a task was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// The task was fetched ahead, and waits for a slot.
    No,
    /// At this moment, and the store does not know it yet.
    Since(Moment),
    /// The store knows it.
    Told,
}

/// A task that was fetched ahead is told to the store as started after this time, unless it is done by then: a call for
/// each short task would cost more than the task.
const TELL_BEGUN_AFTER: Duration = Duration::from_millis(50);

/// Everything that a worker has in hand.
#[derive(Default)]
pub(super) struct Floor {
    hands: Mutex<BTreeMap<TaskId, Hand>>,
    /// While the store is asked what this worker has: what it had and has let go of since.
    gone: Mutex<Option<BTreeSet<(TaskId, Token)>>>,
    /// Rung when a handler has something new to tell.
    pub(super) news: Notify,
    /// Changes with each notice that another caller has changed something about a task of this worker.
    noticed: watch::Sender<()>,
}

/// One lease.
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

    /// Changes with each notice from now on.
    pub(super) fn notices(&self) -> watch::Receiver<()> {
        self.noticed.subscribe()
    }

    /// Takes a lease in hand that was asked for at `sent`, and gives the way to learn how it is.
    pub(super) fn take(&self, task: &Task, ttl: Ttl, sent: Moment) -> watch::Receiver<Terms> {
        let terms = Terms { valid_until: sent.plus(ttl.as_duration()), stop: None };
        let (terms, heard) = watch::channel(terms);
        let begun = if task.begun { Begun::Told } else { Begun::No };
        let hand = Hand { token: task.token, ttl, begun, progress: None, terms };
        // Who gets a task that it had before has lost it in between, perhaps without knowing: no two handlers on one task.
        if let Some(mut earlier) = self.hands().insert(task.id, hand) {
            earlier.stop(Stop::Lost);
        }
        heard
    }

    /// Whether this lease is not in hand, or may be over: its answer may have come too late.
    pub(super) fn is_over(&self, id: TaskId, token: Token, now: Moment) -> bool {
        self.hands().get(&id).is_none_or(|hand| hand.token != token || hand.terms.borrow().valid_until <= now)
    }

    /// Lets go of a lease: it is settled or lost.
    pub(super) fn let_go(&self, id: TaskId, token: Token) {
        let mut hands = self.hands();
        if hands.get(&id).is_some_and(|hand| hand.token == token) {
            hands.remove(&id);
            if let Some(gone) = &mut *self.gone() {
                gone.insert((id, token));
            }
        }
    }

    /// From now on, what is let go of is remembered: an answer that is under way may still tell of it.
    pub(super) fn remember(&self) {
        *self.gone() = Some(BTreeSet::new());
    }

    /// No answer is under way any more.
    pub(super) fn forget(&self) {
        *self.gone() = None;
    }

    /// Whether this lease is in hand, or was a moment ago.
    pub(super) fn knows(&self, id: TaskId, token: Token) -> bool {
        let hands = self.hands();
        let gone = self.gone().as_ref().is_some_and(|gone| gone.contains(&(id, token)));
        gone || hands.get(&id).is_some_and(|hand| hand.token == token)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.hands().len()
    }

    /// A handler tells how far it has come.
    pub(super) fn tell(&self, id: TaskId, token: Token, progress: Progress) {
        if let Some(hand) = self.hands().get_mut(&id).filter(|hand| hand.token == token) {
            hand.progress = Some(progress);
            self.news.notify_one();
        }
    }

    /// The handler of a task is about to be started.
    pub(super) fn begin(&self, id: TaskId, token: Token) {
        if let Some(hand) = self.hands().get_mut(&id).filter(|hand| hand.token == token)
            && hand.begun == Begun::No
        {
            hand.begun = Begun::Since(Moment::now());
        }
    }

    /// The leases of this ttl, for a sign of life, with what is new about them.
    pub(super) fn held(&self, ttl: Ttl) -> Vec<HeldTask> {
        self.held_if(ttl, |_| true)
    }

    /// The leases of this ttl whose handlers were started a while ago without the store knowing it.
    pub(super) fn untold(&self, ttl: Ttl, now: Moment) -> Vec<HeldTask> {
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

    /// Takes the answers to signs of life that were sent at `sent`.
    pub(super) fn heard(&self, held: &[HeldTask], beats: &[Beat], sent: Moment) {
        let mut hands = self.hands();
        for (held, beat) in held.iter().zip(beats) {
            let Some(hand) = hands.get_mut(&held.id).filter(|hand| hand.token == held.token) else {
                continue;
            };
            match beat {
                Beat::Lost => hand.stop(Stop::Lost),
                Beat::Kept(asked) => {
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

    /// Gives up the leases whose time is over without an answer from the store; says how many.
    pub(super) fn give_up(&self, now: Moment) -> usize {
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
    /// Takes the answer to a heartbeat whole: a handler never sees the renewal without the request to stop. An answer that
    /// comes late makes no lease shorter.
    fn renew(&mut self, until: Moment, stop: Option<Stop>) {
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
    /// The first reason stands, but a lease that is lost is lost. Returns whether it is news.
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

    /// After a pause, the answer with the new lease may be read before anybody sees that the old one is over.
    #[test]
    fn taking_a_task_anew_stops_the_earlier_attempt() {
        let floor = Floor::default();
        let earlier = floor.take(&task(1), Ttl::from_secs(1), Moment::now());
        let later = floor.take(&task(2), Ttl::from_secs(1), Moment::now());
        assert_eq!(earlier.borrow().stop, Some(Stop::Lost));
        assert_eq!(later.borrow().stop, None);
        floor.let_go(task(1).id, task(1).token);
        assert!(floor.knows(task(2).id, task(2).token));
    }

    #[test]
    fn a_lease_whose_answer_comes_too_late_is_over() {
        let (floor, sent, ttl) = (Floor::default(), Moment::now(), Ttl::from_secs(1));
        let _stop = floor.take(&task(1), ttl, sent);
        let over = |token, now| floor.is_over(task(token).id, task(token).token, now);
        assert!(!over(1, sent));
        assert!(over(1, sent.plus(ttl.as_duration())));
        assert!(over(2, sent), "it is not in hand");
    }

    /// A task that is fetched ahead counts as an attempt only once it was started, and a short one is not told at all.
    #[test]
    fn a_start_is_told_once_and_only_if_the_store_does_not_know_it() {
        let (floor, ttl, task) = (Floor::default(), Ttl::from_secs(9), task(1));
        let _terms = floor.take(&task, ttl, Moment::now());
        let begun = |held: Vec<HeldTask>| held.iter().map(|held| held.begun).collect::<Vec<_>>();
        let later = Moment::now().plus(Duration::from_secs(1));
        assert_eq!((begun(floor.held(ttl)), begun(floor.untold(ttl, later))), (vec![false], vec![]));
        floor.begin(task.id, task.token);
        assert_eq!(begun(floor.untold(ttl, Moment::now())), [false; 0], "it may be done in a moment");
        let untold = floor.untold(ttl, later);
        assert_eq!((begun(floor.held(ttl)), begun(untold.clone())), (vec![true], vec![true]));
        floor.heard(&untold, &[Beat::Kept(None)], Moment::now());
        assert_eq!((begun(floor.held(ttl)), begun(floor.untold(ttl, later))), (vec![true], vec![]));
    }

    /// A list that was read before the settlement tells of a task that was done after it: it must not be begun again.
    #[test]
    fn what_is_let_go_of_while_the_store_is_asked_is_still_known() {
        let (floor, task) = (Floor::default(), task(1));
        let id = task.id;
        let _stop = floor.take(&task, Ttl::from_secs(1), Moment::now());
        floor.remember();
        floor.let_go(id, task.token);
        assert!(floor.knows(id, task.token));
        floor.forget();
        assert!(!floor.knows(id, task.token));
    }

    /// A handler that saw the renewal first would take the lease for good, and end as if by itself.
    #[test]
    fn a_renewal_and_the_request_to_stop_come_together() {
        let (floor, task, sent) = (Floor::default(), task(1), Moment::now());
        let mut heard = floor.take(&task, Ttl::from_secs(1), sent);
        let held = floor.held(Ttl::from_secs(1));
        let asked = crate::model::Asked {
            by: crate::model::Holder::new("ada").unwrap(),
            at: Timestamp::from_micros(1),
            reason: None,
        };
        heard.mark_unchanged();
        floor.heard(&held, &[Beat::Kept(Some(asked))], sent.plus(std::time::Duration::from_millis(500)));
        assert!(heard.has_changed().unwrap());
        let terms = *heard.borrow_and_update();
        assert_eq!(terms.stop, Some(Stop::Asked));
        assert!(terms.valid_until > sent.plus(std::time::Duration::from_secs(1)));
        assert!(!heard.has_changed().unwrap());
    }
}
