//! Rules of a task in one function, [`Task::apply`], which every engine obeys and which is
//! model-checked; and the accounting of attempts: which leased tasks start at once, which are
//! prefetched, and which run alone ([`LeaseTasks::includes_next`]).
//!
//! A lease is identified by its token alone. Every operation that ends a lease on behalf of another
//! actor than its worker raises the token, so that later messages of the worker are rejected. A
//! settlement that the worker sends again after a lost response still matches its token and is
//! recognized as the same one.
//!
//! A worker prefetches short tasks beyond its free slots. The attempt of such a task counts only
//! once the worker reports that it has started the task. A worker that dies between the start and
//! that report leaves an attempt that ran but does not count. Therefore only a task that was never
//! leased before is prefetched (this happens at most once per task), and never a task with a single
//! attempt.
//!
//! A task with a lock waits for that lock under its lease, perhaps for hours. Its worker reports the
//! start once it has the lock, and starts the task only when the store has stored the report. So a
//! worker that dies while the task waits uses none of its attempts.
//! See `docs/decisions/0027-when-an-attempt-counts.md`.

use super::{
    AttemptResult, Cancel, HeartbeatResult, HeldTask, LeaseTasks, Message, NewTask, Retry, RetryPolicy,
    Settle, Settled, Task, TaskAnswer, TaskEvent, TaskEventKind, TaskOp, TaskState, TaskUpdate, When,
    WorkerId,
};
use crate::{StopRequest, Timestamp, Token, Ttl};

impl Task {
    /// Creates the record of a task that is added at `now`.
    pub fn new(new: &NewTask, now: Timestamp) -> Self {
        let run_at = match new.when {
            When::Now => now,
            When::At(time) => time,
            When::In(after) => now.plus(after),
        };
        Self {
            id: new.id,
            queue: new.queue.clone(),
            payload: new.payload.clone(),
            state: if run_at > now { TaskState::Scheduled } else { TaskState::Pending },
            priority: new.priority,
            run_at,
            ready_at: now,
            key: new.key.clone(),
            fingerprint: new.fingerprint(),
            lock: new.lock.clone(),
            attempt: 0,
            begun: false,
            expiries: 0,
            retries: new.retries,
            timeout: new.timeout,
            token: Token::default(),
            version: 1,
            worker: None,
            leased_at: None,
            lease_expires_at: None,
            progress: None,
            result: None,
            error: None,
            cancel: None,
            created_at: now,
            updated_at: now,
            finished_at: None,
            archived: false,
            runner_deadline: new.runner_ttl.map(|ttl| now.plus(ttl)),
            events: Vec::new(),
        }
    }

    /// Applies one operation at the engine's time `now`.
    pub fn apply(&mut self, op: &TaskOp, now: Timestamp) -> TaskAnswer {
        match op {
            TaskOp::Lease { worker, ttl, begun } => self.lease(*worker, *ttl, *begun, now),
            TaskOp::Heartbeat(held, ttl) => TaskAnswer::Heartbeat(self.beat(held, *ttl, now)),
            TaskOp::Settle(settle) => TaskAnswer::Settled(self.settle(settle, now)),
            TaskOp::Expire => self.expire(now),
            TaskOp::Promote => self.promote(now),
            TaskOp::Unblock => self.unblock(),
            TaskOp::Block => self.block(),
            TaskOp::RenewRunner(ttl) => self.renew_runner(*ttl, now),
            TaskOp::Cancel(cancel) => self.request_cancel(cancel, now),
            TaskOp::Retry(retry) => self.retry(retry, now),
            TaskOp::Update(change) => self.update(change, now),
        }
    }

    // --- by the worker ---

    fn lease(&mut self, worker: WorkerId, ttl: Ttl, begun: bool, now: Timestamp) -> TaskAnswer {
        if self.state != TaskState::Pending {
            return TaskAnswer::Refused(self.state);
        }
        self.state = TaskState::Running;
        self.attempt = self.attempt.saturating_add(1);
        self.begun = begun;
        self.token = self.token.next(now);
        self.worker = Some(worker);
        self.leased_at = Some(now);
        self.lease_expires_at = Some(now.plus(ttl));
        self.progress = None;
        self.changed(now)
    }

