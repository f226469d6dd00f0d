//! Newest events of a lock, stored inline in its row, which is written anyway.

use std::fmt::Write;

use crate::model::{Event, Timestamp};
use crate::store::sqlite::codec::{from_json, micros, to_json};

/// Size in bytes above which the inline events move to the events table. With this size they
/// and their record stay within one page of the file.
const MAX_BYTES: usize = 2600;

/// Newest events of a lock: one line per event, with its number and the event as JSON.
#[derive(Default)]
pub(super) struct InlineEvents(String);

impl InlineEvents {
    pub(super) fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(super) fn as_text(&self) -> &str {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_long(&self) -> bool {
        self.0.len() > MAX_BYTES
    }

    pub(super) fn push(&mut self, seq: i64, event: &Event) -> rusqlite::Result<()> {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{seq} {}", to_json(event)?);
        Ok(())
    }

    /// Returns the number of the newest event.
    pub(super) fn last(&self) -> Option<i64> {
        self.0.lines().next_back().and_then(split).map(|(seq, _)| seq)
    }

    /// Returns numbers and events as stored, oldest first.
    pub(super) fn lines(&self) -> impl DoubleEndedIterator<Item = (i64, &str)> {
        self.0.lines().filter_map(split)
    }

    /// Returns numbers and events, newest first.
    pub(super) fn events(&self) -> rusqlite::Result<Vec<(i64, Event)>> {
        self.lines().rev().map(|(seq, event)| Ok((seq, from_json(event, 0)?))).collect()
    }
}

fn split(line: &str) -> Option<(i64, &str)> {
    let (seq, event) = line.split_once(' ')?;
    Some((seq.parse().ok()?, event))
}

/// Assigns numbers to the events of one connection: in the order in which they happen, also across
/// connections.
///
/// A number is the engine's time in microseconds times `PER_MICRO`. A writer reads that time while
/// holding the write lock, so its time is later than that of every earlier writer.
pub(in crate::store::sqlite) struct EventNumbers {
    last: i64,
}

/// Number of event numbers per microsecond.
const PER_MICRO: i64 = 1024;

impl EventNumbers {
    /// Continues after `last`. After a restart of the machine the clock may be behind the events.
    pub(in crate::store::sqlite) fn after(last: i64) -> Self {
        Self { last }
    }

    /// Returns the next number for a lock whose newest event has the number `newest`.
    pub(super) fn next(&mut self, now: Timestamp, newest: Option<i64>) -> i64 {
        let now = micros(now).saturating_mul(PER_MICRO);
        self.last = now.max(self.last + 1).max(newest.map_or(0, |newest| newest + 1));
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_whatever_the_clock_does() {
        let mut numbers = EventNumbers::after(5);
        let at = Timestamp::from_micros;
        let given = [
            numbers.next(at(0), None),
            numbers.next(at(1), None),
            numbers.next(at(1), Some(9_000)),
            numbers.next(at(0), None),
        ];
        assert_eq!(given, [6, 1024, 9_001, 9_002]);
    }
}
