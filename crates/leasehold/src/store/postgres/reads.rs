//! Paged reads of records and history. Reads have a connection of their own and wait for no lock.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_postgres::Row;
use uuid::Uuid;

use super::gate::Gate;
use super::idle::UNUSED;
use super::near::Near;
use super::rows::{self, EVENT_COLUMNS, LOCK_COLUMNS, LockRow, time};
use super::session::{DEADLINE, Param, Session, within};
use super::sql::Sql;
use super::trouble::{Again, Fail};
use crate::error::Result;
use crate::model::{Event, LeaseId, LockName, LockRecord, Timestamp, Ttl};
use crate::store::BootInstant;
use crate::store::lock_store::page_size;
use crate::store::{Cursor, EventRange, ListEvents, ListLocks, LockState, Page, Peek, Recipient};

/// Age from which no transaction can still be about to commit an event. Events are numbered before
/// they are committed, so a reader may see a higher number before a lower one. A reader that
/// continues from its last position must not skip the lower one: the page ends before a missing
/// number until the gap is this old.
const UNDER_WAY: Ttl = Ttl::from_secs(10);

/// Connection for reads.
#[derive(Debug)]
pub(super) struct Desk {
    gate: Arc<Gate>,
    near: Arc<Near>,
    session: Mutex<Option<Arc<Session>>>,
    /// Name of the last lock that was examined for purging.
    pub(super) forget_after: Mutex<String>,
}

impl Desk {
    pub(super) fn new(gate: Arc<Gate>, near: Arc<Near>) -> Self {
        Self { gate, near, session: Mutex::new(None), forget_after: Mutex::default() }
    }

    /// Returns the connection to the pool if it has been unused for [`UNUSED`]. Returns the number
    /// of connections that the desk still has, 0 or 1.
    pub(super) fn lay_down_unused(&self, now: BootInstant) -> usize {
        let Ok(mut open) = self.session.try_lock() else { return 1 };
        let unused = |session: &Arc<Session>| session.unused_for(now) >= UNUSED;
        // A long-running query holds a clone of the session.
        if open.as_ref().is_some_and(|session| {
            unused(session)
                && Arc::strong_count(session) <= 1 + 2 * usize::from(self.gate.is_listening(session))
        }) {
            open.take().into_iter().for_each(|session| self.gate.keep(session));
        }
        usize::from(open.is_some())
    }

    /// Executes one query, and retries once if the connection turns out to be closed.
    pub(super) async fn ask(&self, what: Sql, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let asked = within(DEADLINE, self.ask_twice(what, params));
        asked.await.map_err(|fail| fail.explain(&self.gate.place))
    }

    async fn ask_twice(&self, what: Sql, params: &[Param<'_>]) -> Result<Vec<Row>, Fail> {
        match self.ask_once(what, params).await {
            Err(fail) if fail.again() != Again::Never => self.ask_once(what, params).await,
            asked => asked,
        }
    }

    /// Executes a short query on the connection with the lowest latency.
    async fn ask_quickly(&self, what: Sql, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let asked = within(DEADLINE, async {
            if let Some(session) = self.near.idle().or_else(|| self.gate.listening()) {
                // An error here is ignored: the regular path below reports it.
                let asked = within(DEADLINE / 5, async { Ok(session.query(what, params).await?) });
                if let Ok(rows) = asked.await {
                    return Ok(rows);
                }
            }
            self.ask_twice(what, params).await
        });
        asked.await.map_err(|fail| fail.explain(&self.gate.place))
    }

    async fn ask_once(&self, what: Sql, params: &[Param<'_>]) -> Result<Vec<Row>, Fail> {
        let session = self.session().await?;
        let answer = session.query(what, params).await.map_err(Fail::from);
        if let Err(fail) = &answer {
            self.gate.learn(fail);
            if fail.again() != Again::Never {
                session.give_up();
                *self.session.lock().await = None;
            }
        }
        answer
    }

    pub(super) async fn session(&self) -> Result<Arc<Session>, Fail> {
        let mut open = self.session.lock().await;
        match &*open {
            Some(session) if !session.is_closed() => Ok(session.clone()),
            _ => {
                let session = self.gate.open().await?;
                *open = Some(session.clone());
                Ok(session)
            }
        }
    }

    pub(super) fn readable<T>(&self, read: Result<T, Fail>) -> Result<T> {
        read.map_err(|fail| fail.explain(&self.gate.place))
    }

    pub(super) async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let rows = self.ask_quickly(Sql::Get, &[&name.as_str()]).await?;
        let record = rows.first().map(|row| LockRow::read_whole(row, LOCK_COLUMNS)).transpose();
        self.readable(record)
    }

    /// Sends notices to other processes: one payload each, without the name of a lock.
    pub(super) async fn notify(&self, to: &[Recipient]) -> Result<()> {
        let (channel, words) =
            (self.gate.channel(), to.iter().map(|to| to.as_uuid().to_string()).collect::<Vec<_>>());
        self.ask_quickly(Sql::Notify, &[&channel, &words]).await.map(drop)
    }

    pub(super) async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let rows = self.ask_quickly(Sql::Peek, &[&name.as_str(), &self.gate.now()]).await?;
        match rows.first() {
            Some(row) => self.readable(peek(row, waiter)),
            None => Ok(Peek::of(None, waiter, self.now().await?)),
        }
    }

