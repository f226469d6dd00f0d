//! History of a task, derived from its record. No engine stores a log of the events of tasks: the
//! record has the times of the task, and the attempts and interventions that did not finish it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Message, Task, TaskEvent, TaskEventKind, TaskState, WorkerId};
use crate::{Holder, Timestamp, Token};

/// Event in the history of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskHistoryEvent {
    /// Time of the event.
    pub at: Timestamp,
    /// Kind of the event.
    pub kind: TaskHistoryKind,
    /// Attempt that the event belongs to; 0 before the first attempt.
    pub attempt: u32,
    /// Token of the task at the event.
    pub token: Token,
    /// Worker of the attempt.
    pub worker: Option<WorkerId>,
    /// Start of the attempt that this event ended.
    pub started_at: Option<Timestamp>,
    /// Caller that caused the event, if one did.
    pub by: Option<Holder>,
    /// Error or reason.
    pub reason: Option<Message>,
}

/// Kind of an event in the history of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TaskHistoryKind {
    /// The task was added.
    Added,
    /// A worker leased the task, to run it at once or as soon as the worker has a free slot.
    Started,
    /// An attempt failed. If the task is not retried, the event `failed` or `aborted` follows.
    AttemptFailed,
    /// A lease expired: its worker was dead or its heartbeat was late.
    Expired,
    /// The worker postponed the task.
    Snoozed,
    /// The worker returned the task unfinished.
    Returned,
    /// A caller requested the cancellation of the task.
    CancelRequested,
    /// A caller requested a retry of the task.
    Retried,
    /// A caller changed the task.
    Updated,
    /// The task finished successfully.
    Succeeded,
    /// The task finished without success; it is not retried.
    Failed,
    /// The task was stopped because its cancellation was requested, or by its worker.
    Aborted,
}

impl fmt::Display for TaskHistoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl TaskHistoryKind {
    /// Returns whether an event of this kind finishes the task.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Aborted)
    }

    const fn of_event(kind: TaskEventKind) -> Self {
        match kind {
            TaskEventKind::Failed => Self::AttemptFailed,
            TaskEventKind::Expired => Self::Expired,
            TaskEventKind::Snoozed => Self::Snoozed,
            TaskEventKind::Returned => Self::Returned,
            TaskEventKind::CancelRequested => Self::CancelRequested,
            TaskEventKind::Retried => Self::Retried,
            TaskEventKind::Updated => Self::Updated,
        }
    }

    const fn of_state(state: TaskState) -> Option<Self> {
        match state {
            TaskState::Succeeded => Some(Self::Succeeded),
            TaskState::Failed => Some(Self::Failed),
            TaskState::Aborted => Some(Self::Aborted),
            TaskState::Scheduled | TaskState::Blocked | TaskState::Pending | TaskState::Running => None,
        }
    }
}

/// Identity of an event in the history of one task: the same event has the same key in every later
/// record of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskHistoryKey {
    kind: TaskHistoryKind,
    token: Token,
    /// Time of the event, unless the kind and the token identify it.
    at: Option<Timestamp>,
}

impl TaskHistoryEvent {
    /// Returns the identity of the event among the events of its task.
    pub fn key(&self) -> TaskHistoryKey {
        use TaskHistoryKind::{Aborted, Added, Failed, Started, Succeeded};
        // Every lease has its own token, and so has every end: a retry of a finished task raises it.
        let by_token = matches!(self.kind, Added | Started | Succeeded | Failed | Aborted);
        TaskHistoryKey { kind: self.kind, token: self.token, at: (!by_token).then_some(self.at) }
    }
}

impl Task {
    /// Returns the events of the task that its record knows, oldest first.
    ///
    /// The record keeps the newest [`Task::MAX_EVENTS`] attempts and interventions that did not
    /// finish the task. It does not know a lease that was deferred, and a retry of a finished task
    /// removes how that task had ended.
    pub fn history(&self) -> Vec<TaskHistoryEvent> {
        let mut all = vec![TaskHistoryEvent {
            at: self.created_at,
            kind: TaskHistoryKind::Added,
            attempt: 0,
            token: Token::default(),
            worker: None,
            started_at: None,
            by: None,
            reason: None,
        }];
        for event in &self.events {
            if let Some(start) = event.leased_at {
                all.push(started(start, event.attempt, event.token, event.worker));
            }
            all.push(stored(event));
        }
        let start = self.start_without_event();
        if let Some(start) = start {
            all.push(started(start, self.attempt, self.token, self.worker));
        }
        all.extend(self.end(start));
        // Stable: events of the same time keep their order.
        all.sort_by_key(|event| event.at);
        all
    }

    /// Returns the events of the task that are not among the known ones, oldest first. `known` are the
    /// keys of an earlier record of the same task.
    pub fn history_after(&self, known: &[TaskHistoryKey]) -> Vec<TaskHistoryEvent> {
        let mut known = known.to_vec();
        let mut new = self.history();
        // Two changes within the resolution of the engine's clock have the same key: each is counted.
        new.retain(|event| match known.iter().position(|key| *key == event.key()) {
            Some(at) => {
                known.swap_remove(at);
                false
            }
            None => true,
        });
        new
    }