    /// Extends the lease. A late heartbeat counts as long as the lease has not been ended: no other
    /// worker has the task.
    fn beat(&mut self, held: &HeldTask, ttl: Ttl, now: Timestamp) -> HeartbeatResult {
        if self.state != TaskState::Running || self.token != held.token {
            return HeartbeatResult::Lost;
        }
        self.lease_expires_at = Some(now.plus(ttl));
        // A started task stays started: heartbeats may arrive in any order.
        self.begun |= held.begun || held.progress.is_some();
        if held.progress.is_some() {
            self.progress.clone_from(&held.progress);
        }
        HeartbeatResult::Extended(self.cancel.clone())
    }

    fn settle(&mut self, settle: &Settle, now: Timestamp) -> Settled {
        if self.token != settle.token {
            return Settled::Lost;
        }
        if self.state != TaskState::Running {
            // Only the task's worker leaves the task with the token of its lease: this settlement
            // was already applied.
            return Settled::Now(self.state);
        }
        match &settle.result {
            AttemptResult::Done(result) => {
                self.result.clone_from(result);
                self.error = None;
                self.finish(TaskState::Succeeded, now);
            }
            AttemptResult::Retry(why, pause) => {
                self.record_attempt(TaskEventKind::Failed, Some(why), now);
                let usual = self.retries.pause(self.id, self.attempt);
                let pause = pause.map_or(usual, Ttl::as_micros);
                self.expiries = 0;
                self.requeue_or_fail(now.plus_micros(pause), now);
            }
            AttemptResult::Fail(why) => {
                self.record_attempt(TaskEventKind::Failed, Some(why), now);
                // A task that was requested to stop ends as aborted unless it has succeeded: a failed one
                // could be started again.
                let requested = self.cancel.is_some();
                self.finish(if requested { TaskState::Aborted } else { TaskState::Failed }, now);
            }
            AttemptResult::Snooze(pause) => {
                self.record_attempt(TaskEventKind::Snoozed, None, now);
                self.attempt -= 1;
                self.expiries = 0;
                self.requeue_or_fail(now.plus(*pause), now);
            }
            AttemptResult::Return => {
                self.record_attempt(TaskEventKind::Returned, None, now);
                self.attempt -= 1;
                // The task keeps its place: a worker that shuts down must not move its tasks to the
                // end of the queue.
                let place = self.ready_at;
                self.requeue_or_fail(self.run_at, now);
                if self.state == TaskState::Pending {
                    self.ready_at = place;
                }
            }
            AttemptResult::Defer(pause) => {
                self.attempt -= 1;
                self.requeue_or_fail(now.plus(*pause), now);
            }
            AttemptResult::Abort(why) => {
                if why.is_some() {
                    self.error.clone_from(why);
                }
                self.finish(TaskState::Aborted, now);
            }
        }
        self.changed(now);
        Settled::Now(self.state)
    }

    // --- by time ---

    fn expire(&mut self, now: Timestamp) -> TaskAnswer {
        if self.is_abandoned(now) {
            self.error = Some(Message::new("its runner is dead: it was to run the task itself"));
            self.finish(TaskState::Failed, now);
            return self.changed(now);
        }
        if !self.has_expired(now) {
            return TaskAnswer::Refused(self.state);
        }
        let ended = self.lease_expires_at.unwrap_or(now);
        let run_at = if self.begun {
            let why = Message::new(
                "the lease expired: its worker is dead, or its heartbeats did not arrive in time",
            );
            self.record_attempt(TaskEventKind::Expired, Some(&why), now);
            self.expiries = self.expiries.saturating_add(1);
            ended.plus_micros(self.pause_after_expiry())
        } else {
            // Nothing was started, so nothing failed: the attempt does not count, and the task is
            // available at once.
            let why = Some(Message::new("the lease expired before its worker had started the task"));
            let (worker, leased_at) = (self.worker, self.leased_at);
            self.record_event(TaskEvent {
                worker,
                leased_at,
                why,
                ..self.event(TaskEventKind::Expired, now)
            });
            self.attempt -= 1;
            self.run_at
        };
        self.token = self.token.next(now);
        self.requeue_or_fail(run_at, now);
        self.changed(now)
    }

