//! Leases that a worker holds: until when each lease is valid, and which handlers have to stop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::model::{HeartbeatResult, HeldTask, Progress, QueueName, Task, TaskId, Token, Ttl};
use crate::store::BootInstant;
use crate::store::sync::{Mutex, MutexGuard};

/// Reason why a handler has to stop before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CancelReason {
    /// The lease is lost: further work has no effect, and may do harm.
    LeaseLost,
    /// A caller has requested that the task be cancelled.
    Requested,
    /// The worker is stopping, and its grace period is over.
    Shutdown,
    /// The handler has reached its maximum run time.
    Timeout,
}

/// State of a lease, as its handler sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTerms {
    /// Earliest time at which the lease may expire, on this machine's boot clock.
    pub(super) valid_until: BootInstant,
    pub(super) cancelled: Option<CancelReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartState {
    /// The task was prefetched and waits for a slot.
    Prefetched,
    /// The handler was started at this moment, and the store does not know it yet.
    StartedAt(BootInstant),
    /// The store knows that the handler was started.
    Reported,
}

/// Delay after which the start of a prefetched task is reported to the store, unless the task is
/// done by then: a call for each short task would cost more than the task.
const REPORT_START_AFTER: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct HeldLeases {
    held: Mutex<Held>,
    /// Changes when the worker holds a lease after it has held none.
    pub(super) has_first: watch::Sender<()>,
    /// Changes when a handler reports progress. The heartbeats of all ttls see it: a notification would
    /// reach those of one ttl, perhaps of another one.
    pub(super) progress_changed: watch::Sender<()>,
    /// Notified when a lease has been removed.
    pub(super) lease_removed: Notify,
    /// Changes with each notification that another caller has changed a task of this worker, which
    /// makes the worker send its heartbeat at once.
    pub(super) changed: watch::Sender<()>,
}

#[derive(Default)]
struct Held {
    leases: BTreeMap<TaskId, HeldLease>,
    /// Leases removed since the start of a query for the worker's leases; `None` while no such query is in
    /// flight.
    removed: Option<BTreeSet<(TaskId, Token)>>,
    /// Newest token of all leases that the worker has ever held.
    newest: Option<Token>,
}

struct HeldLease {
    queue: QueueName,
    token: Token,
    ttl: Ttl,
    start: StartState,
    progress: Option<Progress>,
    terms: watch::Sender<LeaseTerms>,
}

impl HeldLeases {
    /// Registers a lease that was requested at `sent`, and returns a receiver of its state.
    pub(super) fn insert(&self, task: &Task, ttl: Ttl, sent: BootInstant) -> watch::Receiver<LeaseTerms> {
        let sent = if is_planted!(MeasuresTasksFromTheResponse) { BootInstant::now() } else { sent };
        let terms = LeaseTerms { valid_until: sent.plus(ttl.as_duration()), cancelled: None };
        let (terms, receiver) = watch::channel(terms);
        let start = if task.begun { StartState::Reported } else { StartState::Prefetched };
        let queue = task.queue.clone();
        let lease = HeldLease { queue, token: task.token, ttl, start, progress: None, terms };
        let mut held = self.held();
        held.newest = held.newest.max(Some(task.token));
        if held.leases.is_empty() {
            self.has_first.send_replace(());
        }
        // Receiving a task that the worker already holds means that the earlier lease was lost,
        // possibly undetected. Cancel the earlier handler: the worker starts the next one when it has ended.
        if let Some(mut earlier) = held.leases.insert(task.id, lease) {
            earlier.cancel(CancelReason::LeaseLost);
        }
        receiver
    }

    /// Returns whether this lease is not held, is lost or may have expired: the answer that granted it may
    /// have arrived too late.
    pub(super) fn has_ended(&self, id: TaskId, token: Token, now: BootInstant) -> bool {
        let valid = || self.held().get(id, token).is_some_and(|lease| lease.is_valid(now));
        !is_planted!(StartsWithoutAValidLease) && !valid()
    }