    /// Returns the start of the lease that no stored event mentions: that of a running task, or of an
    /// attempt that finished the task.
    fn start_without_event(&self) -> Option<Timestamp> {
        let start = self.leased_at?;
        match (self.state, self.finished_at) {
            (TaskState::Running, _) => return Some(start),
            (state, Some(end)) if state.is_terminal() && start <= end => {}
            _ => return None,
        }
        let is_earlier = |event: &TaskEvent| {
            event.leased_at == Some(start) || (event.kind == TaskEventKind::Retried && event.at > start)
        };
        (!self.events.iter().any(is_earlier)).then_some(start)
    }

    /// Returns the event that finished the task. `start` is the start of the attempt that finished it
    /// without an event of its own.
    fn end(&self, start: Option<Timestamp>) -> Option<TaskHistoryEvent> {
        let (kind, at) = (TaskHistoryKind::of_state(self.state)?, self.finished_at?);
        let last = self.events.iter().rev().find(|event| event.leased_at.is_some() && event.at == at);
        let started_at = start.or_else(|| last.and_then(|event| event.leased_at));
        let (by, reason) = match (kind, &self.cancel) {
            (TaskHistoryKind::Aborted, Some(cancel)) => {
                let reason = cancel.reason.as_ref().map(|reason| Message::new(reason.as_str()));
                (Some(cancel.by.clone()), reason)
            }
            (TaskHistoryKind::Succeeded, _) => (None, None),
            _ => (None, self.error.clone()),
        };
        let worker = started_at.and(self.worker);
        Some(TaskHistoryEvent {
            at,
            kind,
            attempt: self.attempt,
            token: self.token,
            worker,
            started_at,
            by,
            reason,
        })
    }
}

fn started(at: Timestamp, attempt: u32, token: Token, worker: Option<WorkerId>) -> TaskHistoryEvent {
    let kind = TaskHistoryKind::Started;
    TaskHistoryEvent { at, kind, attempt, token, worker, started_at: None, by: None, reason: None }
}

