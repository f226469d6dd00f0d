//! History of locks: conversion, queries and pruning of events.

use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

use super::codec::{mode, slots, token};
use super::queries::QueryConnection;
use crate::error::Result;
use crate::model::{Event, EventKind, Holder, LeaseId, LockName, Mode, Reason, Timestamp, Ttl};
use crate::store::lock_store::page_size;
use crate::store::postgres::columns::{
    OwnedParam, column, int4, int8, invalid_row, json_column, lock_name, micros, number, read_json, time,
    ttl_micros,
};
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, Sql, TEXT};
use crate::store::{Cursor, ListEvents, Page};

/// Number of columns of an event's row; additional columns of a statement follow them.
const EVENT_COLUMNS: usize = 12;
/// Maximum number of events that one statement prunes.
pub(crate) const PRUNE_PAGE: i64 = 10_000;
/// Maximum number of statements of one pruning: together they prune more events than the operations between
/// two prunings add.
const MAX_PRUNE_PAGES: u32 = 16;
/// Maximum age of an event.
const MAX_AGE: Ttl = Ttl::from_secs(90 * 24 * 3600);
/// Age from which no transaction can still be about to commit an event. Events are numbered before
/// they are committed, so a reader may see a higher number before a lower one. A reader that
/// continues from its last position must not skip the lower one: the page ends before a missing
/// number until the gap is this old.
const MAX_COMMIT_DELAY: Ttl = Ttl::from_secs(10);

impl QueryConnection {
    pub(crate) async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        let limit = page_size(query.limit);
        let size = i64::from(limit);
        let lock = query.lock.as_ref().map(LockName::as_str);
        let (from, forward) = query.span.numbered_start();
        let rows = match (forward, lock) {
            (true, None) => self.query(&EVENTS_AFTER, &[&from, &size, &self.connector.now()]).await?,
            (false, None) => self.query(&EVENTS_BEFORE, &[&from, &size]).await?,
            // The events of one lock are committed in order: there are no gaps that could still be
            // filled.
            (true, Some(lock)) => self.query(&EVENTS_OF_AFTER, &[&from, &size, &lock]).await?,
            (false, Some(lock)) => self.query(&EVENTS_OF_BEFORE, &[&from, &size, &lock]).await?,
        };
        let mut found =
            self.connector.map_error(rows.iter().map(read_event).collect::<Result<Vec<_>, _>>())?;
        if let (true, None, Some(row)) = (forward, lock, rows.first()) {
            let (now, pruned_to) = self.connector.map_error(read_bounds(row))?;
            found.truncate(count_before_gap(&found, from.max(pruned_to), now));
        }
        Ok(Page::of_events(found, &query.span, limit as usize, |number| Cursor(number.to_string())))
    }

    pub(crate) async fn prune(&self, keep: u32, now: Option<i64>) -> Result<()> {
        let age = ttl_micros(MAX_AGE);
        for _ in 0..MAX_PRUNE_PAGES {
            let rows = self.query(&PRUNE, &[&i64::from(keep), &age, &now]).await?;
            let is_full: Result<bool, PgError> = rows.first().map_or(Ok(false), |row| Ok(row.try_get(0)?));
            if !self.connector.map_error(is_full)? {
                break;
            }
        }
        Ok(())
    }
}

fn read_bounds(row: &Row) -> Result<(Timestamp, i64), PgError> {
    Ok((time(row, EVENT_COLUMNS)?, row.try_get::<_, Option<i64>>(EVENT_COLUMNS + 1)?.unwrap_or(0)))
}

/// Returns the number of events before the first gap that a transaction may still fill.
fn count_before_gap(events: &[(i64, Event)], from: i64, now: Timestamp) -> usize {
    let mut before = from;
    for (count, (seq, event)) in events.iter().enumerate() {
        if *seq > before + 1 && now < event.at.plus(MAX_COMMIT_DELAY) {
            return count;
        }
        before = *seq;
    }
    events.len()
}

/// Less common fields of an event.
#[derive(Default, PartialEq, Serialize, Deserialize)]
struct Extra {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Holder>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
}

