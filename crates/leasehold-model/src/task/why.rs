//! Explanation of a task: why it does not run now.

use super::{
    ExecutionId, Message, QueueStatus, Task, TaskEventKind, TaskId, TaskState, WorkerId, WorkerStatus,
};
use crate::{Holder, LockName, LockRecord, QueueName, Reason, StopRequest, Timestamp};

/// State of the store around a task, for [`Task::why`].
#[derive(Debug, Clone, Copy)]
pub struct TaskSurroundings<'a> {
    /// Time of the store.
    pub now: Timestamp,
    /// Queue of the task.
    pub queue: Option<&'a QueueStatus>,
    /// All workers; `None` if they are not known.
    pub workers: Option<&'a [WorkerStatus]>,
    /// Lock of the task.
    pub lock: Option<&'a LockRecord>,
    /// Task of the same queue with the same lock that runs or is next to run.
    pub head: Option<&'a Task>,
}

/// Reason why a task does not run now, or a statement about its run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskReason {
    /// The task has finished.
    Finished {
        /// Final state.
        state: TaskState,
        /// Time of its end.
        at: Option<Timestamp>,
    },
    /// All attempts failed.
    OutOfAttempts {
        /// Number of attempts.
        attempts: u32,
        /// Error of the last one.
        error: Option<Message>,
    },
    /// A worker runs the task.
    Running {
        /// Worker that runs it.
        worker: Option<WorkerId>,
        /// Host of the worker, if the worker is listed.
        host: Option<String>,
        /// Start of the lease.
        since: Option<Timestamp>,
        /// End of the lease, unless the worker sends a heartbeat.
        until: Option<Timestamp>,
    },
    /// A worker has leased the task and has not started it.
    NotStarted {
        /// Worker that leased it.
        worker: Option<WorkerId>,
    },
    /// The lease of the task has expired: the next worker that requests tasks gets it.
    LeaseExpired {
        /// Worker that leased it.
        worker: Option<WorkerId>,
        /// End of the lease.
        at: Option<Timestamp>,
    },
    /// Cancellation was requested; the worker has not stopped yet.
    CancelRequested(StopRequest),
    /// The task is not due yet.
    NotDue {
        /// Time at which it is due.
        at: Timestamp,
    },
    /// The last attempt did not finish the task, and the next one is not due yet.
    WaitsForRetry {
        /// Time at which the next attempt is due.
        at: Timestamp,
        /// Number of attempts so far.
        attempt: u32,
        /// Maximum number of attempts.
        of: u32,
        /// Error of the last one.
        error: Option<Message>,
    },
    /// The queue is paused.
    QueuePaused {
        /// Name of the queue.
        queue: QueueName,
        /// Holder that paused it.
        by: Holder,
        /// Time since which it is paused.
        since: Timestamp,
        /// Reason of the pause.
        reason: Option<Reason>,
    },
    /// Another task of the queue with the same lock runs, or is next to run.
    BehindTask {
        /// The other task.
        task: TaskId,
        /// State of the other task.
        state: TaskState,
        /// The lock.
        lock: LockName,
    },
    /// The lock of the task is held.
    BehindLock {
        /// The lock.
        lock: LockName,
        /// Holder of the lock; `None` if the reader of the reason may not know it.
        holder: Option<Holder>,
        /// End of its lease, unless it is renewed.
        until: Timestamp,
    },
    /// The process that added the task waits to run it itself.
    WaitsForRunner {
        /// Time after which that process is considered dead.
        until: Timestamp,
    },
    /// The process that added the task to run it itself is dead: the next recovery ends the task.
    RunnerIsDead,
    /// No live worker leases tasks from the queue.
    NoWorker {
        /// Name of the queue.
        queue: QueueName,
        /// Number of workers of the queue that have missed their heartbeats, or are about to stop.
        dead: usize,
    },
    /// All workers of the queue run as many tasks as they can.
    WorkersBusy {
        /// Number of live workers.
        workers: usize,
        /// Number of tasks that they run at most.
        slots: u64,
    },
    /// Nothing prevents the task from running: a worker leases it next, after the tasks before it.
    Ready {
        /// Number of ready tasks in its queue, with this one.
        pending: u64,
    },
}

impl Task {
    /// Returns why the task does not run now: every reason, the most important first. Never empty.
    pub fn why(&self, around: &TaskSurroundings<'_>) -> Vec<TaskReason> {
        match self.state {
            TaskState::Succeeded | TaskState::Failed | TaskState::Aborted => self.why_finished(),
            TaskState::Running => self.why_running(around),
            TaskState::Scheduled | TaskState::Blocked | TaskState::Pending => self.why_waiting(around),
        }
    }

