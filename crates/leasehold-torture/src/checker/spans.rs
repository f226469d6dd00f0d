//! Spans of time in which a process believed to hold a lock or a task.

use std::collections::HashMap;

use crate::KILL;
use crate::history::{Event, History, Mode};

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Resource<'a> {
    Lock(&'a str),
    Task(&'a str),
}

/// Span of time in which a process believed to hold a lock or a task.
#[derive(Debug, Clone)]
pub(super) struct Span<'a> {
    pub(super) process: u32,
    pub(super) op: u32,
    pub(super) resource: Resource<'a>,
    pub(super) mode: Mode,
    /// Time at which the request was sent; of an attempt, that from which on its lease counts.
    pub(super) requested: u64,
    /// Time at which the response had arrived.
    pub(super) from: u64,
    /// End of the belief; at or before `from` if the process never believed to hold the lease.
    pub(super) to: u64,
    /// Fencing token of the resource; `None` for a lock that is held for the attempt at a task.
    pub(super) token: Option<u64>,
    /// Id of the lease; empty for an attempt.
    pub(super) lease: &'a str,
}

impl Span<'_> {
    pub(super) fn id(&self) -> (u32, u32) {
        (self.process, self.op)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.to <= self.from
    }
}

/// Returns the spans of a history, by their resource and their begin.
///
/// A span begins when the response has arrived and ends at the time until which the process
/// believed to hold the lease; earlier, when the process was about to release it, when another
/// process was about to end it by force, or when the process was about to be killed.
pub(super) fn of(history: &History) -> Vec<Span<'_>> {
    let ttl = history.header.ttl_millis.saturating_mul(1000);
    let mut requested = HashMap::new();
    let mut spans: Vec<Span<'_>> = Vec::new();
    let mut of_op: HashMap<(u32, u32), Vec<usize>> = HashMap::new();
    let mut forced: HashMap<(&str, u64), u64> = HashMap::new();
    let mut killed: HashMap<u32, u64> = HashMap::new();
    for record in &history.records {
        let (at, process) = (record.at, record.process);
        match &record.event {
            Event::Acquire { op, lock, mode } => {
                requested.insert((process, *op), (at, lock.as_str(), *mode));
            }
            Event::Granted { op, lease, token, until } => {
                let Some((requested, lock, mode)) = requested.get(&(process, *op)).copied() else { continue };
                of_op.entry((process, *op)).or_default().push(spans.len());
                let (resource, token) = (Resource::Lock(lock), Some(*token));
                spans.push(Span {
                    process,
                    op: *op,
                    resource,
                    mode,
                    requested,
                    from: at,
                    to: *until,
                    token,
                    lease,
                });
            }
            Event::Attempt { op, task, lock, token, until } => {
                let task = (Resource::Task(task), Some(*token));
                let lock = lock.as_deref().map(|lock| (Resource::Lock(lock), None));
                for (resource, token) in [Some(task), lock].into_iter().flatten() {
                    of_op.entry((process, *op)).or_default().push(spans.len());
                    let mode = Mode::Exclusive;
                    spans.push(Span {
                        process,
                        op: *op,
                        resource,
                        mode,
                        requested: until.saturating_sub(ttl).min(at),
                        from: at,
                        to: *until,
                        token,
                        lease: "",
                    });
                }
            }
            Event::Extended { op, until } => {
                for span in of_op.get(&(process, *op)).into_iter().flatten() {
                    spans[*span].to = *until;
                }
            }
            Event::Ended { op, .. } => {
                for span in of_op.get(&(process, *op)).into_iter().flatten() {
                    spans[*span].to = spans[*span].to.min(at);
                }
            }
            Event::Force { lock, token, .. } => {
                forced.entry((lock, *token)).or_insert(at);
            }
            Event::Fault { worker, fault, .. } if fault == KILL => {
                killed.insert(*worker, at);
            }
            _ => {}
        }
    }
    for span in &mut spans {
        if let Some(at) = killed.get(&span.process) {
            span.to = span.to.min(*at);
        }
        if let (Resource::Lock(lock), Some(token)) = (span.resource, span.token)
            && let Some(at) = forced.get(&(lock, token))
        {
            span.to = span.to.min(*at);
        }
    }
    spans.sort_by_key(|span| (span.resource, span.from));
    spans
}

/// Calls `each` with the end of each span of an exclusive lock and the grant of the next one, if
/// its holder was already waiting.
pub(super) fn for_each_handover(spans: &[Span<'_>], mut each: impl FnMut(u64, u64)) {
    for pair in spans.windows(2) {
        let [old, new] = pair else { continue };
        let is_exclusive = [old.mode, new.mode] == [Mode::Exclusive; 2] && old.token.is_some();
        let is_lock = matches!(old.resource, Resource::Lock(_)) && old.resource == new.resource;
        if is_exclusive && is_lock && !old.is_empty() && new.requested < old.to && old.to <= new.from {
            each(old.to, new.from);
        }
    }
}
