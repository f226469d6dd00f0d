//! Events that have moved out of the locks' documents.
//!
//! The newest events of a lock stay in its own document, which is written anyway; older ones move out
//! in batches of a fixed size, so that the keys of the batches are known without a search.

use super::lock_doc::{LockDoc, parse, write};
use crate::Result;
use crate::model::{Event, LockName, Timestamp, Ttl};
use crate::store::{Cursor, DocumentStore, EventRange, NewDocument, Page, RESERVED_PREFIX};

const RETENTION: Ttl = Ttl::from_secs(90 * 24 * 3600);
/// Maximum number of batches that move out in one step, which must end within seconds.
const MAX_SPILLS: usize = 8;

/// Maximum number of batches that are read at once.
const MAX_READS: usize = 64;

pub(super) struct Archive<'a, D>(pub(super) &'a D);

impl<D: DocumentStore> Archive<'_, D> {
    /// Moves the oldest of many events to separate documents, before the lock's own document is
    /// written without them. The events are immutable by now: every writer of such a document writes
    /// the same content, so a later conflict on the lock's own document does no harm.
    pub(super) async fn spill(&self, doc: &mut LockDoc) -> Result<()> {
        for _ in 0..MAX_SPILLS {
            if doc.events.len() < self.size().saturating_mul(2) {
                break;
            }
            self.copy(doc).await?;
            self.drop_oldest(doc);
        }
        Ok(())
    }

    /// Copies the oldest of sufficiently many events while the lock's own document is written
    /// with them, so that the copy costs no extra time. Returns whether the copy succeeded, so that
    /// the next document may be written without these events.
    pub(super) async fn copy_ahead(&self, doc: Option<&LockDoc>) -> bool {
        match doc {
            Some(doc) if doc.events.len() >= self.size() => self.copy(doc).await.is_ok(),
            _ => false,
        }
    }

    /// Removes the copied events from the document.
    pub(super) fn drop_oldest(&self, doc: &mut LockDoc) {
        doc.events.drain(..self.size());
        doc.first_event += self.0.batch();
    }

    async fn copy(&self, doc: &LockDoc) -> Result<()> {
        let body = write(&&doc.events[..self.size()])?;
        let draft = NewDocument { body, annotations: Vec::new(), keep: Some(RETENTION) };
        self.0.put_if(&key(&doc.record.name, doc.first_event), None, draft).await.map(drop)
    }

    fn size(&self) -> usize {
        to_usize(self.0.batch())
    }

    pub(super) async fn list_of_lock(
        &self,
        doc: &LockDoc,
        range: &EventRange,
        limit: u64,
    ) -> Result<Page<Event>> {
        let (number, end) = (|cursor: &Cursor| cursor.0.parse::<u64>().unwrap_or(0), doc.next_event());
        let found = match range {
            EventRange::After(after) => {
                let mut from = number(after) + 1;
                if from < doc.first_event && self.batch(doc, from).await?.is_none() {
                    from = self.oldest_batch(doc, from).await?;
                }
                let to = end.min(from.saturating_add(limit));
                let mut found = self.between(doc, from, to).await?;
                found.reverse();
                found
            }
            EventRange::Newest => self.between(doc, end.saturating_sub(limit), end).await?,
            EventRange::Before(before) => {
                let to = number(before).min(end);
                self.between(doc, to.saturating_sub(limit), to).await?
            }
        };
        Ok(Page::of_events(found, range, to_usize(limit), |number| Cursor(number.to_string())))
    }

    /// Returns a page of the history of all these locks. Events of different locks are ordered only
    /// by their time.
    pub(super) async fn list_of_all(
        &self,
        docs: &[LockDoc],
        range: &EventRange,
        limit: u64,
    ) -> Result<Page<Event>> {
        let position = match range {
            EventRange::Newest => None,
            EventRange::Before(cursor) | EventRange::After(cursor) => Some(Position::parse(cursor)),
        };
        let mut found: Vec<(Position, Event)> = Vec::new();
        for doc in docs {
            let (mut to, mut of_this) = (doc.next_event(), 0);
            while to > 1 {
                let from = to.saturating_sub(limit).max(1);
                let events = self.between(doc, from, to).await?;
                let is_whole = events.len() as u64 == to - from;
                let placed = events.into_iter().map(|(number, event)| (Position::of(number, &event), event));
                let count = found.len();
                let oldest = placed.fold(None, |_, (at, event)| {
                    let wanted = match range {
                        EventRange::Newest => true,
                        EventRange::Before(_) => Some(&at) < position.as_ref(),
                        EventRange::After(_) => Some(&at) > position.as_ref(),
                    };
                    if wanted {
                        found.push((at.clone(), event));
                    }
                    Some(at)
                });
                of_this += (found.len() - count) as u64;
                let enough = match range {
                    EventRange::After(_) => oldest <= position,
                    _ => of_this >= limit,
                };
                if enough || !is_whole {
                    break;
                }
                to = from;
            }
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        if !matches!(range, EventRange::After(_)) {
            found.reverse();
        }
        let limit = to_usize(limit);
        found.truncate(limit);
        Ok(Page::of_events(found, range, limit, Position::cursor))
    }

    /// Returns the events with numbers from `from` to before `to`, newest first. The list ends early
    /// where history has been deleted.
    async fn between(&self, doc: &LockDoc, from: u64, to: u64) -> Result<Vec<(u64, Event)>> {
        let wanted = |(number, _): &(u64, Event)| (from..to).contains(number);
        let mut found: Vec<_> = (doc.first_event..).zip(doc.events.iter().cloned()).filter(wanted).collect();
        found.reverse();
        let mut end = to.min(doc.first_event);
        while end > from.max(1) {
            let mut firsts = Vec::new();
            while end > from.max(1) && firsts.len() < MAX_READS {
                end = self.first_of(end - 1);
                firsts.push(end);
            }
            let keys: Vec<String> = firsts.iter().map(|first| key(&doc.record.name, *first)).collect();
            for (first, batch) in firsts.into_iter().zip(self.0.get_all(&keys).await?) {
                let Some(batch) = batch else { return Ok(found) };
                let events: Vec<Event> = parse(&batch.body)?;
                let events: Vec<_> = (first..).zip(events).filter(wanted).collect();
                found.extend(events.into_iter().rev());
            }
        }
        Ok(found)
    }

    /// Returns the first number at or after `from` whose batch still exists. Batches are deleted in
    /// the order in which they were written.
    async fn oldest_batch(&self, doc: &LockDoc, from: u64) -> Result<u64> {
        let batch = self.0.batch();
        let (mut deleted, mut existing) = ((from - 1) / batch, (doc.first_event - 1) / batch);
        while existing - deleted > 1 {
            let middle = deleted.midpoint(existing);
            match self.batch(doc, middle * batch + 1).await? {
                Some(_) => existing = middle,
                None => deleted = middle,
            }
        }
        Ok(existing * batch + 1)
    }

    /// Returns the batch that contains this event, if it still exists.
    async fn batch(&self, doc: &LockDoc, number: u64) -> Result<Option<Vec<Event>>> {
        let found = self.0.get(&key(&doc.record.name, self.first_of(number))).await?;
        found.map(|found| parse(&found.body)).transpose()
    }

    /// Returns the number of the first event in the batch that contains this one.
    fn first_of(&self, number: u64) -> u64 {
        let batch = self.0.batch();
        (number - 1) / batch * batch + 1
    }
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn key(name: &LockName, first: u64) -> String {
    format!("{RESERVED_PREFIX}events/{first:020}/{name}")
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    at: Timestamp,
    number: u64,
    lock: String,
}

impl Position {
    fn of(number: u64, event: &Event) -> Self {
        Self { at: event.at, number, lock: event.lock.as_str().to_owned() }
    }

    fn cursor(&self) -> Cursor {
        Cursor(format!("{}/{}/{}", self.at.as_micros(), self.number, self.lock))
    }

    fn parse(cursor: &Cursor) -> Self {
        let mut parts = cursor.0.splitn(3, '/');
        let mut number = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        let (at, number) = (Timestamp::from_micros(number()), number());
        Self { at, number, lock: parts.next().unwrap_or_default().to_owned() }
    }
}
