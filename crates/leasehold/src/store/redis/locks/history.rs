//! History: of one lock along its chain of events, of all locks merged from their buckets by time.

use std::time::Duration;

use futures_util::future::try_join_all;
use redis::Value;

use super::super::error::unreadable;
use super::super::scripts::{BUCKET_HISTORY, LOCK_HISTORY, ScriptCall};
use super::apply::Locks;
use super::codec;
use crate::error::Result;
use crate::model::{Event, LockName};
use crate::store::lock_store::page_size;
use crate::store::repeat::Repeat;
use crate::store::{BootInstant, Cursor, EventRange, ListEvents, Page};

/// Maximum wait for current events to become past, when clocks of a Cluster differ.
const MAX_SKEW_WAIT: Duration = Duration::from_secs(2);

/// Position of an event among all: its time, its number within that millisecond, and its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EventPosition {
    millis: u64,
    seq: u64,
    bucket: u64,
}

/// Result of reading all buckets.
struct MergedEvents {
    events: Vec<(EventPosition, Event)>,
    more: bool,
    /// Whether there were events that are too new to be returned yet.
    too_new: bool,
}

impl Locks {
    pub(crate) async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        let limit = page_size(query.limit) as usize;
        match &query.lock {
            Some(lock) => self.lock_history(lock, &query.span, limit).await,
            None => self.global_history(&query.span, limit).await,
        }
    }

    async fn lock_history(&self, lock: &LockName, span: &EventRange, limit: usize) -> Result<Page<Event>> {
        let bucket = self.keys.bucket_of(lock);
        let key = bucket.lock(lock.as_str());
        let (direction, cursor) = match span {
            EventRange::Newest => ("before", String::new()),
            EventRange::Before(cursor) => ("before", EventPosition::parse(cursor).id()),
            EventRange::After(cursor) => ("after", EventPosition::parse(cursor).id()),
        };
        let read = LOCK_HISTORY.run(&self.connections, ScriptCall::new(Repeat::Safe), |cmd| {
            cmd.arg(2)
                .arg(&bucket.events)
                .arg(&key)
                .arg(direction)
                .arg(&cursor)
                .arg(limit)
                .arg(lock.as_str());
        });
        let events = entries(read.await?, 0)?;
        Ok(Page::of_events(events, span, limit, |position| position.cursor()))
    }

    async fn global_history(&self, span: &EventRange, limit: usize) -> Result<Page<Event>> {
        let started = BootInstant::now();
        let mut events = Vec::new();
        let mut from = match span {
            EventRange::Newest => None,
            EventRange::Before(cursor) | EventRange::After(cursor) => Some(EventPosition::parse(cursor)),
        };
        loop {
            let found = self.read_buckets(span, from, limit).await?;
            events.extend(found.events);
            events.truncate(limit);
            let waits =
                events.is_empty() && found.too_new && BootInstant::now() < started.plus(MAX_SKEW_WAIT);
            if events.len() == limit || !(found.more || waits) {
                return Ok(Page::of_events(events, span, limit, |position| position.cursor()));
            }
            if !found.more {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            from = events.last().map(|(position, _)| *position).or(from);
        }
    }

    /// Reads all buckets once. Guarantees that no event before the last returned one is missing.
    async fn read_buckets(
        &self,
        span: &EventRange,
        from: Option<EventPosition>,
        limit: usize,
    ) -> Result<MergedEvents> {
        let forward = matches!(span, EventRange::After(_));
        let share = limit / 16 + 8;
        let read = self.keys.buckets().zip(0u64..).map(|(bucket, number)| async move {
            let (command, start, end) = range(forward, from, number);
            let read = BUCKET_HISTORY.run(&self.connections, ScriptCall::new(Repeat::Safe), |cmd| {
                cmd.arg(1).arg(&bucket.events).arg(command).arg(&start).arg(end).arg(share);
            });
            match read.await? {
                Value::Array(parts) => match <[Value; 2]>::try_from(parts) {
                    Ok([Value::Int(time), found]) => {
                        Ok((u64::try_from(time).unwrap_or(0), entries(found, number)?))
                    }
                    _ => Err(unreadable("a part of the history")),
                },
                _ => Err(unreadable("a part of the history")),
            }
        });
        let buckets = try_join_all(read).await?;
        let past = buckets.iter().map(|(time, _)| *time).min().unwrap_or(0);
        let full = buckets.iter().filter(|(_, events)| events.len() == share);
        let lasts = full.filter_map(|(_, events)| events.last()).map(|(position, _)| *position);
        let bound = if forward { lasts.min() } else { lasts.max() };
        let mut events: Vec<_> = buckets.into_iter().flat_map(|(_, events)| events).collect();
        let all = events.len();
        if forward {
            // Within the current millisecond another bucket may still write an event that precedes
            // one of these.
            events.retain(|(position, _)| position.millis < past);
        }
        let too_new = events.len() < all;
        if let Some(bound) = bound {
            events.retain(|(position, _)| if forward { *position <= bound } else { *position >= bound });
        }
        events.sort_by_key(|(position, _)| *position);
        if !forward {
            events.reverse();
        }
        Ok(MergedEvents { more: bound.is_some() && !events.is_empty(), events, too_new })
    }
}

/// Returns the command and the range that read one bucket forward or backward from a position.
fn range(forward: bool, from: Option<EventPosition>, bucket: u64) -> (&'static str, String, &'static str) {
    let (command, end) = if forward { ("XRANGE", "+") } else { ("XREVRANGE", "-") };
    let start = match from {
        None if forward => "-".to_owned(),
        None => "+".to_owned(),
        // At the same instant, events of higher buckets come later.
        Some(from) if (forward && bucket > from.bucket) || (!forward && bucket < from.bucket) => from.id(),
        Some(from) => format!("({}", from.id()),
    };
    (command, start, end)
}

/// Parses pairs of id and packed event, as `lock_history.lua` returns them, or entries of a stream:
/// id and fields.
fn entries(found: Value, bucket: u64) -> Result<Vec<(EventPosition, Event)>> {
    let bad = || unreadable("an event");
    let Value::Array(entries) = found else { return Err(bad()) };
    let entry = |entry: Value| {
        let Value::Array(parts) = entry else { return Err(bad()) };
        let (id, event) = match <[Value; 2]>::try_from(parts) {
            Ok([Value::BulkString(id), Value::BulkString(event)]) => (id, event),
            Ok([Value::BulkString(id), Value::Array(mut fields)]) => match fields.pop() {
                Some(Value::BulkString(event)) => (id, event),
                _ => return Err(bad()),
            },
            _ => return Err(bad()),
        };
        let id = Cursor(String::from_utf8_lossy(&id).into_owned());
        Ok((EventPosition { bucket, ..EventPosition::parse(&id) }, codec::event(&event)?))
    };
    entries.into_iter().map(entry).collect()
}

impl EventPosition {
    /// Parses `millis-seq`, optionally followed by `-bucket`. Anything else means the beginning.
    fn parse(cursor: &Cursor) -> Self {
        let mut parts = cursor.0.split('-').map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        Self { millis: next(), seq: next(), bucket: next() }
    }

    fn id(self) -> String {
        format!("{}-{}", self.millis, self.seq)
    }

    fn cursor(self) -> Cursor {
        Cursor(format!("{}-{}-{}", self.millis, self.seq, self.bucket))
    }
}
