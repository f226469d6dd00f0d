//! Leasing of tasks, and starting of their handlers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::attempt::{AttemptEnd, Handler, attempt};
use super::context::TaskChannels;
use super::heartbeat::{QueueGroup, WorkerDescription, report_start, unconfirmed_leases};
use super::held_leases::{HeldLeases, LeaseTerms};
use super::slots::{Slot, Slots};
use crate::client::context::Inner;
use crate::error::Result;
use crate::model::{AttemptResult, LeaseTasks, Leased, Message, QueueName, Settle, Task, TaskId, Token, Ttl};
use crate::store::{BootInstant, QueueSubscription};

/// Amount of work that is prefetched, as run time per slot.
const PREFETCH_WINDOW: Duration = Duration::from_millis(20);
const MAX_PREFETCH: usize = 600;
/// Maximum number of ended attempts that are not completed in the store yet; beyond it no tasks are
/// leased.
const MAX_INCOMPLETE: usize = 2000;
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

pub(super) struct TaskFetcher {
    pub(super) inner: Arc<Inner>,
    pub(super) leases: Arc<HeldLeases>,
    pub(super) worker: Arc<WorkerDescription>,
    pub(super) groups: Vec<QueueGroup>,
    pub(super) handlers: BTreeMap<QueueName, Arc<Handler>>,
    pub(super) slot_count: usize,
    pub(super) slots: Arc<Slots>,
    pub(super) prefetch: Option<usize>,
    pub(super) completions: mpsc::UnboundedSender<Settle>,
    /// Cancelled when no more tasks are to be leased.
    pub(super) soft_stop: CancellationToken,
    /// Cancelled when the handlers have to stop.
    pub(super) hard_stop: CancellationToken,
    /// Whether handlers that have to stop end by themselves, instead of being dropped.
    pub(super) cooperative_cancellation: bool,
    /// Maximum run time of a handler; it is stopped after that.
    pub(super) max_runtime: Option<Ttl>,
}

/// Task whose lease the worker holds, and whose handler was not started.
struct LeasedTask {
    task: Arc<Task>,
    ttl: Ttl,
    terms: watch::Receiver<LeaseTerms>,
}

#[derive(Default)]
struct FetchState {
    prefetched: VecDeque<LeasedTask>,
    /// Leased tasks whose earlier attempt has lost its lease and has not ended. Each of them starts after
    /// the end of that attempt, in its slot.
    held_back: Vec<LeasedTask>,
    /// Slots that were reserved for the tasks of the last answer.
    reserved: Vec<Slot>,
    /// Running attempts, and the task of each of them.
    running: JoinSet<AttemptEnd>,
    running_tasks: BTreeMap<tokio::task::Id, (TaskId, Token)>,
    running_ids: BTreeSet<TaskId>,
    avg_duration: Option<Duration>,
    /// Index of the next group to query, and the number of groups left to query before it is
    /// certain that there are no tasks.
    next_group: usize,
    groups_to_poll: usize,
    next_due: Option<BootInstant>,
    /// Delay before the next request.
    retry_delay: Duration,
    /// Delay after the last failed request, without jitter; zero after a successful request for tasks.
    backoff: Duration,
    /// Whether answers were lost that may have contained tasks.
    has_unconfirmed: bool,
    /// Maximum number of tasks per request: one after a lost answer, then doubled with each answer.
    /// The lost answer may have been too large for its timeout.
    max_batch: usize,
    /// Whether the last answer ended before a task that must start at once: the next request waits
    /// until a slot is free.
    waits_for_slot: bool,
    /// Running task beside which no other task may run.
    running_alone: Option<(TaskId, Token)>,
}

struct FetchResponse {
    sent: BootInstant,
    /// Request that was sent; `None` if the store was only queried for the leases that this worker
    /// has already.
    request: Option<LeaseTasks>,
    leased: Result<Leased>,
    /// Slots that are reserved for the tasks that start at once.
    reserved: Vec<Slot>,
}

type PendingFetch = Pin<Box<dyn Future<Output = FetchResponse> + Send>>;