fn stored(event: &TaskEvent) -> TaskHistoryEvent {
    TaskHistoryEvent {
        at: event.at,
        kind: TaskHistoryKind::of_event(event.kind),
        attempt: event.attempt,
        token: event.token,
        worker: event.worker,
        started_at: event.leased_at,
        by: event.by.clone(),
        reason: event.why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        AttemptResult, Cancel, NewTask, Payload, QueueName, Reason, Retry, Settle, TaskId, TaskOp,
        TaskUpdate, Ttl,
    };

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    /// Task with the keys of the events that were reported, as a follower keeps them.
    struct Followed {
        task: Task,
        known: Vec<TaskHistoryKey>,
    }

    impl Followed {
        fn new(attempts: u32) -> Self {
            let (id, queue) = (TaskId::from_uuid(Uuid::from_u128(1)), QueueName::new("mail").unwrap());
            let mut new = NewTask::new(id, queue, Payload::default());
            new.retries.attempts = attempts;
            Self { task: Task::new(&new, at(0)), known: Vec::new() }
        }

        fn lease(&mut self, second: u64) {
            self.task.apply(&TaskOp::Promote, at(second));
            let worker = WorkerId::from_uuid(Uuid::from_u128(7));
            self.task.apply(&TaskOp::Lease { worker, ttl: Ttl::from_secs(30), begun: true }, at(second));
            assert_eq!(self.task.state, TaskState::Running);
        }

        fn settle(&mut self, result: AttemptResult, second: u64) {
            let settle = Settle { id: self.task.id, token: self.task.token, result };
            self.task.apply(&TaskOp::Settle(settle), at(second));
        }

        fn cancel(&mut self, second: u64) {
            let (by, reason) = (Holder::new("ada").unwrap(), Some(Reason::new("wrong file").unwrap()));
            self.task.apply(&TaskOp::Cancel(Cancel { by, reason }), at(second));
        }

        fn retry(&mut self, second: u64) {
            self.task.apply(&TaskOp::Retry(Retry { by: Holder::new("ada").unwrap() }), at(second));
        }

        /// Returns what is new, as `SECOND KIND ATTEMPT`.
        fn new_events(&mut self) -> Vec<String> {
            let new = self.task.history_after(&self.known);
            self.known = self.task.history().iter().map(TaskHistoryEvent::key).collect();
            new.iter().map(text).collect()
        }

        fn all(&self) -> Vec<String> {
            self.task.history().iter().map(text).collect()
        }
    }

    fn text(event: &TaskHistoryEvent) -> String {
        format!("{} {} {}", event.at.since(at(0)).as_secs(), event.kind, event.attempt)
    }

    fn failed(why: &str) -> AttemptResult {
        AttemptResult::Retry(Message::new(why), Some(Ttl::from_secs(5)))
    }

    #[test]
    fn every_event_is_reported_once_at_every_pace() {
        let steps: [fn(&mut Followed); 8] = [
            |task| task.lease(1),
            |task| task.settle(failed("no route"), 2),
            |task| task.lease(10),
            |task| task.settle(AttemptResult::Snooze(Ttl::from_secs(1)), 11),
            |task| task.lease(20),
            |task| task.settle(AttemptResult::Return, 21),
            |task| task.lease(30),
            |task| task.settle(AttemptResult::Done(None), 32),
        ];
        let expected = [
            "0 added 0",
            "1 started 1",
            "2 attempt_failed 1",
            "10 started 2",
            "11 snoozed 2",
            "20 started 2",
            "21 returned 2",
            "30 started 2",
            "32 succeeded 2",
        ];
        // Each bit of the pace is whether the follower reads the record after that step.
        for pace in 0..1 << steps.len() {
            let (mut task, mut seen) = (Followed::new(5), Vec::new());
            for (number, step) in steps.iter().enumerate() {
                step(&mut task);
                if pace & 1 << number != 0 {
                    seen.extend(task.new_events());
                }
            }
            seen.extend(task.new_events());
            assert_eq!(seen, expected, "pace {pace:b}");
            assert_eq!(task.all(), expected);
            assert_eq!(task.new_events(), [""; 0]);
        }
    }

    #[test]
    fn a_task_out_of_attempts_has_failed_after_its_last_attempt() {
        let mut task = Followed::new(1);
        task.lease(1);
        task.settle(failed("no route"), 4);
        assert_eq!(task.new_events(), ["0 added 0", "1 started 1", "4 attempt_failed 1", "4 failed 1"]);
        let end = task.task.history().pop().unwrap();
        assert_eq!((end.reason.unwrap().as_str(), end.started_at), ("no route", Some(at(1))));
        assert!(end.kind.is_terminal());
        // The retry removes the end; what was reported is not reported again.
        task.retry(6);
        assert_eq!(task.new_events(), ["6 retried 1"]);
        assert_eq!(task.all(), ["0 added 0", "1 started 1", "4 attempt_failed 1", "6 retried 1"]);
        task.lease(7);
        task.settle(failed("no route"), 8);
        assert_eq!(task.new_events(), ["7 started 1", "8 attempt_failed 1", "8 failed 1"]);
    }

    #[test]
    fn an_expired_lease_and_a_lost_worker_are_events() {
        let mut task = Followed::new(1);
        task.lease(1);
        assert_eq!(task.new_events(), ["0 added 0", "1 started 1"]);
        task.task.apply(&TaskOp::Expire, at(40));
        assert_eq!(task.new_events(), ["40 expired 1", "40 failed 1"]);
    }

    #[test]
    fn a_cancelled_task_was_never_started_unless_it_ran() {
        let mut waiting = Followed::new(5);
        waiting.cancel(3);
        assert_eq!(waiting.new_events(), ["0 added 0", "3 cancel_requested 0", "3 aborted 0"]);
        let end = waiting.task.history().pop().unwrap();
        assert_eq!(end.by.unwrap().as_str(), "ada");
        assert_eq!((end.reason.unwrap().as_str(), end.started_at), ("wrong file", None));
        let mut running = Followed::new(5);
        running.lease(1);
        running.cancel(3);
        running.settle(AttemptResult::Abort(None), 5);
        assert_eq!(running.new_events(), ["0 added 0", "1 started 1", "3 cancel_requested 1", "5 aborted 1"]);
        // The lease before the retry is not one of the new end.
        running.retry(6);
        running.cancel(7);
        assert_eq!(running.new_events(), ["6 retried 1", "7 cancel_requested 0", "7 aborted 0"]);
    }

    #[test]
    fn changes_at_the_same_time_are_counted() {
        let mut task = Followed::new(5);
        let update = |task: &mut Followed| {
            let change = TaskUpdate { expected: task.task.version, ..TaskUpdate::default() };
            task.task.apply(&TaskOp::Update(change), at(1));
        };
        update(&mut task);
        assert_eq!(task.new_events(), ["0 added 0", "1 updated 0"]);
        update(&mut task);
        update(&mut task);
        assert_eq!(task.new_events(), ["1 updated 0", "1 updated 0"]);
    }

    #[test]
    fn events_that_the_record_has_dropped_are_not_reported_again() {
        let mut task = Followed::new(1000);
        let mut seen = 0;
        for round in 0..Task::MAX_EVENTS as u64 + 20 {
            task.lease(10 * round);
            task.settle(failed("no"), 10 * round + 1);
            seen += task.new_events().len();
        }
        assert_eq!(seen, 1 + 2 * (Task::MAX_EVENTS + 20));
    }

    #[test]
    fn a_deferred_lease_is_not_part_of_the_history() {
        let mut task = Followed::new(5);
        task.lease(1);
        task.settle(AttemptResult::Defer(Ttl::from_secs(1)), 2);
        assert_eq!(task.all(), ["0 added 0"]);
    }
}