    /// Registers that the handler starts. Returns false if it must not start, because its lease is not held or
    /// may have expired.
    pub(super) fn start(&self, id: TaskId, token: Token, now: BootInstant) -> bool {
        let mut held = self.held();
        let Some(lease) = held.get_mut(id, token).filter(|lease| lease.is_valid(now)) else {
            return is_planted!(StartsWithoutAValidLease);
        };
        if lease.start == StartState::Prefetched {
            lease.start = StartState::StartedAt(now);
        }
        true
    }

    /// Removes leases that have ended.
    pub(super) fn remove(&self, ended: impl IntoIterator<Item = (TaskId, Token)>) {
        let mut held = self.held();
        for (id, token) in ended {
            if held.get(id, token).is_some() {
                held.leases.remove(&id);
                if let Some(removed) = &mut held.removed {
                    removed.insert((id, token));
                }
            }
        }
        self.lease_removed.notify_one();
    }

    /// Starts to record the leases that are removed: an answer that is in flight may still contain
    /// them.
    pub(super) fn record_removals(&self) {
        self.held().removed = Some(BTreeSet::new());
    }

    /// Stops recording removed leases: no answer is in flight any more.
    pub(super) fn stop_recording_removals(&self) {
        self.held().removed = None;
    }

    /// Returns whether this lease is held, or was removed since
    /// [`record_removals`](Self::record_removals).
    pub(super) fn is_known(&self, id: TaskId, token: Token) -> bool {
        let held = self.held();
        let was_removed = held.removed.as_ref().is_some_and(|removed| removed.contains(&(id, token)));
        was_removed || held.get(id, token).is_some()
    }

    /// Returns the newest token of all leases that the worker has ever held.
    pub(super) fn newest(&self) -> Option<Token> {
        self.held().newest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held().leases.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.held().leases.len()
    }

    pub(super) fn set_progress(&self, id: TaskId, token: Token, progress: Progress) {
        if let Some(lease) = self.held().get_mut(id, token) {
            lease.progress = Some(progress);
            self.progress_changed.send_replace(());
        }
    }

    /// Returns the leases of this ttl for a heartbeat, with their unreported changes.
    pub(super) fn of_ttl(&self, ttl: Ttl) -> Vec<HeldTask> {
        self.held_if(ttl, |_| true)
    }

    /// Returns the leases of this ttl whose handlers were started at least [`REPORT_START_AFTER`] ago
    /// without the store knowing it.
    pub(super) fn unreported_starts(&self, ttl: Ttl, now: BootInstant) -> Vec<HeldTask> {
        let is_unreported =
            |start| matches!(start, StartState::StartedAt(at) if at.plus(REPORT_START_AFTER) <= now);
        self.held_if(ttl, |lease| is_unreported(lease.start))
    }

    /// Returns these tasks by their queues, without those whose leases the worker has lost.
    pub(super) fn by_queue(&self, tasks: &[HeldTask]) -> Vec<Vec<HeldTask>> {
        let (held, mut by_queue) = (self.held(), BTreeMap::<&QueueName, Vec<HeldTask>>::new());
        for task in tasks {
            if let Some(lease) = held.get(task.id, task.token) {
                by_queue.entry(&lease.queue).or_default().push(task.clone());
            }
        }
        by_queue.into_values().collect()
    }

    fn held_if(&self, ttl: Ttl, wanted: impl Fn(&HeldLease) -> bool) -> Vec<HeldTask> {
        let held = self.held();
        let of_ttl = held.leases.iter().filter(|(_, lease)| lease.ttl == ttl && wanted(lease));
        let task = |(id, lease): (&TaskId, &HeldLease)| HeldTask {
            id: *id,
            token: lease.token,
            progress: lease.progress.clone(),
            begun: lease.start != StartState::Prefetched,
        };
        of_ttl.map(task).collect()
    }