    pub(super) async fn now(&self) -> Result<Timestamp> {
        let rows = self.ask_quickly(Sql::Now, &[&self.gate.now()]).await?;
        let row = rows.first().ok_or_else(|| Fail::Unreadable("there is no time".into()));
        self.readable(row.and_then(|row| time(row, 0)))
    }

    pub(super) async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        let limit = page_size(ask.limit);
        let prefix = ask.prefix.clone().unwrap_or_default();
        let end = after_all_with(&prefix);
        let busy = ask.state.is_some_and(|state| state != LockState::Free);
        let mut after = ask.after.clone().map(|after| after.0).unwrap_or_default();
        let mut items = Vec::new();
        loop {
            let now = self.gate.now();
            let rows = self.ask(Sql::List, &[&after, &prefix, &end, &busy, &i64::from(limit), &now]).await?;
            let last = rows.len() < limit as usize;
            for row in &rows {
                let (record, now) = self.readable(
                    LockRow::read_whole(row, LOCK_COLUMNS + 1)
                        .and_then(|record| Ok((record, time(row, LOCK_COLUMNS)?))),
                )?;
                record.name.as_str().clone_into(&mut after);
                if ask.state.is_none_or(|state| state.matches(&record, now)) {
                    items.push(record);
                }
                if items.len() == limit as usize {
                    return Ok(Page { items, next: Some(Cursor(after)) });
                }
            }
            if last {
                return Ok(Page { items, next: None });
            }
        }
    }

    pub(super) async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        let limit = page_size(ask.limit);
        let size = i64::from(limit);
        let lock = ask.lock.as_ref().map(LockName::as_str);
        let (from, forward) = match &ask.span {
            EventRange::After(after) => (number(after), true),
            EventRange::Before(before) => (number(before), false),
            EventRange::Newest => (i64::MAX, false),
        };
        let rows = match (forward, lock) {
            (true, None) => self.ask(Sql::EventsAfter, &[&from, &size, &self.gate.now()]).await?,
            (false, None) => self.ask(Sql::EventsBefore, &[&from, &size]).await?,
            // The events of one lock are committed in order: there are no gaps that could still be
            // filled.
            (true, Some(lock)) => self.ask(Sql::EventsOfAfter, &[&from, &size, &lock]).await?,
            (false, Some(lock)) => self.ask(Sql::EventsOfBefore, &[&from, &size, &lock]).await?,
        };
        let mut found = self.readable(rows.iter().map(rows::event).collect::<Result<Vec<_>, _>>())?;
        if let (true, None, Some(row)) = (forward, lock, rows.first()) {
            let (now, pruned_to) = self.readable(times(row))?;
            found.truncate(settled(&found, from.max(pruned_to), now));
        }
        let last = found.last().map(|(seq, _)| Cursor(seq.to_string()));
        let next = match &ask.span {
            EventRange::After(after) => Some(last.unwrap_or_else(|| after.clone())),
            _ => last.filter(|_| found.len() == limit as usize),
        };
        Ok(Page { items: found.into_iter().map(|(_, event)| event).collect(), next })
    }
}

/// Reads a row of `Sql::Peek`: the lease's id and token, `held`, the lease, `wake_at`, the optional
/// record, the time.
fn peek(row: &Row, waiter: &LeaseId) -> Result<Peek, Fail> {
    let now = time(row, 14)?;
    let wake_at = row.try_get::<_, Option<i64>>(12)?.map(|_| time(row, 12)).transpose()?;
    let in_columns = row.try_get::<_, Option<Uuid>>(0)?.is_some_and(|id| id == *waiter.as_uuid());
    let (lease, has_queue) = match (row.try_get::<_, Option<&str>>(13)?, row.try_get(2)?) {
        (Some(text), _) => {
            let (record, is_listed) = rows::stored_record(text)?;
            (record.lease(waiter).cloned(), is_listed || !record.waiters.is_empty())
        }
        (None, Some(false)) => (None, false),
        (None, held @ (None | Some(true))) => {
            let lease =
                in_columns.then(|| rows::lease_at(row, 3, *waiter, rows::token(row, 1)?)).transpose()?;
            (lease, held.is_none())
        }
    };
    Ok(Peek { lease, wake_at: wake_at.filter(|_| has_queue), holder_is_gone: false, now })
}

fn times(row: &Row) -> Result<(Timestamp, i64), Fail> {
    Ok((time(row, EVENT_COLUMNS)?, row.try_get::<_, Option<i64>>(EVENT_COLUMNS + 1)?.unwrap_or(0)))
}

/// Returns the number of events before the first gap that a transaction may still fill.
fn settled(events: &[(i64, Event)], from: i64, now: Timestamp) -> usize {
    let mut before = from;
    for (count, (seq, event)) in events.iter().enumerate() {
        if *seq > before + 1 && now < event.at.plus(UNDER_WAY) {
            return count;
        }
        before = *seq;
    }
    events.len()
}

/// Returns the least text after all texts with this prefix, or `None` if there is no upper bound.
pub(super) fn after_all_with(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

fn number(cursor: &Cursor) -> i64 {
    cursor.0.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_an_end() {
        assert_eq!(after_all_with("ab").as_deref(), Some("ac"));
        assert_eq!(after_all_with("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(after_all_with("a\u{d7ff}").as_deref(), Some("a\u{e000}"));
        assert_eq!(after_all_with(""), None);
    }
}
