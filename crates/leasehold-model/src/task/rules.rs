//! The rules of one task. One function, [`Task::apply`]: every engine obeys it, and it is model-checked.
//!
//! A lease is known by its token alone. Whoever ends it other than its worker raises the token, so that whatever the
//! worker still says is refused, and a settlement that is sent again after a lost answer is known as the same one.

use super::{
    Beat, Cancel, Change, HeldTask, NewTask, Note, Retry, Settle, Settled, Task, TaskAnswer, TaskEvent,
    TaskEventKind, TaskOp, TaskState, Verdict, When, WorkerId,
};
use crate::{Asked, Timestamp, Token, Ttl};

impl Task {
    /// A task that is added at `now`.
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
            wanted_until: new.wanted.map(|ttl| now.plus(ttl)),
            events: Vec::new(),
        }
    }

    /// Applies one operation at the engine's time `now`.
    pub fn apply(&mut self, op: &TaskOp, now: Timestamp) -> TaskAnswer {
        match op {
            TaskOp::Lease { worker, ttl, begun } => self.lease(*worker, *ttl, *begun, now),
            TaskOp::Beat(held, ttl) => TaskAnswer::Beat(self.beat(held, *ttl, now)),
            TaskOp::Settle(settle) => TaskAnswer::Settled(self.settle(settle, now)),
            TaskOp::Expire => self.expire(now),
            TaskOp::Promote => self.promote(now),
            TaskOp::Unblock => self.unblock(),
            TaskOp::Block => self.block(),
            TaskOp::Want(ttl) => self.want(*ttl, now),
            TaskOp::Cancel(cancel) => self.ask_to_stop(cancel, now),
            TaskOp::Retry(retry) => self.retry(retry, now),
            TaskOp::Update(change) => self.update(change, now),
        }
    }

    // --- by its worker --------------------------------------------------------------------------------------------

    fn lease(&mut self, worker: WorkerId, ttl: Ttl, begun: bool, now: Timestamp) -> TaskAnswer {
        if self.state != TaskState::Pending {
            return TaskAnswer::Refused(self.state);
        }
        self.state = TaskState::Running;
        self.attempt += 1;
        self.begun = begun;
        self.token = self.token.next(now);
        self.worker = Some(worker);
        self.leased_at = Some(now);
        self.lease_expires_at = Some(now.plus(ttl));
        self.progress = None;
        self.changed(now)
    }

    /// A sign of life counts as long as nobody has ended the lease, even if it comes late: nobody else has the task.
    fn beat(&mut self, held: &HeldTask, ttl: Ttl, now: Timestamp) -> Beat {
        if self.state != TaskState::Running || self.token != held.token {
            return Beat::Lost;
        }
        self.lease_expires_at = Some(now.plus(ttl));
        // A task that was started stays so: heartbeats may arrive in any order.
        self.begun |= held.begun || held.progress.is_some();
        if held.progress.is_some() {
            self.progress.clone_from(&held.progress);
        }
        Beat::Kept(self.cancel.clone())
    }

    fn settle(&mut self, settle: &Settle, now: Timestamp) -> Settled {
        if self.token != settle.token {
            return Settled::Lost;
        }
        if self.state != TaskState::Running {
            // Only its worker leaves a task with the token of its lease: this settlement was made already.
            return Settled::Now(self.state);
        }
        match &settle.verdict {
            Verdict::Done(result) => {
                self.result.clone_from(result);
                self.error = None;
                self.finish(TaskState::Succeeded, now);
            }
            Verdict::Retry(why, pause) => {
                self.tell_attempt(TaskEventKind::Failed, Some(why), now);
                let usual = self.retries.pause(self.id, self.attempt);
                let pause = pause.map_or(usual, Ttl::as_micros);
                self.expiries = 0;
                self.try_again(now.plus_micros(pause), now);
            }
            Verdict::Fail(why) => {
                self.tell_attempt(TaskEventKind::Failed, Some(why), now);
                self.finish(TaskState::Failed, now);
            }
            Verdict::Snooze(pause) => {
                self.tell_attempt(TaskEventKind::Snoozed, None, now);
                self.attempt -= 1;
                self.expiries = 0;
                self.try_again(now.plus(*pause), now);
            }
            Verdict::Return => {
                self.tell_attempt(TaskEventKind::Returned, None, now);
                self.attempt -= 1;
                // It keeps its place: a worker that ends must not send its tasks to the end of the queue.
                let place = self.ready_at;
                self.try_again(self.run_at, now);
                if self.state == TaskState::Pending {
                    self.ready_at = place;
                }
            }
            Verdict::Defer(pause) => {
                self.attempt -= 1;
                self.try_again(now.plus(*pause), now);
            }
            Verdict::Abort(why) => {
                if why.is_some() {
                    self.error.clone_from(why);
                }
                self.finish(TaskState::Aborted, now);
            }
        }
        self.changed(now);
        Settled::Now(self.state)
    }

    // --- by time --------------------------------------------------------------------------------------------------

    fn expire(&mut self, now: Timestamp) -> TaskAnswer {
        if self.is_abandoned(now) {
            self.error = Some(Note::new("its runner is gone: it was to run the task itself"));
            self.finish(TaskState::Failed, now);
            return self.changed(now);
        }
        if !self.has_expired(now) {
            return TaskAnswer::Refused(self.state);
        }
        let ended = self.lease_expires_at.unwrap_or(now);
        let run_at = if self.begun {
            let why =
                Note::new("the lease ran out: its worker is gone, or could not say in time that it is there");
            self.tell_attempt(TaskEventKind::Expired, Some(&why), now);
            self.expiries += 1;
            ended.plus_micros(self.pause_after_expiry())
        } else {
            // Nothing was done, so nothing failed: the attempt does not count, and the task is available at once.
            let why = Some(Note::new("the lease ran out before its worker had started the task"));
            let (worker, leased_at) = (self.worker, self.leased_at);
            self.tell(TaskEvent { worker, leased_at, why, ..self.event(TaskEventKind::Expired, now) });
            self.attempt -= 1;
            self.run_at
        };
        self.token = self.token.next(now);
        self.try_again(run_at, now);
        self.changed(now)
    }

    /// The time of a task comes by itself: that is no change that anybody made, and counts as none.
    fn promote(&mut self, now: Timestamp) -> TaskAnswer {
        if !self.is_due(now) {
            return TaskAnswer::Refused(self.state);
        }
        self.make_ready(now);
        TaskAnswer::Done
    }

    /// A task becomes the head of its lock by itself, too. It keeps its place in the order.
    fn unblock(&mut self) -> TaskAnswer {
        if self.state != TaskState::Blocked {
            return TaskAnswer::Refused(self.state);
        }
        self.state = TaskState::Pending;
        TaskAnswer::Done
    }

    /// A task that comes before it in the order becomes the head. One that runs stays the head.
    fn block(&mut self) -> TaskAnswer {
        if self.state != TaskState::Pending || self.lock.is_none() {
            return TaskAnswer::Refused(self.state);
        }
        self.state = TaskState::Blocked;
        TaskAnswer::Done
    }

    // --- by its runner --------------------------------------------------------------------------------------------

    /// Only a task that was added for a runner has a deadline to renew. Renewing it counts as no change.
    fn want(&mut self, ttl: Ttl, now: Timestamp) -> TaskAnswer {
        if self.state.is_terminal() || self.wanted_until.is_none() {
            return TaskAnswer::Refused(self.state);
        }
        self.wanted_until = Some(now.plus(ttl));
        TaskAnswer::Done
    }

    // --- by people ------------------------------------------------------------------------------------------------

    fn ask_to_stop(&mut self, cancel: &Cancel, now: Timestamp) -> TaskAnswer {
        if self.state.is_terminal() {
            return TaskAnswer::Refused(self.state);
        }
        if self.cancel.is_none() {
            let Cancel { by, reason } = cancel.clone();
            let why = reason.as_ref().map(|reason| Note::new(reason.as_str()));
            self.tell(TaskEvent { by: Some(by.clone()), why, ..self.event(TaskEventKind::Asked, now) });
            self.cancel = Some(Asked { by, reason, at: now });
            self.changed(now);
        }
        // Its worker learns it with its next sign of life; while it runs, it cannot be said to be stopped.
        if self.state != TaskState::Running {
            self.finish(TaskState::Aborted, now);
        }
        TaskAnswer::Done
    }

    fn retry(&mut self, retry: &Retry, now: Timestamp) -> TaskAnswer {
        if !matches!(self.state, TaskState::Scheduled | TaskState::Failed | TaskState::Aborted) {
            return TaskAnswer::Refused(self.state);
        }
        self.tell(TaskEvent { by: Some(retry.by.clone()), ..self.event(TaskEventKind::Retried, now) });
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

    fn update(&mut self, change: &Change, now: Timestamp) -> TaskAnswer {
        if change.expected != self.version {
            return TaskAnswer::VersionConflict(self.version);
        }
        let at_rest = !self.state.is_terminal() && self.state != TaskState::Running;
        // Whoever waits must have an attempt left to wait for.
        let least = self.attempt + u32::from(at_rest);
        let fits = (at_rest || (change.payload.is_none() && change.run_at.is_none()))
            && (self.state.is_terminal() || change.archived.is_none())
            && change.retries.is_none_or(|retries| retries.attempts >= least)
            && (!self.state.is_terminal() || (change.priority.is_none() && change.retries.is_none()));
        if !fits {
            return TaskAnswer::Refused(self.state);
        }
        let Change { by, payload, priority, run_at, retries, archived, .. } = change.clone();
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
        self.tell(TaskEvent { by, ..self.event(TaskEventKind::Updated, now) });
        self.changed(now)
    }

    // --- what they share ------------------------------------------------------------------------------------------

    /// After an attempt that did not end it: stopped, given up, or in line again.
    fn try_again(&mut self, run_at: Timestamp, now: Timestamp) {
        self.begun = false;
        if self.cancel.is_some() {
            return self.finish(TaskState::Aborted, now);
        }
        if self.attempt >= self.retries.attempts {
            return self.finish(TaskState::Failed, now);
        }
        self.lease_expires_at = None;
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
        self.wanted_until = None;
        self.finished_at = Some(now);
    }

    fn changed(&mut self, now: Timestamp) -> TaskAnswer {
        self.version += 1;
        self.updated_at = now;
        TaskAnswer::Done
    }

    /// Writes down how an attempt went that did not succeed.
    fn tell_attempt(&mut self, kind: TaskEventKind, why: Option<&Note>, now: Timestamp) {
        if why.is_some() {
            self.error = why.cloned();
        }
        let (worker, leased_at) = (self.worker, self.leased_at);
        self.tell(TaskEvent { worker, leased_at, why: why.cloned(), ..self.event(kind, now) });
    }

    fn tell(&mut self, event: TaskEvent) {
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
