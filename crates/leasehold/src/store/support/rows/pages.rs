//! Pages of lists and of numbered events, for engines with tables.

use crate::model::Event;
use crate::store::{Cursor, EventRange, Page};

/// Returns a page that has a successor if it is full.
pub(crate) fn page<T>(items: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> Page<T> {
    let next = items.last().filter(|_| items.len() == limit as usize).map(|last| Cursor(cursor(last)));
    Page { items, next }
}

/// Returns the number of the event at which a range begins, and whether the range goes forward from it.
pub(crate) fn event_start(span: &EventRange) -> (i64, bool) {
    let number = |cursor: &Cursor| cursor.0.parse().unwrap_or(0);
    match span {
        EventRange::After(after) => (number(after), true),
        EventRange::Before(before) => (number(before), false),
        EventRange::Newest => (i64::MAX, false),
    }
}

/// Returns a page of numbered events. A reader that follows new events continues after the last one.
pub(crate) fn event_page(found: Vec<(i64, Event)>, span: &EventRange, limit: u32) -> Page<Event> {
    let last = found.last().map(|(number, _)| Cursor(number.to_string()));
    let next = match span {
        EventRange::After(after) => Some(last.unwrap_or_else(|| after.clone())),
        _ => last.filter(|_| found.len() == limit as usize),
    };
    Page { items: found.into_iter().map(|(_, event)| event).collect(), next }
}
