//! Sentences for the reasons why a task does not run now.

use std::fmt;

use super::why::TaskReason;
use super::{Message, TaskState, WorkerId};
use crate::{Reason, Timestamp, format_duration};

impl TaskReason {
    /// Returns the reason as a sentence, with times relative to `now`.
    pub fn text(&self, now: Timestamp) -> String {
        Sentence { reason: self, now }.to_string()
    }
}

/// Reason as a sentence.
struct Sentence<'a> {
    reason: &'a TaskReason,
    now: Timestamp,
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = self.now;
        match self.reason {
            TaskReason::Finished { state, at } => {
                let verb = match state {
                    TaskState::Succeeded => "It succeeded",
                    TaskState::Aborted => "It was aborted",
                    _ => "It failed",
                };
                write!(f, "{verb}{}.", optional_time(*at, now))
            }
            TaskReason::OutOfAttempts { attempts, error } => {
                write!(f, "It has used all {attempts} attempts{}.", last_error(error.as_ref()))
            }
            TaskReason::Running { worker, host, since, until } => {
                let on = host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
                write!(f, "{}{on} runs it{}", worker_name(*worker), optional_since(*since, now))?;
                match until {
                    Some(until) => write!(f, "; its lease lasts until {}.", time(*until, now)),
                    None => f.write_str("."),
                }
            }
            TaskReason::NotStarted { worker } => {
                write!(f, "{} has leased it and has not started it.", worker_name(*worker))
            }
            TaskReason::LeaseExpired { worker, at } => write!(
                f,
                "The lease of {} expired{}; the next worker that asks for tasks gets it.",
                worker_name(*worker).replacen('W', "w", 1),
                optional_time(*at, now)
            ),
            TaskReason::CancelRequested(request) => {
                let reason = quoted(request.reason.as_ref());
                write!(f, "{} requested its cancellation at {}{reason}.", request.by, time(request.at, now))
            }
            TaskReason::NotDue { at } => write!(f, "It is due at {}.", time(*at, now)),
            TaskReason::WaitsForRetry { at, attempt, of, error } => write!(
                f,
                "It waits for its next attempt at {}: {attempt} of {of} have been made{}.",
                time(*at, now),
                last_error(error.as_ref())
            ),
            TaskReason::QueuePaused { queue, by, since, reason } => write!(
                f,
                "Queue '{queue}' is paused: by {by} since {}{}.",
                time(*since, now),
                quoted(reason.as_ref())
            ),
            TaskReason::BehindTask { task, state, lock } => {
                write!(f, "It waits for task {task}, which is {state} and has the same lock '{lock}'.")
            }
            TaskReason::BehindLock { lock, holder, until } => {
                let by = holder.as_ref().map(|holder| format!(" by {holder}")).unwrap_or_default();
                write!(f, "Its lock '{lock}' is held{by} until {}, unless renewed.", time(*until, now))
            }
            TaskReason::WaitsForRunner { .. } => f.write_str("The process that added it waits to run it."),
            TaskReason::RunnerIsDead => {
                f.write_str("The process that added it to run it itself is dead; the next recovery ends it.")
            }
            TaskReason::NoWorker { queue, dead: 0 } => {
                write!(f, "No worker leases tasks from queue '{queue}'.")
            }
            TaskReason::NoWorker { queue, dead } => write!(
                f,
                "No live worker leases tasks from queue '{queue}': {dead} missed their heartbeats or are stopping."
            ),
            TaskReason::WorkersBusy { workers: 1, slots } => {
                write!(f, "The one worker of its queue is busy: it runs {slots} at a time.")
            }
            TaskReason::WorkersBusy { workers, slots } => {
                write!(f, "All {workers} workers of its queue are busy: they run {slots} tasks at a time.")
            }
            TaskReason::Ready { pending: 1 } => f.write_str("It is ready: a worker leases it next."),
            TaskReason::Ready { pending } => {
                write!(
                    f,
                    "It is ready: a worker leases it in its turn; {pending} tasks of its queue are ready."
                )
            }
        }
    }
}

/// Returns a time with its distance from `now`.
fn time(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        format!("{at} (in {})", format_duration(at.since(now)))
    } else {
        format!("{at} ({} ago)", format_duration(now.since(at)))
    }
}

fn optional_time(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map(|at| format!(" at {}", time(at, now))).unwrap_or_default()
}

fn optional_since(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map(|at| format!(" since {}", time(at, now))).unwrap_or_default()
}

fn worker_name(worker: Option<WorkerId>) -> String {
    worker.map_or_else(|| "A worker".to_owned(), |worker| format!("Worker {worker}"))
}

/// Returns the first line of an error, which may contain the output of a command.
fn last_error(error: Option<&Message>) -> String {
    let line = error.and_then(|error| error.as_str().lines().next());
    line.map(|line| format!("; the last error: {line}")).unwrap_or_default()
}

fn quoted(reason: Option<&Reason>) -> String {
    reason.map(|reason| format!(" ({reason})")).unwrap_or_default()
}