    /// Makes a due task ready. No caller made this change, so the version does not count it.
    fn promote(&mut self, now: Timestamp) -> TaskAnswer {
        if !self.is_due(now) {
            return TaskAnswer::Refused(self.state);
        }
        self.make_ready(now);
        TaskAnswer::Done
    }

    /// Makes the task the head of its lock. The version does not count this either, and the task
    /// keeps its place in the order.
    fn unblock(&mut self) -> TaskAnswer {
        if self.state != TaskState::Blocked {
            return TaskAnswer::Refused(self.state);
        }
        self.state = TaskState::Pending;
        TaskAnswer::Done
    }

    /// Blocks the task because a task before it in the order becomes the head. A running task stays the head.
    fn block(&mut self) -> TaskAnswer {
        if !self.is_ready_for_lock() {
            return TaskAnswer::Refused(self.state);
        }
        self.state = TaskState::Blocked;
        TaskAnswer::Done
    }

    // --- by the runner ---

    /// Renews the runner's deadline. Only a task that was added for a runner has one. The version
    /// does not count the renewal.
    fn renew_runner(&mut self, ttl: Ttl, now: Timestamp) -> TaskAnswer {
        if self.state.is_terminal() || self.runner_deadline.is_none() {
            return TaskAnswer::Refused(self.state);
        }
        self.runner_deadline = Some(now.plus(ttl));
        TaskAnswer::Done
    }

    // --- by operators ---

    fn request_cancel(&mut self, cancel: &Cancel, now: Timestamp) -> TaskAnswer {
        if self.state.is_terminal() {
            return TaskAnswer::Refused(self.state);
        }
        if self.cancel.is_none() {
            let Cancel { by, reason } = cancel.clone();
            let why = reason.as_ref().map(|reason| Message::new(reason.as_str()));
            self.record_event(TaskEvent {
                by: Some(by.clone()),
                why,
                ..self.event(TaskEventKind::CancelRequested, now)
            });
            self.cancel = Some(StopRequest { by, reason, at: now });
            self.changed(now);
        }
        // The worker receives the request with its next heartbeat; a running task cannot be
        // reported as stopped.
        if self.state != TaskState::Running {
            self.finish(TaskState::Aborted, now);
        }
        TaskAnswer::Done
    }

    fn retry(&mut self, retry: &Retry, now: Timestamp) -> TaskAnswer {
        if !matches!(self.state, TaskState::Scheduled | TaskState::Failed | TaskState::Aborted) {
            return TaskAnswer::Refused(self.state);
        }
        self.record_event(TaskEvent {
            by: Some(retry.by.clone()),
            ..self.event(TaskEventKind::Retried, now)
        });
        if self.state.is_terminal() {
            self.attempt = 0;
            self.token = self.token.next(now);
            self.cancel = None;
            self.finished_at = None;
            self.archived = false;
        }
        self.run_at = now;
        self.make_ready(now);
        self.changed(now)
    }

    fn update(&mut self, change: &TaskUpdate, now: Timestamp) -> TaskAnswer {
        if change.expected != self.version {
            return TaskAnswer::VersionConflict(self.version);
        }
        let at_rest = !self.state.is_terminal() && self.state != TaskState::Running;
        // A waiting task must have at least one attempt left.
        let least = self.attempt + u32::from(at_rest);
        let fits = (at_rest || (change.payload.is_none() && change.run_at.is_none()))
            && (self.state.is_terminal() || change.archived.is_none())
            && change.retries.is_none_or(|retries| retries.attempts >= least)
            && (!self.state.is_terminal() || (change.priority.is_none() && change.retries.is_none()));
        if !fits {
            return TaskAnswer::Refused(self.state);
        }
        let TaskUpdate { by, payload, priority, run_at, retries, archived, .. } = change.clone();
        self.payload = payload.unwrap_or_else(|| self.payload.clone());
        self.priority = priority.unwrap_or(self.priority);
        self.retries = retries.unwrap_or(self.retries);
        self.archived = archived.unwrap_or(self.archived);
        if let Some(run_at) = run_at {
            self.run_at = run_at;
            if run_at > now {
                self.state = TaskState::Scheduled;
            } else if self.state == TaskState::Scheduled {
                self.make_ready(now);
            }
        }
        self.record_event(TaskEvent { by, ..self.event(TaskEventKind::Updated, now) });
        self.changed(now)
    }

    // --- shared helpers ---