    fn why_finished(&self) -> Vec<TaskReason> {
        let mut reasons = vec![TaskReason::Finished { state: self.state, at: self.finished_at }];
        if self.state == TaskState::Failed && self.attempt >= self.retries.attempts {
            let (attempts, error) = (self.attempt, self.error.clone());
            reasons.push(TaskReason::OutOfAttempts { attempts, error });
        }
        reasons.extend(self.cancel.clone().map(TaskReason::CancelRequested));
        reasons
    }

    fn why_running(&self, around: &TaskSurroundings<'_>) -> Vec<TaskReason> {
        let worker = self.worker;
        if self.has_expired(around.now) {
            return vec![TaskReason::LeaseExpired { worker, at: self.lease_expires_at }];
        }
        let mut reasons: Vec<_> = self.behind_lock(around).into_iter().collect();
        if self.begun {
            let mut workers = around.workers.unwrap_or_default().iter();
            let listed = workers.find(|status| Some(status.info.id) == worker);
            let host = listed.map(|status| status.info.host.clone());
            reasons.push(TaskReason::Running {
                worker,
                host,
                since: self.leased_at,
                until: self.lease_expires_at,
            });
        } else {
            reasons.push(TaskReason::NotStarted { worker });
        }
        reasons.extend(self.cancel.clone().map(TaskReason::CancelRequested));
        reasons
    }

    fn why_waiting(&self, around: &TaskSurroundings<'_>) -> Vec<TaskReason> {
        let mut reasons = Vec::new();
        if self.is_abandoned(around.now) {
            return vec![TaskReason::RunnerIsDead];
        }
        if self.state == TaskState::Scheduled && !self.is_due(around.now) {
            reasons.push(self.why_scheduled());
        }
        if let Some(queue) = around.queue
            && let Some(pause) = &queue.paused
        {
            let (queue, by, reason) = (queue.queue.clone(), pause.by.clone(), pause.reason.clone());
            reasons.push(TaskReason::QueuePaused { queue, by, since: pause.at, reason });
        }
        if self.state == TaskState::Blocked
            && let (Some(lock), Some(head)) = (self.lock.clone(), around.head)
        {
            reasons.push(TaskReason::BehindTask { task: head.id, state: head.state, lock });
        }
        reasons.extend(self.behind_lock(around));
        match self.runner_deadline {
            Some(until) => reasons.push(TaskReason::WaitsForRunner { until }),
            None => reasons.extend(self.why_no_worker(around)),
        }
        if reasons.is_empty() {
            let pending = around.queue.map_or(1, |queue| queue.counts.get(TaskState::Pending).max(1));
            reasons.push(TaskReason::Ready { pending });
        }
        reasons
    }

    fn why_scheduled(&self) -> TaskReason {
        let at = self.run_at;
        let last = self.events.iter().rev().find(|event| {
            matches!(event.kind, TaskEventKind::Failed | TaskEventKind::Expired | TaskEventKind::Retried)
        });
        if last.is_some_and(|event| event.kind != TaskEventKind::Retried) {
            let (attempt, of, error) = (self.attempt, self.retries.attempts, self.error.clone());
            return TaskReason::WaitsForRetry { at, attempt, of, error };
        }
        TaskReason::NotDue { at }
    }

    /// Returns whether this is the name under which a worker of the library holds the lock of the task.
    fn is_own_holder(&self, holder: &Holder) -> bool {
        match ExecutionId::of_task(self) {
            Some(execution) => *holder == execution.holder(),
            None => holder.as_str() == self.lock_holder(),
        }
    }

    /// Returns the name under which a worker holds the lock of this task, unless it is an execution.
    pub fn lock_holder(&self) -> String {
        format!("task {}", self.id)
    }

    fn behind_lock(&self, around: &TaskSurroundings<'_>) -> Option<TaskReason> {
        let record = around.lock?;
        let lease = record.live(around.now).find(|lease| !self.is_own_holder(&lease.request.holder))?;
        let (lock, holder) = (record.name.clone(), Some(lease.request.holder.clone()));
        Some(TaskReason::BehindLock { lock, holder, until: lease.expires_at })
    }

    fn why_no_worker(&self, around: &TaskSurroundings<'_>) -> Option<TaskReason> {
        let (mut workers, mut dead) = (0, 0);
        let (mut slots, mut busy) = (0, 0);
        for status in around.workers?.iter().filter(|status| status.info.queues.contains(&self.queue)) {
            if status.info.draining || status.is_dead(around.now) {
                dead += 1;
                continue;
            }
            workers += 1;
            slots += u64::from(status.info.slots);
            busy += u64::from(status.info.busy);
        }
        if workers == 0 {
            return Some(TaskReason::NoWorker { queue: self.queue.clone(), dead });
        }
        (busy >= slots).then_some(TaskReason::WorkersBusy { workers, slots })
    }
}