    pub(super) fn apply_heartbeats(
        &self,
        tasks: &[HeldTask],
        results: &[HeartbeatResult],
        sent: BootInstant,
    ) {
        let sent = if is_planted!(MeasuresTasksFromTheResponse) { BootInstant::now() } else { sent };
        let mut held = self.held();
        for (task, result) in tasks.iter().zip(results) {
            let Some(lease) = held.get_mut(task.id, task.token) else { continue };
            match result {
                HeartbeatResult::Lost => lease.cancel(CancelReason::LeaseLost),
                // It is sent again, until the lease has ended.
                HeartbeatResult::Busy => {}
                HeartbeatResult::Extended(cancel_request) => {
                    if task.begun {
                        lease.start = StartState::Reported;
                    }
                    if lease.progress == task.progress {
                        lease.progress = None;
                    }
                    lease.renew(
                        sent.plus(lease.ttl.as_duration()),
                        cancel_request.as_ref().map(|_| CancelReason::Requested),
                    );
                }
            }
        }
    }

    /// Cancels the handlers of leases that have expired without an answer from the store, and
    /// returns their number.
    pub(super) fn expire(&self, now: BootInstant) -> usize {
        let mut held = self.held();
        let has_expired = |terms: LeaseTerms| terms.valid_until <= now && terms.cancelled.is_none();
        let expired = held.leases.values_mut().filter(|lease| has_expired(*lease.terms.borrow()));
        if is_planted!(WorksAfterLostHeartbeats) {
            return expired.map(|lease| lease.renew(now.plus(lease.ttl.as_duration()), None)).count();
        }
        expired.map(|lease| lease.cancel(CancelReason::LeaseLost)).count()
    }

    pub(super) fn cancel(&self, id: TaskId, token: Token, reason: CancelReason) {
        if let Some(lease) = self.held().get_mut(id, token) {
            lease.cancel(reason);
        }
    }

    pub(super) fn cancel_all(&self) {
        self.held().leases.values_mut().for_each(|lease| lease.cancel(CancelReason::Shutdown));
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn get(&self, id: TaskId, token: Token) -> Option<&HeldLease> {
        self.leases.get(&id).filter(|lease| lease.token == token)
    }

    fn get_mut(&mut self, id: TaskId, token: Token) -> Option<&mut HeldLease> {
        self.leases.get_mut(&id).filter(|lease| lease.token == token)
    }
}

impl HeldLease {
    fn is_valid(&self, now: BootInstant) -> bool {
        let terms = self.terms.borrow();
        terms.valid_until > now && terms.cancelled != Some(CancelReason::LeaseLost)
    }

    /// Applies the answer to a heartbeat atomically: a handler never sees the renewal without the
    /// request to stop. A late answer never shortens a lease.
    fn renew(&mut self, until: BootInstant, cancel: Option<CancelReason>) {
        self.terms.send_if_modified(|terms| {
            let later = until > terms.valid_until;
            terms.valid_until = terms.valid_until.max(until);
            cancel.is_some_and(|reason| terms.cancel(reason)) || later
        });
    }

    fn cancel(&mut self, reason: CancelReason) {
        self.terms.send_if_modified(|terms| terms.cancel(reason));
    }
}

impl LeaseTerms {
    /// Sets the reason to stop, and returns whether it changed. The first reason is kept, except
    /// that [`CancelReason::LeaseLost`] replaces every other reason.
    fn cancel(&mut self, reason: CancelReason) -> bool {
        let stronger = self.cancelled.is_none()
            || (reason == CancelReason::LeaseLost && self.cancelled != Some(CancelReason::LeaseLost));
        if stronger {
            self.cancelled = Some(reason);
        }
        stronger
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NewTask, Payload, Timestamp};

    fn task(token: u64) -> Task {
        let id = TaskId::from_uuid(uuid::Uuid::from_u128(1));
        let new = NewTask::new(id, QueueName::new("q").unwrap(), Payload::default());
        Task { token: Token::new(token).unwrap(), ..Task::new(&new, Timestamp::from_micros(1)) }
    }

    /// After a pause of the process, the answer with the new lease may be read before the expiry of
    /// the old lease is detected.
    #[test]
    fn leasing_a_task_again_cancels_the_earlier_attempt() {
        let leases = HeldLeases::default();
        let earlier = leases.insert(&task(1), Ttl::from_secs(1), BootInstant::now());
        let later = leases.insert(&task(2), Ttl::from_secs(1), BootInstant::now());
        assert_eq!(earlier.borrow().cancelled, Some(CancelReason::LeaseLost));
        assert_eq!(later.borrow().cancelled, None);
        leases.remove([(task(1).id, task(1).token)]);
        assert!(leases.is_known(task(2).id, task(2).token));
    }