    /// Handles the end of an attempt that did not finish the task: aborts it, fails it, or queues it again.
    fn requeue_or_fail(&mut self, run_at: Timestamp, now: Timestamp) {
        self.begun = false;
        if self.cancel.is_some() {
            return self.finish(TaskState::Aborted, now);
        }
        if self.attempt >= self.retries.attempts {
            return self.finish(TaskState::Failed, now);
        }
        self.lease_expires_at = None;
        // A runner's deadline that passed while the task ran ends now: an engine looks for deadlines from the
        // time of its last check on.
        self.runner_deadline = self.runner_deadline.map(|deadline| deadline.max(now));
        self.run_at = run_at;
        if run_at > now {
            self.state = TaskState::Scheduled;
        } else {
            self.make_ready(now);
        }
    }

    fn make_ready(&mut self, now: Timestamp) {
        self.state = TaskState::Pending;
        self.ready_at = now;
    }

    fn finish(&mut self, state: TaskState, now: Timestamp) {
        self.state = state;
        self.begun = false;
        self.lease_expires_at = None;
        self.runner_deadline = None;
        self.finished_at = Some(now);
    }

    fn changed(&mut self, now: Timestamp) -> TaskAnswer {
        self.version = self.version.saturating_add(1);
        self.updated_at = now;
        TaskAnswer::Done
    }

    fn record_attempt(&mut self, kind: TaskEventKind, why: Option<&Message>, now: Timestamp) {
        if why.is_some() {
            self.error = why.cloned();
        }
        let (worker, leased_at) = (self.worker, self.leased_at);
        self.record_event(TaskEvent { worker, leased_at, why: why.cloned(), ..self.event(kind, now) });
    }

    fn record_event(&mut self, event: TaskEvent) {
        if self.events.len() == Self::MAX_EVENTS {
            self.events.remove(0);
        }
        self.events.push(event);
    }

    fn event(&self, kind: TaskEventKind, at: Timestamp) -> TaskEvent {
        let (attempt, token) = (self.attempt, self.token);
        TaskEvent { at, kind, attempt, token, worker: None, leased_at: None, by: None, why: None }
    }
}

impl Task {
    /// Number of consecutive expired leases after which a task runs alone.
    pub const ALONE_AFTER: u32 = 2;

    /// Maximum pause after the first expired lease, in microseconds; a task with a lease of 5 s is
    /// available again after 6 s.
    const FIRST_PAUSE: u64 = 500_000;

    /// Returns whether a worker must not run other tasks beside this one. The task may have crashed
    /// its workers, so it is isolated to keep it from failing other tasks: after
    /// [`Task::ALONE_AFTER`] consecutive expired leases, or after one if the next attempt is the last.
    pub fn runs_alone(&self) -> bool {
        let used = self.attempt - u32::from(self.state == TaskState::Running);
        self.expiries >= Self::ALONE_AFTER || (self.expiries > 0 && used + 1 >= self.retries.attempts)
    }

    /// Returns whether a worker may lease this task before it can start it.
    pub fn may_be_prefetched(&self) -> bool {
        self.token == Token::default() && self.retries.attempts > 1
    }

    /// Returns the pause after a started attempt whose lease expired, in microseconds. The first
    /// pause is short because the usual cause is a worker restart. The pause differs per task, so
    /// that the tasks of one worker do not return at the same time.
    fn pause_after_expiry(&self) -> u64 {
        if self.expiries > 1 {
            return self.retries.pause(self.id, self.attempt);
        }
        let longest = self.retries.initial_delay.as_micros().min(Self::FIRST_PAUSE);
        RetryPolicy::jitter(self.id, self.attempt, longest)
    }
}

impl LeaseTasks {
    /// Returns whether the response, which has `given` tasks so far, includes the next queued task
    /// and, if so, whether the task counts as begun. `None` ends the response. The response also
    /// ends after a task that runs alone.
    pub fn includes_next(&self, task: &Task, given: usize) -> Option<bool> {
        let starts_later = self.waits_for_locks && task.lock.is_some();
        if task.runs_alone() {
            return (given == 0).then_some(self.idle && !starts_later);
        }
        let begins = given < self.begin as usize;
        (begins || task.may_be_prefetched()).then_some(begins && !starts_later)
    }
}