pub(super) fn event_columns(events: &[Event]) -> Result<[OwnedParam<'_>; 10], PgError> {
    Ok([
        column(events, |event| micros(event.at)),
        column(events, |event| event.kind.to_string()),
        column(events, |event| int8(event.token.get())),
        column(events, |event| event.lease_id.as_uuid()),
        column(events, |event| event.holder.as_str()),
        column(events, |event| event.mode == Mode::Shared),
        column(events, |event| int4(event.slots.get())),
        column(events, |event| int8(event.after_micros)),
        column(events, |event| int8(event.renewals)),
        json_column(events, |event| {
            let extra = Extra { until: event.until, by: event.by.clone(), reason: event.reason.clone() };
            (extra != Extra::default()).then_some(extra)
        })?,
    ])
}

fn read_event(row: &Row) -> Result<(i64, Event), PgError> {
    let extra: Extra = read_json(row, 11)?.unwrap_or_default();
    let event = Event {
        at: time(row, 2)?,
        lock: lock_name(row, 1)?,
        kind: read_kind(row.try_get(3)?)?,
        token: token(row, 4)?,
        lease_id: LeaseId::from_uuid(row.try_get(5)?),
        holder: Holder::new(row.try_get::<_, &str>(6)?).map_err(invalid_row)?,
        mode: mode(row, 7)?,
        slots: slots(row, 8)?,
        after_micros: number(row, 9)?,
        renewals: number(row, 10)?,
        until: extra.until,
        by: extra.by,
        reason: extra.reason,
    };
    Ok((row.try_get(0)?, event))
}

fn read_kind(text: &str) -> Result<EventKind, PgError> {
    use serde::de::IntoDeserializer;
    let text: serde::de::value::StrDeserializer<'_, serde::de::value::Error> = text.into_deserializer();
    EventKind::deserialize(text).map_err(invalid_row)
}

// --- statements -----------------------------------------------------------------------------------

pub(crate) static EVENTS_AFTER: Sql = Sql::new(
    &[BIG, BIG],
    "SELECT $EVENT, (SELECT $NOW), (SELECT value::bigint FROM $s.meta WHERE key = 'pruned_to')
    FROM $s.events e WHERE e.seq > $1 ORDER BY e.seq LIMIT $2",
);

pub(crate) static EVENTS_BEFORE: Sql =
    Sql::new(&[BIG, BIG], "SELECT $EVENT FROM $s.events e WHERE e.seq < $1 ORDER BY e.seq DESC LIMIT $2");

pub(crate) static EVENTS_OF_AFTER: Sql = Sql::new(
    &[BIG, BIG, TEXT],
    "SELECT $EVENT FROM $s.events e WHERE e.lock = $3 AND e.seq > $1 ORDER BY e.seq LIMIT $2",
);

pub(crate) static EVENTS_OF_BEFORE: Sql = Sql::new(
    &[BIG, BIG, TEXT],
    "SELECT $EVENT FROM $s.events e WHERE e.lock = $3 AND e.seq < $1 ORDER BY e.seq DESC LIMIT $2",
);

/// Deletes the oldest events: those beyond the newest `$1`, and those older than `$2` µs. The
/// newest event stays. The work per call is bounded, and negligible if there is nothing to delete. Returns
/// whether there may be more to delete; no row if nothing was deleted.
pub(crate) static PRUNE: Sql = Sql::built(&[BIG, BIG], || {
    format!(
        "WITH bounds AS (
            SELECT (SELECT min(seq) FROM $s.events) AS first, (SELECT max(seq) FROM $s.events) AS last,
                   set_config('lock_timeout', '2000', true)),
        old AS (
            SELECT max(seq) AS seq FROM (SELECT seq, at FROM $s.events ORDER BY seq LIMIT {PRUNE_PAGE}) o
            WHERE at < (SELECT $NOW) - $2
              AND (SELECT at FROM $s.events WHERE seq = (SELECT first FROM bounds)) < (SELECT $NOW) - $2),
        range AS (
            SELECT first, least(first + {PRUNE_PAGE} - 1, last - 1, greatest(last - $1, coalesce(old.seq, 0))) AS last
            FROM bounds, old),
        deleted AS (DELETE FROM $s.events e USING range r WHERE e.seq <= r.last)
        UPDATE $s.meta m SET value = r.last::text FROM range r
        WHERE m.key = 'pruned_to' AND r.last >= r.first AND r.last > m.value::bigint
        RETURNING r.last = r.first + {PRUNE_PAGE} - 1"
    )
});