impl TaskReason {
    /// Returns the name of the reason, for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Finished { .. } => "finished",
            Self::OutOfAttempts { .. } => "out_of_attempts",
            Self::Running { .. } => "running",
            Self::NotStarted { .. } => "not_started",
            Self::LeaseExpired { .. } => "lease_expired",
            Self::CancelRequested(_) => "cancel_requested",
            Self::NotDue { .. } => "not_due",
            Self::WaitsForRetry { .. } => "waits_for_retry",
            Self::QueuePaused { .. } => "queue_paused",
            Self::BehindTask { .. } => "behind_task",
            Self::BehindLock { .. } => "behind_lock",
            Self::WaitsForRunner { .. } => "waits_for_runner",
            Self::RunnerIsDead => "runner_is_dead",
            Self::NoWorker { .. } => "no_worker",
            Self::WorkersBusy { .. } => "workers_busy",
            Self::Ready { .. } => "ready",
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        Acquire, AttemptResult, Cancel, LeaseId, LeaseTasks, LockOp, LockRequest, NewTask, Pause, Payload,
        Settle, TaskOp, TaskTable, Token, Ttl, When, WorkerInfo,
    };

    const TTL: Ttl = Ttl::from_secs(30);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + seconds * 1_000_000)
    }

    fn id(number: u128) -> TaskId {
        TaskId::from_uuid(Uuid::from_u128(number))
    }

    fn queue() -> QueueName {
        QueueName::new("mail").unwrap()
    }

    fn new(number: u128) -> NewTask {
        NewTask::new(id(number), queue(), Payload::default())
    }

    fn with_lock(number: u128) -> NewTask {
        NewTask { lock: Some(LockName::new("db").unwrap()), ..new(number) }
    }

    fn worker_id() -> WorkerId {
        WorkerId::from_uuid(Uuid::from_u128(7))
    }

    fn worker(busy: u32) -> WorkerStatus {
        let info = WorkerInfo {
            host: "web1".to_owned(),
            queues: vec![queue()],
            slots: 2,
            busy,
            every: Ttl::from_secs(5),
            ..WorkerInfo::only(worker_id())
        };
        WorkerStatus { info, started_at: at(0), seen_at: at(10) }
    }

    fn held_lock(holder: &str) -> LockRecord {
        let mut record = LockRecord::new(LockName::new("db").unwrap());
        let id = LeaseId::from_uuid(Uuid::from_u128(9));
        let request = LockRequest::new(id, Holder::new(holder).unwrap(), TTL).into();
        record.apply(&LockOp::Acquire(Acquire { request, queue: None, steal_after: None }), at(10));
        record
    }

    /// Table with a task, and all that is known about it at second 10.
    struct Scene {
        table: TaskTable,
        workers: Vec<WorkerStatus>,
        lock: Option<LockRecord>,
    }

    impl Scene {
        fn new(new: &[NewTask]) -> Self {
            let mut table = TaskTable::default();
            table.enqueue(new, at(0));
            Self { table, workers: vec![worker(0)], lock: None }
        }

        fn lease(&mut self, begin: u32) -> Token {
            let mut request = LeaseTasks::new(worker_id(), vec![queue()], 1, TTL);
            request.begin = begin;
            self.table.lease(&request, at(5)).tasks[0].token
        }

        fn why(&self, task: u128) -> Vec<String> {
            self.why_at(task, 10)
        }

        fn why_at(&self, task: u128, second: u64) -> Vec<String> {
            let queues = self.table.queues();
            let head = self.table.tasks().find(|other| other.state.takes_lock() && other.id != id(task));
            let around = TaskSurroundings {
                now: at(second),
                queue: queues.first(),
                workers: Some(&self.workers),
                lock: self.lock.as_ref(),
                head,
            };
            let reasons = self.table.get(id(task)).unwrap().why(&around);
            reasons.iter().map(|reason| format!("{}: {}", reason.code(), reason.text(at(second)))).collect()
        }
    }

    #[test]
    fn a_ready_task_waits_for_its_turn_or_for_a_worker() {
        let mut scene = Scene::new(&[new(1), new(2)]);
        assert_eq!(
            scene.why(2),
            ["ready: It is ready: a worker leases it in its turn; 2 tasks of its queue are ready."]
        );
        scene.workers = vec![worker(2)];
        assert_eq!(scene.why(2), ["workers_busy: The one worker of its queue is busy: it runs 2 at a time."]);
        scene.workers = Vec::new();
        assert_eq!(scene.why(2), ["no_worker: No worker leases tasks from queue 'mail'."]);
        let mut draining = worker(0);
        draining.info.draining = true;
        let mut other = worker(0);
        other.info.queues.clear();
        scene.workers = vec![draining, other];
        assert_eq!(
            scene.why(2),
            [
                "no_worker: No live worker leases tasks from queue 'mail': 1 missed their heartbeats or are stopping."
            ]
        );
        // A worker with a heartbeat every 5 s is dead after 15 s.
        scene.workers = vec![worker(0)];
        assert!(scene.why_at(2, 25)[0].starts_with("ready: "));
        assert!(scene.why_at(2, 26)[0].starts_with("no_worker: "));
    }

    #[test]
    fn a_pause_and_a_later_time_are_both_reasons() {
        let mut scene = Scene::new(&[NewTask { when: When::In(Ttl::from_secs(70)), ..new(1) }]);
        let by = Holder::new("ada").unwrap();
        let pause = Pause { by, reason: Some(Reason::new("migration").unwrap()), at: at(4) };
        scene.table.pause(&queue(), Some(pause));
        assert_eq!(
            scene.why(1),
            [
                "not_due: It is due at 2023-11-14T22:14:30Z (in 1m).",
                "queue_paused: Queue 'mail' is paused: by ada since 2023-11-14T22:13:24Z (6s ago) (migration).",
            ]
        );
    }

    #[test]
    fn a_failed_attempt_is_followed_by_a_pause_and_by_the_end() {
        let mut task = new(1);
        task.retries.attempts = 2;
        let mut scene = Scene::new(&[task]);
        let token = scene.lease(1);
        let result = AttemptResult::Retry(Message::new("no route to host"), Some(Ttl::from_secs(20)));
        scene.table.settle(&[Settle { id: id(1), token, result }], at(6));
        assert_eq!(
            scene.why(1),
            [
                "waits_for_retry: It waits for its next attempt at 2023-11-14T22:13:46Z (in 16s): 1 of 2 have been made; the last error: no route to host."
            ]
        );
        scene.table.recover(10, at(26));
        let request = LeaseTasks::new(worker_id(), vec![queue()], 1, TTL);
        let token = scene.table.lease(&request, at(26)).tasks[0].token;
        let result = AttemptResult::Retry(Message::new("no such user"), None);
        scene.table.settle(&[Settle { id: id(1), token, result }], at(27));
        assert_eq!(
            scene.why_at(1, 30),
            [
                "finished: It failed at 2023-11-14T22:13:47Z (3s ago).",
                "out_of_attempts: It has used all 2 attempts; the last error: no such user.",
            ]
        );
    }

    #[test]
    fn a_task_behind_another_task_and_behind_its_lock() {
        let mut scene = Scene::new(&[with_lock(1), with_lock(2)]);
        scene.lock = Some(held_lock("deploy"));
        let other = "It waits for task 00000000-0000-0000-0000-000000000001, which is pending and has the same lock 'db'.";
        let lock = "Its lock 'db' is held by deploy until 2023-11-14T22:14:00Z (in 30s), unless renewed.";
        assert_eq!(scene.why(2), [format!("behind_task: {other}"), format!("behind_lock: {lock}")]);
        assert_eq!(scene.why(1), [format!("behind_lock: {lock}")]);
        scene.lease(1);
        let running = scene.why(1);
        assert_eq!(running[0], format!("behind_lock: {lock}"));
        assert!(
            running[1]
                .starts_with("running: Worker 00000000-0000-0000-0000-000000000007 on web1 runs it since ")
        );
        scene.lock = Some(held_lock(&scene.table.get(id(1)).unwrap().lock_holder()));
        assert!(scene.why(1)[0].starts_with("running: "), "the task itself holds its lock");
    }

    #[test]
    fn a_leased_task_runs_or_was_fetched_ahead_or_its_lease_has_expired() {
        let mut scene = Scene::new(&[new(1)]);
        scene.lease(0);
        assert!(scene.why(1)[0].ends_with(" has leased it and has not started it."), "{:?}", scene.why(1));
        let cancel = Cancel { by: Holder::new("ada").unwrap(), reason: None };
        scene.table.change(id(1), &TaskOp::Cancel(cancel), at(8));
        assert!(scene.why(1)[1].starts_with("cancel_requested: ada requested its cancellation at "));
        let expired = scene.why_at(1, 35);
        assert_eq!(expired.len(), 1);
        assert!(expired[0].starts_with("lease_expired: The lease of worker 0000"), "{expired:?}");
    }

    #[test]
    fn a_task_that_its_process_runs_waits_for_that_process() {
        let mut task = new(1);
        task.runner_ttl = Some(TTL);
        let scene = Scene::new(&[task]);
        assert_eq!(scene.why(1), ["waits_for_runner: The process that added it waits to run it."]);
        assert!(scene.why_at(1, 31)[0].starts_with("runner_is_dead: "));
    }
}