impl TaskFetcher {
    /// Runs until it is stopped and all attempts are done or handed to the completer.
    pub(super) async fn run(self) {
        let mut state = FetchState {
            groups_to_poll: self.groups.len(),
            // Spreads the first requests of workers that start together after a downtime.
            retry_delay: Duration::from_millis(fastrand::u64(0..50)),
            max_batch: usize::MAX,
            ..FetchState::default()
        };
        let (mut pending, mut subscription): (Option<PendingFetch>, Option<QueueSubscription>) = (None, None);
        let mut handlers_cancelled = false;
        loop {
            if self.hard_stop.is_cancelled() && !handlers_cancelled {
                handlers_cancelled = true;
                self.leases.cancel_all();
            }
            self.start_handlers(&mut state);
            let stopping = self.is_stopping();
            if stopping {
                self.worker.draining.store(true, Ordering::Relaxed);
                for LeasedTask { task, .. } in state.prefetched.drain(..).chain(state.held_back.drain(..)) {
                    self.complete(task.id, task.token, AttemptResult::Return);
                }
                // The answer to the request that is in flight may still contain tasks.
                if state.running.is_empty() && pending.is_none() {
                    return;
                }
            }
            let backlogged = self.is_backlogged();
            let capacity = if stopping || backlogged { 0 } else { self.capacity(&state) };
            if capacity == 0 {
                subscription = None;
            } else if subscription.is_none() {
                subscription = self.subscribe();
                state.groups_to_poll = self.groups.len();
            }
            if state.groups_to_poll > 0 && pending.is_none() {
                // A slot that has just been assigned to an attempt with its lock is not free, although the
                // attempt still counts as waiting. Nothing is reserved now.
                let assigned = self.slots.occupied().saturating_sub(self.busy(&state));
                let capacity = capacity.saturating_sub(assigned);
                if capacity > 0 {
                    pending = Some(self.request_tasks(&mut state, capacity));
                }
            }
            let waiting = capacity > 0 && state.groups_to_poll == 0 && pending.is_none();
            let due = state.next_due.map(|due| due.after(BootInstant::now()));
            tokio::select! {
                biased;
                () = self.hard_stop.cancelled(), if !handlers_cancelled => {}
                () = self.soft_stop.cancelled(), if !stopping => {}
                Some(ended) = state.running.join_next_with_id(), if !state.running.is_empty() => {
                    self.handle_end(&mut state, ended);
                    while let Some(ended) = state.running.try_join_next_with_id() {
                        self.handle_end(&mut state, ended);
                    }
                }
                () = self.leases.lease_removed.notified(), if backlogged => {}
                // A slot is free: its attempt waits for a lock.
                () = self.slots.released.notified() => {}
                response = response(&mut pending), if pending.is_some() => {
                    pending = None;
                    self.handle_response(&mut state, response);
                }
                () = next_arrival(&mut subscription, due), if waiting => {
                    state.groups_to_poll = self.groups.len();
                    state.next_due = None;
                }
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.soft_stop.is_cancelled() || self.hard_stop.is_cancelled()
    }

    /// Whether the store is far behind with completing ended attempts.
    fn is_backlogged(&self) -> bool {
        self.leases.len() >= MAX_INCOMPLETE + self.slot_count
    }

    fn subscribe(&self) -> Option<QueueSubscription> {
        let queues: Vec<QueueName> = self.handlers.keys().cloned().collect();
        self.inner.tasks().ok().map(|tasks| tasks.subscribe_queues(&queues))
    }

    /// Returns the number of attempts that occupy a slot. Unlike the number of free slots, it does not
    /// depend on what is reserved for a request in flight.
    fn busy(&self, state: &FetchState) -> usize {
        state.running.len().saturating_sub(self.slots.waiting())
    }

    /// Returns the number of tasks that could be leased now. Completed tasks are not replaced one
    /// by one: a request for many tasks costs little more than a request for one.
    fn capacity(&self, state: &FetchState) -> usize {
        let held = self.busy(state) + state.prefetched.len();
        // A task that runs alone waits until the others are done, and no task is leased meanwhile.
        let exclusive = state.running_alone.is_some()
            || state.prefetched.back().is_some_and(|last| last.task.runs_alone());
        if exclusive || (state.waits_for_slot && held >= self.slot_count) {
            return 0;
        }
        let can_prefetch = self.inner.capabilities.tasks.lease_ahead;
        let prefetch = self.prefetch.unwrap_or_else(|| match state.avg_duration.filter(|_| can_prefetch) {
            Some(average) => {
                let each = PREFETCH_WINDOW.as_micros() / average.as_micros().max(1);
                usize::try_from(each)
                    .unwrap_or(MAX_PREFETCH)
                    .saturating_mul(self.slot_count)
                    .min(MAX_PREFETCH)
            }
            None => 0,
        });
        let capacity = (self.slot_count + prefetch).saturating_sub(held);
        let enough = state.prefetched.len() * 2 > prefetch && !state.prefetched.is_empty();
        if enough { 0 } else { capacity }
    }

    fn request_tasks(&self, state: &mut FetchState, capacity: usize) -> PendingFetch {
        if state.has_unconfirmed {
            return self.recover_unconfirmed(state.retry_delay);
        }
        let group = &self.groups[state.next_group % self.groups.len()];
        state.next_group += 1;
        let capacity = capacity.min(state.max_batch);
        // Tasks that are leased already start before those of this request.
        let free = self.slot_count.saturating_sub(self.busy(state) + state.prefetched.len()).min(capacity);
        let mut request = LeaseTasks {
            worker: self.worker.info.id,
            queues: group.queues.clone(),
            max: u32::try_from(capacity).unwrap_or(u32::MAX),
            ttl: group.ttl,
            begin: 0,
            idle: state.running.is_empty() && state.prefetched.is_empty(),
            waits_for_locks: true,
        };
        let (inner, delay, soft_stop) = (self.inner.clone(), state.retry_delay, self.soft_stop.clone());
        let slots = self.slots.clone();
        Box::pin(async move {
            let slept = soft_stop.run_until_cancelled(sleep_unless_zero(delay)).await;
            // Reserved while the request is in flight: the store counts a task as begun when it leases it,
            // and an attempt that has waited for its lock must not take the slot of that task.
            let reserved: Vec<Slot> = std::iter::from_fn(|| slots.try_take()).take(free).collect();
            request.begin = u32::try_from(reserved.len()).unwrap_or(u32::MAX);
            let sent = BootInstant::now();
            let leased = match (slept, inner.tasks()) {
                (Some(()), Ok(tasks)) => tasks.lease(&request).await,
                (None, _) => Ok(Leased { tasks: Vec::new(), next_due: None, more: false, expired: 0 }),
                (_, Err(error)) => Err(error),
            };
            FetchResponse { sent, request: Some(request), leased, reserved }
        })
    }

    /// Queries the store for the leases of this worker: a lost answer may have contained tasks. If
    /// their leases expired instead, that would count as attempts.
    fn recover_unconfirmed(&self, delay: Duration) -> PendingFetch {
        self.leases.record_removals();
        let (inner, soft_stop) = (self.inner.clone(), self.soft_stop.clone());
        let (leases, worker, groups) = (self.leases.clone(), self.worker.clone(), self.groups.clone());
        Box::pin(async move {
            soft_stop.run_until_cancelled(sleep_unless_zero(delay)).await;
            let found = unconfirmed_leases(&inner, &leases, &worker, &groups).await;
            let (sent, response) = match found {
                Ok((sent, tasks)) => (sent, Ok(Leased { tasks, next_due: None, more: false, expired: 0 })),
                Err(error) => (BootInstant::now(), Err(error)),
            };
            FetchResponse { sent, request: None, leased: response, reserved: Vec::new() }
        })
    }

    fn handle_response(&self, state: &mut FetchState, response: FetchResponse) {
        let FetchResponse { sent, request, leased, reserved } = response;
        state.reserved = reserved;
        // Only a lease from a lost answer is newer than all that the worker has held. An older one
        // may have been held and settled before: an engine that loses data can lose the settlement.
        let newest_held = request.is_none().then(|| self.leases.newest()).flatten();
        match leased {
            Err(error) => {
                self.inner.availability.record_failure("failed to lease tasks; retrying", &error);
                state.has_unconfirmed = true;
                state.max_batch = 1;
                state.backoff = (state.backoff * 2).clamp(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
                // A store that refuses requests until a certain time is not asked before that time.
                let refused_for = error.retry_after().unwrap_or_default();
                state.retry_delay = refused_for + state.backoff.mul_f64(0.75 + 0.25 * fastrand::f64());
            }
            Ok(leased) => {
                state.retry_delay = Duration::ZERO;
                // A store whose leases can be read may still grant none, as with a full disk.
                if request.is_some() {
                    self.inner.availability.record_success();
                    state.backoff = Duration::ZERO;
                    state.max_batch = state.max_batch.saturating_mul(2);
                }
                // A group that returned fewer tasks than requested has no more. A group whose
                // answer is full may have more.
                match request {
                    Some(request) if !request.is_full(&leased.tasks) && !leased.more => {
                        state.groups_to_poll = state.groups_to_poll.saturating_sub(1);
                    }
                    Some(_) => state.groups_to_poll = self.groups.len(),
                    None => (state.groups_to_poll, state.has_unconfirmed) = (self.groups.len(), false),
                }
                state.waits_for_slot = leased.more;
                if let Some((due, now)) = leased.next_due {
                    let due = BootInstant::now().plus(due.since(now));
                    state.next_due = Some(state.next_due.map_or(due, |earlier| earlier.min(due)));
                }
                for task in leased.tasks {
                    let group = self.groups.iter().find(|group| group.queues.contains(&task.queue));
                    let Some(ttl) =
                        group.map(|group| group.ttl).filter(|_| !self.leases.is_known(task.id, task.token))
                    else {
                        continue;
                    };
                    if newest_held.is_some_and(|newest| task.token <= newest) {
                        // Its next lease has a newer token.
                        self.complete(task.id, task.token, AttemptResult::Return);
                        continue;
                    }
                    let terms = self.leases.insert(&task, ttl, sent);
                    // A task that runs alone waits for the end of all attempts.
                    let is_held_back = state.running_ids.contains(&task.id) && !task.runs_alone();
                    let leased = LeasedTask { task: Arc::new(task), ttl, terms };
                    if is_held_back {
                        state.held_back.push(leased);
                    } else {
                        state.prefetched.push_back(leased);
                    }
                }
            }
        }
        self.leases.stop_recording_removals();
    }

    fn start_handlers(&self, state: &mut FetchState) {
        let stopping = self.is_stopping();
        while !stopping && state.running_alone.is_none() {
            let Some(next) = state.prefetched.front() else { break };
            if next.task.runs_alone() && !state.running.is_empty() {
                // The other attempts only wait for locks, which may take any time. They cannot stay: one
                // that got its lock would start beside this task.
                if self.busy(state) == 0 {
                    self.slots.return_waiting();
                }
                break;
            }
            let Some(slot) = state.reserved.pop().or_else(|| self.slots.try_take()) else { break };
            let Some(LeasedTask { task, ttl, terms }) = state.prefetched.pop_front() else { break };
            let (id, token, now) = (task.id, task.token, BootInstant::now());
            // A task with a lock starts once it has that lock, and reports its start then.
            let starts_later = task.lock.is_some() && !task.begun;
            let may_start = if starts_later {
                !self.leases.has_ended(id, token, now)
            } else {
                self.leases.start(id, token, now)
            };
            if !may_start {
                // The store may still have the lease: returning the task spares the wait for its
                // expiry.
                self.complete(id, token, AttemptResult::Return);
                continue;
            }
            let (leases, soft_stop) = (self.leases.clone(), self.soft_stop.clone());
            let (cooperative_cancellation, max_runtime) = (self.cooperative_cancellation, self.max_runtime);
            let channels = TaskChannels {
                worker: self.worker.clone(),
                leases,
                terms,
                lock_status: None,
                soft_stop,
                cooperative_cancellation,
                max_runtime,
            };
            let handler = self.handlers.get(&task.queue).cloned();
            let runs_alone = task.runs_alone();
            // A task that may crash its worker starts only once the store knows it, so that the
            // attempt counts.
            let reports_start = runs_alone && !task.begun && !starts_later;
            let inner = self.inner.clone();
            let handle = state.running.spawn(self.inner.background.in_process(async move {
                let lease = (&*channels.leases, &channels.terms);
                if reports_start
                    && let Some(result) = report_start(&inner, &channels.worker, (&task, ttl), lease).await
                {
                    return AttemptEnd::without_run(result);
                }
                attempt(inner, handler, task, ttl, channels, slot).await
            }));
            state.running_alone = runs_alone.then_some((id, token));
            state.running_tasks.insert(handle.id(), (id, token));
            state.running_ids.insert(id);
        }
        state.reserved.clear();
        let busy = u32::try_from(self.busy(state)).unwrap_or(u32::MAX);
        self.worker.busy.store(busy, Ordering::Relaxed);
    }

    fn handle_end(&self, state: &mut FetchState, ended: Result<(tokio::task::Id, AttemptEnd), JoinError>) {
        let (handle, ended) = ended.unwrap_or_else(|error| {
            let handle = error.id();
            let reason = Message::new(format!("the handler panicked: {}", panic_message(error)));
            (handle, AttemptEnd::without_run(AttemptResult::Retry(reason, None)))
        });
        let Some((id, token)) = state.running_tasks.remove(&handle) else { return };
        state.running_ids.remove(&id);
        for next in state.held_back.extract_if(.., |next| next.task.id == id) {
            state.prefetched.push_front(next);
        }
        state.running_alone = state.running_alone.filter(|task| *task != (id, token));
        if !ended.has_waited_for_lock {
            let average = |average: Duration| (average * 7 + ended.duration) / 8;
            state.avg_duration = Some(state.avg_duration.map_or(ended.duration, average));
        }
        self.complete(id, token, ended.result);
    }

    fn complete(&self, id: TaskId, token: Token, result: AttemptResult) {
        // Cannot fail: the completer ends only after the fetcher does.
        let _ = self.completions.send(Settle { id, token, result });
    }
}

/// Sleeps for this delay. Even the shortest sleep lasts until the timer's next tick, which is a
/// millisecond; therefore a delay of zero does not sleep at all.
async fn sleep_unless_zero(delay: Duration) {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}

async fn response(pending: &mut Option<PendingFetch>) -> FetchResponse {
    match pending {
        Some(pending) => pending.await,
        None => std::future::pending().await,
    }
}

async fn next_arrival(subscription: &mut Option<QueueSubscription>, due: Option<Duration>) {
    match subscription {
        Some(subscription) => subscription.next(due).await,
        None => std::future::pending().await,
    }
}

fn panic_message(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".to_owned() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
