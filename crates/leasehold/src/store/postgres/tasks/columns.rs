//! Conversion of tasks to columns.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use super::rows::unreadable;
use crate::model::{Chain, NewTask, QueueName, Task, TaskId, TaskKey, TaskState, Ttl, When};
use crate::store::postgres::gate::micros;
use crate::store::postgres::session::Param;
use crate::store::postgres::trouble::Fail;

/// Columns of new tasks, as parameters of a statement.
#[derive(Debug, Default)]
pub(super) struct NewColumns<'a> {
    id: Vec<Uuid>,
    queue: Vec<&'a str>,
    payload: Vec<&'a str>,
    at: Vec<Option<i64>>,
    after: Vec<Option<i64>>,
    priority: Vec<i32>,
    attempts: Vec<i32>,
    first: Vec<i64>,
    longest: Vec<i64>,
}

impl<'a> NewColumns<'a> {
    pub(super) fn new(tasks: &[&'a NewTask]) -> Self {
        let mut columns = Self::default();
        for new in tasks {
            columns.id.push(*new.id.as_uuid());
            columns.queue.push(new.queue.as_str());
            columns.payload.push(new.payload.as_str());
            let (at, after) = match new.when {
                When::Now => (None, None),
                When::At(time) => (Some(micros(time)), None),
                When::In(after) => (None, Some(duration(after))),
            };
            columns.at.push(at);
            columns.after.push(after);
            columns.priority.push(new.priority.get());
            columns.attempts.push(whole(new.retries.attempts));
            columns.first.push(duration(new.retries.first));
            columns.longest.push(duration(new.retries.longest));
        }
        columns
    }

    pub(super) fn params<'b>(&'b self, now: Param<'b>) -> [Param<'b>; 10] {
        [
            &self.id,
            &self.queue,
            &self.payload,
            &self.at,
            &self.after,
            &self.priority,
            &self.attempts,
            &self.first,
            &self.longest,
            now,
        ]
    }
}

/// New tasks that are due and differ only in id and payload.
#[derive(Debug)]
pub(super) struct Alike<'a> {
    id: Vec<Uuid>,
    payload: Vec<&'a str>,
    queue: &'a str,
    priority: i32,
    attempts: i32,
    first: i64,
    longest: i64,
}

impl<'a> Alike<'a> {
    /// Returns `None` if the tasks differ in more, or are not due.
    pub(super) fn new(tasks: &[&'a NewTask]) -> Option<Self> {
        let first = *tasks.first()?;
        let alike = |new: &&NewTask| {
            new.when == When::Now
                && new.queue == first.queue
                && new.priority == first.priority
                && new.retries == first.retries
        };
        tasks.iter().all(alike).then(|| Self {
            id: tasks.iter().map(|new| *new.id.as_uuid()).collect(),
            payload: tasks.iter().map(|new| new.payload.as_str()).collect(),
            queue: first.queue.as_str(),
            priority: first.priority.get(),
            attempts: whole(first.retries.attempts),
            first: duration(first.retries.first),
            longest: duration(first.retries.longest),
        })
    }

    pub(super) fn params<'b>(&'b self, now: Param<'b>) -> [Param<'b>; 8] {
        [
            &self.id,
            &self.payload,
            &self.queue,
            &self.priority,
            &self.attempts,
            &self.first,
            &self.longest,
            now,
        ]
    }
}

