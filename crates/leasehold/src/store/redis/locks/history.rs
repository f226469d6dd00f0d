//! History: of one lock by a search through the events of its bucket, of all locks merged from their
//! buckets by time.

use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{Cmd, Value};

use super::super::error::unreadable;
use super::super::keys::Bucket;
use super::super::scripts::{BUCKET_HISTORY, ScriptCall};
use super::apply::Locks;
use super::blocks::{self, EventPosition};
use super::codec;
use crate::error::{Error, Result};
use crate::model::{Event, LockName};
use crate::store::lock_store::page_size;
use crate::store::repeat::Repeat;
use crate::store::{BootInstant, Cursor, EventRange, ListEvents, Page};

/// Maximum wait for current events to become past, when clocks of a Cluster differ.
const MAX_SKEW_WAIT: Duration = Duration::from_secs(2);
/// Number of events that one read of the history of a lock examines, at least.
const EXAMINED: usize = 500;

/// Result of reading all buckets.
struct MergedEvents {
    events: Vec<(EventPosition, Event)>,
    more: bool,
    /// Whether there were events that are too new to be returned yet.
    too_new: bool,
}

/// Part of a bucket's history.
struct BucketEvents {
    /// Time of the read in milliseconds: an event that is written later has no earlier position.
    time: u64,
    /// Events in the order in which they are read.
    events: Vec<(EventPosition, Event)>,
    /// Position of the last event that was examined; `None` if there are no further events.
    bound: Option<EventPosition>,
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
        let forward = matches!(span, EventRange::After(_));
        // All events are of one bucket, which is not part of the cursor.
        let mut from = start(span).map(|from| EventPosition { bucket: 0, ..from });
        let mut events = Vec::new();
        loop {
            let read = self.read_bucket((bucket, 0), forward, from, EXAMINED).await?;
            events.extend(read.events.into_iter().filter(|(_, event)| event.lock == *lock));
            if events.len() >= limit || read.bound.is_none() {
                break;
            }
            from = read.bound;
        }
        events.truncate(limit);
        Ok(Page::of_events(events, span, limit, |position| cursor(*position)))
    }

    async fn global_history(&self, span: &EventRange, limit: usize) -> Result<Page<Event>> {
        let started = BootInstant::now();
        let mut events = Vec::new();
        let mut from = start(span);
        loop {
            let found = self.read_buckets(span, from, limit).await?;
            events.extend(found.events);
            events.truncate(limit);
            let waits =
                events.is_empty() && found.too_new && BootInstant::now() < started.plus(MAX_SKEW_WAIT);
            if events.len() == limit || !(found.more || waits) {
                return Ok(Page::of_events(events, span, limit, |position| cursor(*position)));
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
        // A few times the average share of a bucket is mostly enough.
        let share = limit / 16 + 8;
        let buckets = self.keys.buckets().zip(0u64..);
        let read = buckets.map(|bucket| self.read_bucket(bucket, forward, from, share));
        let buckets = try_join_all(read).await?;
        let past = buckets.iter().map(|bucket| bucket.time).min().unwrap_or(0);
        let bounds = buckets.iter().filter_map(|bucket| bucket.bound);
        let bound = if forward { bounds.min() } else { bounds.max() };
        let mut events: Vec<_> = buckets.into_iter().flat_map(|bucket| bucket.events).collect();
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

    /// Reads about `count` events of one bucket, forward or backward from a position, which is not
    /// included.
    async fn read_bucket(
        &self,
        (bucket, number): (&Bucket, u64),
        forward: bool,
        from: Option<EventPosition>,
        count: usize,
    ) -> Result<BucketEvents> {
        // At the same instant, events of higher buckets come later.
        let includes = |from: EventPosition| {
            if forward { number > from.bucket } else { number < from.bucket }
        };
        let with = |cmd: &mut Cmd| {
            blocks::add_keys(cmd, bucket);
            cmd.arg(if forward { "forward" } else { "backward" });
            cmd.arg(from.map(EventPosition::id).unwrap_or_default());
            cmd.arg(u8::from(from.is_some_and(includes)));
            // A block has about 32 events, if they come in quick succession.
            cmd.arg(count / 32 + 1).arg(count);
        };
        let read: Value = BUCKET_HISTORY.run(&self.connections, ScriptCall::new(Repeat::Safe), with).await?;
        let Value::Array(parts) = read else { return Err(unreadable_part()) };
        let Ok([Value::Int(time), Value::Array(single), Value::Array(found), recent, all]) =
            <[Value; 5]>::try_from(parts)
        else {
            return Err(unreadable_part());
        };
        let (Value::BulkString(recent), Value::Int(all)) = (recent, all) else {
            return Err(unreadable_part());
        };
        let single = single.into_iter().filter_map(|entry| single_event(entry, number).transpose());
        let mut events = single.collect::<Result<Vec<_>>>()?;
        if !forward {
            events.reverse();
        }
        for block in found {
            let Value::BulkString(block) = block else { return Err(unreadable_part()) };
            events.extend(blocks::events(&block, number)?);
        }
        events.extend(blocks::events(&recent, number)?);
        let last = if forward { events.last() } else { events.first() };
        let bound = last.filter(|_| all == 0).map(|(position, _)| *position);
        events.retain(|(position, _)| {
            from.is_none_or(|from| if forward { *position > from } else { *position < from })
        });
        if !forward {
            events.reverse();
        }
        Ok(BucketEvents { time: u64::try_from(time).unwrap_or(0), events, bound })
    }
}

fn unreadable_part() -> Error {
    unreadable("a part of the history")
}

/// Parses an entry of a stream that has one event: id and fields. Returns `None` for the mark after
/// which earlier versions cannot read.
fn single_event(entry: Value, bucket: u64) -> Result<Option<(EventPosition, Event)>> {
    let bad = || unreadable("an event");
    let Value::Array(parts) = entry else { return Err(bad()) };
    match <[Value; 2]>::try_from(parts) {
        Ok([Value::BulkString(id), Value::Array(mut fields)]) => match fields.pop() {
            Some(Value::BulkString(event)) if event == [255] => Ok(None),
            Some(Value::BulkString(event)) => {
                let id = Cursor(String::from_utf8_lossy(&id).into_owned());
                Ok(Some((EventPosition { bucket, ..position(&id) }, codec::event(&event)?)))
            }
            _ => Err(bad()),
        },
        _ => Err(bad()),
    }
}

/// Returns the position from which a range is read.
fn start(span: &EventRange) -> Option<EventPosition> {
    match span {
        EventRange::Newest => None,
        EventRange::Before(cursor) | EventRange::After(cursor) => Some(position(cursor)),
    }
}

/// Parses `millis-seq`, optionally followed by `-bucket`. Anything else means the beginning.
fn position(cursor: &Cursor) -> EventPosition {
    let mut parts = cursor.0.split('-').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    EventPosition { millis: next(), seq: next(), bucket: next() }
}

fn cursor(position: EventPosition) -> Cursor {
    Cursor(format!("{}-{}-{}", position.millis, position.seq, position.bucket))
}