    #[test]
    fn a_lease_whose_answer_comes_too_late_has_ended() {
        let (leases, sent, ttl) = (HeldLeases::default(), BootInstant::now(), Ttl::from_secs(1));
        let _terms = leases.insert(&task(1), ttl, sent);
        let ended = |token, now| leases.has_ended(task(token).id, task(token).token, now);
        assert!(!ended(1, sent));
        assert!(ended(1, sent.plus(ttl.as_duration())));
        assert!(ended(2, sent), "the worker does not hold it");
        assert!(!leases.start(task(1).id, task(1).token, sent.plus(ttl.as_duration())));
        assert!(!leases.start(task(2).id, task(2).token, sent));
        leases.cancel(task(1).id, task(1).token, CancelReason::LeaseLost);
        assert!(ended(1, sent), "the store has said that it is lost");
    }

    /// A prefetched task counts as an attempt only once it was started, and the start of a short
    /// task is not reported at all.
    #[test]
    fn a_start_is_reported_once_and_only_if_the_store_does_not_know_it() {
        let (leases, ttl, task) = (HeldLeases::default(), Ttl::from_secs(9), task(1));
        let _terms = leases.insert(&task, ttl, BootInstant::now());
        let begun = |held: Vec<HeldTask>| held.iter().map(|held| held.begun).collect::<Vec<_>>();
        let later = BootInstant::now().plus(Duration::from_secs(1));
        assert_eq!(
            (begun(leases.of_ttl(ttl)), begun(leases.unreported_starts(ttl, later))),
            (vec![false], vec![])
        );
        assert!(leases.start(task.id, task.token, BootInstant::now()));
        assert_eq!(
            begun(leases.unreported_starts(ttl, BootInstant::now())),
            [false; 0],
            "it may be done in a moment"
        );
        let unreported = leases.unreported_starts(ttl, later);
        assert_eq!((begun(leases.of_ttl(ttl)), begun(unreported.clone())), (vec![true], vec![true]));
        leases.apply_heartbeats(&unreported, &[HeartbeatResult::Extended(None)], BootInstant::now());
        assert_eq!(
            (begun(leases.of_ttl(ttl)), begun(leases.unreported_starts(ttl, later))),
            (vec![true], vec![])
        );
    }

    /// A list that was read before a settlement contains a task that was done after the read: the
    /// task must not be started again.
    #[test]
    fn a_lease_removed_during_a_query_is_still_known() {
        let (leases, task) = (HeldLeases::default(), task(1));
        let id = task.id;
        let _terms = leases.insert(&task, Ttl::from_secs(1), BootInstant::now());
        leases.record_removals();
        leases.remove([(id, task.token)]);
        assert!(leases.is_known(id, task.token));
        leases.stop_recording_removals();
        assert!(!leases.is_known(id, task.token));
    }

    /// A handler that saw the renewal first would consider the lease valid, and end as if by
    /// itself.
    #[test]
    fn a_renewal_and_the_cancel_request_arrive_together() {
        let (leases, task, sent) = (HeldLeases::default(), task(1), BootInstant::now());
        let mut receiver = leases.insert(&task, Ttl::from_secs(1), sent);
        let held = leases.of_ttl(Ttl::from_secs(1));
        let request = crate::model::StopRequest {
            by: crate::model::Holder::new("ada").unwrap(),
            at: Timestamp::from_micros(1),
            reason: None,
        };
        receiver.mark_unchanged();
        leases.apply_heartbeats(
            &held,
            &[HeartbeatResult::Extended(Some(request))],
            sent.plus(Duration::from_millis(500)),
        );
        assert!(receiver.has_changed().unwrap());
        let terms = *receiver.borrow_and_update();
        assert_eq!(terms.cancelled, Some(CancelReason::Requested));
        assert!(terms.valid_until > sent.plus(Duration::from_secs(1)));
        assert!(!receiver.has_changed().unwrap());
    }
}