/// Columns of tasks as the slow path has left them, with all related rows.
#[derive(Debug, Default)]
pub(super) struct Saved {
    id: Vec<Uuid>,
    is_new: Vec<bool>,
    has_body: Vec<bool>,
    queue: Vec<String>,
    state: Vec<i16>,
    priority: Vec<i32>,
    run_at: Vec<i64>,
    ready_at: Vec<i64>,
    lock: Vec<Option<String>>,
    attempt: Vec<i32>,
    token: Vec<i64>,
    version: Vec<i64>,
    worker: Vec<Option<Uuid>>,
    leased_at: Vec<Option<i64>>,
    lease_expires_at: Vec<Option<i64>>,
    progress: Vec<Option<String>>,
    cancel: Vec<Option<String>>,
    updated_at: Vec<i64>,
    finished_at: Vec<Option<i64>>,
    archived: Vec<bool>,
    marred: Vec<bool>,
    payload: Vec<Option<String>>,
    result: Vec<Option<String>>,
    error: Vec<Option<String>>,
    events: Vec<Option<String>>,
    key: Vec<Option<String>>,
    fingerprint: Vec<i64>,
    attempts: Vec<i32>,
    first: Vec<i64>,
    longest: Vec<i64>,
    created_at: Vec<i64>,
    ahead: Vec<bool>,
    expiries: Vec<i32>,
    count_queue: Vec<String>,
    count_state: Vec<i16>,
    count_delta: Vec<i64>,
    early: Vec<Option<bool>>,
    wanted_until: Vec<Option<i64>>,
    head_lock: Vec<String>,
    head_queue: Vec<String>,
    head_id: Vec<Option<Uuid>>,
    level_queue: Vec<String>,
    level_priority: Vec<i32>,
    level_moved: Vec<i64>,
    level_early: Vec<bool>,
    key_queue: Vec<String>,
    key_key: Vec<String>,
    key_id: Vec<Uuid>,
    counts: BTreeMap<(QueueName, TaskState), i64>,
    /// By queue and priority: number of moved tasks, and whether one became pending before others.
    levels: BTreeMap<(QueueName, i32), (i64, bool)>,
}

impl Saved {
    /// Adds a task with its previous state; does nothing if they are equal.
    pub(super) fn task(&mut self, before: Option<&Task>, after: &Task) -> Result<(), Fail> {
        if before == Some(after) {
            return Ok(());
        }
        self.count(before, -1);
        self.count(Some(after), 1);
        self.level(before, after);
        let same_payload = before.is_some_and(|before| before.payload == after.payload);
        self.id.push(*after.id.as_uuid());
        self.is_new.push(before.is_none());
        self.has_body.push(before.is_none_or(|before| has_other_body(before, after)));
        self.queue.push(after.queue.as_str().to_owned());
        self.state.push(after.state as i16);
        self.priority.push(after.priority.get());
        self.run_at.push(micros(after.run_at));
        self.ready_at.push(micros(after.ready_at));
        self.lock.push(after.lock.as_ref().map(|lock| lock.as_str().to_owned()));
        self.attempt.push(whole(after.attempt));
        self.token.push(large(after.token.get()));
        self.version.push(large(after.version));
        self.worker.push(after.worker.map(|worker| *worker.as_uuid()));
        self.leased_at.push(after.leased_at.map(micros));
        self.lease_expires_at.push(after.lease_expires_at.map(micros));
        self.progress.push(json(after.progress.as_ref())?);
        self.cancel.push(json(after.cancel.as_ref())?);
        self.updated_at.push(micros(after.updated_at));
        self.finished_at.push(after.finished_at.map(micros));
        self.archived.push(after.archived);
        self.marred.push(after.error.is_some());
        self.payload.push((!same_payload).then(|| after.payload.as_str().to_owned()));
        self.result.push(after.result.as_ref().map(|result| result.as_str().to_owned()));
        self.error.push(after.error.as_ref().map(|error| error.as_str().to_owned()));
        self.events.push(json(Some(&after.events).filter(|events| !events.is_empty()))?);
        self.key.push(after.key.as_ref().map(|key| key.as_str().to_owned()));
        self.fingerprint.push(after.fingerprint.get().cast_signed());
        self.attempts.push(whole(after.retries.attempts));
        self.first.push(duration(after.retries.first));
        self.longest.push(duration(after.retries.longest));
        self.created_at.push(micros(after.created_at));
        self.ahead.push(after.state == TaskState::Running && !after.begun);
        self.expiries.push(whole(after.expiries));
        self.early.push(is_early(before, after));
        self.wanted_until.push(after.wanted_until.map(micros));
        Ok(())
    }

    /// Sets the head of a chain; `None` if the chain has no head.
    pub(super) fn head(&mut self, (lock, queue): &Chain, id: Option<TaskId>) {
        self.head_lock.push(lock.as_str().to_owned());
        self.head_queue.push(queue.as_str().to_owned());
        self.head_id.push(id.map(|id| *id.as_uuid()));
    }

    /// Sets the task that a key refers to.
    pub(super) fn key(&mut self, queue: &QueueName, key: &TaskKey, id: TaskId) {
        self.key_queue.push(queue.as_str().to_owned());
        self.key_key.push(key.as_str().to_owned());
        self.key_id.push(*id.as_uuid());
    }

    /// Returns the number of new tasks.
    pub(super) fn new_tasks(&self) -> usize {
        self.is_new.iter().filter(|is_new| **is_new).count()
    }

    /// Whether there is nothing to save.
    pub(super) fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    fn count(&mut self, task: Option<&Task>, sign: i64) {
        if let Some(task) = task.filter(|task| !task.archived) {
            *self.counts.entry((task.queue.clone(), task.state)).or_default() += sign;
        }
    }

    /// Records the priority, which may be new to the queue, and whether a pending task has changed
    /// its position: cursors have passed the new position.
    fn level(&mut self, before: Option<&Task>, after: &Task) {
        let early = is_early(before, after) == Some(true);
        let stays = |before: &Task| before.priority == after.priority && !is_moved(before, after);
        if before.is_some_and(stays) && !early {
            return;
        }
        let waited = before.is_some_and(|before| before.state == TaskState::Pending);
        let moved = i64::from(waited && after.state == TaskState::Pending);
        let level = self.levels.entry((after.queue.clone(), after.priority.get())).or_default();
        *level = (moved.max(level.0), early || level.1);
    }

    /// Returns the parameters in the order of the statement.
    pub(super) fn params(&mut self) -> [Param<'_>; 48] {
        for ((queue, state), delta) in std::mem::take(&mut self.counts) {
            if delta != 0 {
                self.count_queue.push(queue.into());
                self.count_state.push(state as i16);
                self.count_delta.push(delta);
            }
        }
        for ((queue, priority), (moved, early)) in std::mem::take(&mut self.levels) {
            self.level_queue.push(queue.into());
            self.level_priority.push(priority);
            self.level_moved.push(moved);
            self.level_early.push(early);
        }
        [
            &self.id,
            &self.is_new,
            &self.has_body,
            &self.queue,
            &self.state,
            &self.priority,
            &self.run_at,
            &self.ready_at,
            &self.lock,
            &self.attempt,
            &self.token,
            &self.version,
            &self.worker,
            &self.leased_at,
            &self.lease_expires_at,
            &self.progress,
            &self.cancel,
            &self.updated_at,
            &self.finished_at,
            &self.archived,
            &self.marred,
            &self.payload,
            &self.result,
            &self.error,
            &self.events,
            &self.key,
            &self.fingerprint,
            &self.attempts,
            &self.first,
            &self.longest,
            &self.created_at,
            &self.count_queue,
            &self.count_state,
            &self.count_delta,
            &self.head_lock,
            &self.head_id,
            &self.level_queue,
            &self.level_priority,
            &self.level_moved,
            &self.key_queue,
            &self.key_key,
            &self.key_id,
            &self.ahead,
            &self.expiries,
            &self.early,
            &self.wanted_until,
            &self.head_queue,
            &self.level_early,
        ]
    }
}

/// Whether the task was pending and is now pending at another position.
fn is_moved(before: &Task, after: &Task) -> bool {
    let pending = |task: &Task| task.state == TaskState::Pending;
    pending(before) && pending(after) && before.order() != after.order()
}

/// Whether the task became pending before tasks that were pending already; `None` if that has not
/// changed. A task that is moved to another priority is found there because the move is counted.
fn is_early(before: Option<&Task>, after: &Task) -> Option<bool> {
    let before = before?;
    match (before.state, after.state) {
        (TaskState::Pending, TaskState::Pending) => (before.priority != after.priority).then_some(false),
        (_, TaskState::Pending) => Some(after.ready_at == before.ready_at),
        _ => None,
    }
}

fn has_other_body(before: &Task, after: &Task) -> bool {
    before.payload != after.payload
        || before.result != after.result
        || before.error != after.error
        || before.events != after.events
        || before.key != after.key
        || before.retries != after.retries
}

pub(super) fn json<T: Serialize>(value: Option<&T>) -> Result<Option<String>, Fail> {
    value.map(serde_json::to_string).transpose().map_err(unreadable)
}

pub(super) fn duration(ttl: Ttl) -> i64 {
    large(ttl.as_micros())
}

pub(super) fn large(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn whole(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
