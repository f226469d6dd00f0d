//! Locks on any engine that can compare and swap a document: load, apply, save if nobody was faster, else again.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::lock_store::page_size;
use super::{
    Abilities, Changes, Cursor, Doc, DocStore, Hosts, ListEvents, ListLocks, LockStore, Page, PutIf, Span,
    Store,
};
use crate::error::{Error, Result, Trouble};
use crate::model::{Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Sweep, Swept, Timestamp, Ttl};

/// An engine whose locks are documents.
pub struct Cas<D> {
    locks: CasLocks<D>,
}

/// The locks of such an engine.
pub struct CasLocks<D> {
    docs: D,
}

/// So often a clash is tried again before the caller is told that the lock is too busy.
const MAX_TRIES: u32 = 64;
/// The newest events of a lock stay in its own document, which is written anyway; older ones move out in batches.
const MAX_TAIL: usize = 64;
const POLL: Duration = Duration::from_millis(100);
const LOCKS: &str = "lock/";
const EVENTS: &str = "events/";

impl<D: DocStore> Cas<D> {
    /// Locks over these documents.
    pub fn new(docs: D) -> Self {
        Self { locks: CasLocks { docs } }
    }
}

#[async_trait]
impl<D: DocStore> Store for Cas<D> {
    fn abilities(&self) -> Abilities {
        Abilities {
            engine: "cas",
            hosts: Hosts::Many,
            min_ttl: Ttl::from_millis(100),
            poll: POLL,
            wakes: false,
            sees_the_dead: false,
            lasting: true,
        }
    }

    fn url(&self) -> String {
        "cas:".to_owned()
    }

    fn locks(&self) -> &dyn LockStore {
        &self.locks
    }
}

/// A lock's document: its record, and the newest lines of its history.
#[derive(Serialize, Deserialize)]
struct LockDoc {
    record: LockRecord,
    /// The number of the first event in the tail.
    first: u64,
    tail: Vec<Event>,
}

impl LockDoc {
    fn read(name: &LockName, doc: Option<&Doc>) -> Result<Self> {
        match doc {
            None => Ok(Self { record: LockRecord::new(name.clone()), first: 1, tail: Vec::new() }),
            Some(doc) => parse(&doc.body),
        }
    }
}

impl<D: DocStore> CasLocks<D> {
    /// Moves the older half of a full tail to a document of its own. They are facts by now: whoever writes that
    /// document writes the same, so it does not matter if the lock's own document then clashes.
    async fn spill(&self, doc: &mut LockDoc) -> Result<()> {
        if doc.tail.len() < MAX_TAIL {
            return Ok(());
        }
        let old: Vec<Event> = doc.tail.drain(..MAX_TAIL / 2).collect();
        let key = format!("{EVENTS}{}/{:020}", doc.record.name, doc.first);
        self.docs.put_if(&key, None, write(&old)?).await?;
        doc.first += old.len() as u64;
        Ok(())
    }

    async fn locks(&self, after: Option<Cursor>, limit: u32, prefix: &str) -> Result<Page<LockRecord>> {
        let page = self.docs.list(&format!("{LOCKS}{prefix}"), after, limit).await?;
        let records = page.items.iter().map(|(_, doc)| parse::<LockDoc>(&doc.body).map(|doc| doc.record));
        Ok(Page { items: records.collect::<Result<_>>()?, next: page.next })
    }

    /// Every event of a lock, oldest first, with its number.
    async fn events_of(&self, name: &LockName) -> Result<Vec<(u64, Event)>> {
        let Some(doc) = self.docs.get(&format!("{LOCKS}{name}")).await? else {
            return Ok(Vec::new());
        };
        let doc: LockDoc = parse(&doc.body)?;
        let mut all = Vec::new();
        let (prefix, mut after) = (format!("{EVENTS}{name}/"), None);
        loop {
            let page = self.docs.list(&prefix, after, 0).await?;
            for (key, spilled) in &page.items {
                // A lock may be named like the beginning of another one's documents.
                let Ok(first) = key[prefix.len()..].parse::<u64>() else {
                    continue;
                };
                if first < doc.first {
                    all.extend((first..).zip(parse::<Vec<Event>>(&spilled.body)?));
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        all.extend((doc.first..).zip(doc.tail));
        Ok(all)
    }
}

#[async_trait]
impl<D: DocStore> LockStore for CasLocks<D> {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let key = format!("{LOCKS}{name}");
        let mut current = self.docs.get(&key).await?;
        for attempt in 0..MAX_TRIES {
            let mut doc = LockDoc::read(name, current.as_ref())?;
            let now = self.docs.now_for(&doc.record).await?;
            let applied = doc.record.apply(op, now);
            if !applied.changed {
                return Ok(applied.outcome);
            }
            self.spill(&mut doc).await?;
            doc.tail.extend(applied.events);
            match self.docs.put_if(&key, current.map(|doc| doc.version), write(&doc)?).await? {
                PutIf::Written(_) => return Ok(applied.outcome),
                PutIf::Clash(newer) => current = newer,
            }
            // The one that was faster has made progress; spread the others out.
            let spread = Duration::from_micros(fastrand::u64(0..=100 << attempt.min(8)));
            tokio::time::sleep(spread).await;
        }
        let message = format!("lock '{name}' is changed by too many at once: {MAX_TRIES} tries lost");
        Err(Error::store(
            Trouble::Unavailable,
            message,
            "try again; wait in the queue rather than asking in a loop",
        ))
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let doc = self.docs.get(&format!("{LOCKS}{name}")).await?;
        doc.map(|doc| parse::<LockDoc>(&doc.body).map(|doc| doc.record)).transpose()
    }

    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        let now = self.docs.now().await?;
        let limit = page_size(ask.limit) as usize;
        let prefix = ask.prefix.as_deref().unwrap_or_default();
        let (mut after, mut items) = (ask.after.clone(), Vec::new());
        loop {
            let page = self.locks(after, ask.limit, prefix).await?;
            for record in page.items {
                if ask.state.is_none_or(|state| state.matches(&record, now)) {
                    items.push(record);
                }
                if items.len() == limit {
                    let next = items.last().map(|last| Cursor(format!("{LOCKS}{}", last.name)));
                    return Ok(Page { items, next });
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(Page { items, next: None });
            }
        }
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        let mut all = match &ask.lock {
            Some(lock) => self.events_of(lock).await?,
            None => {
                let mut all = Vec::new();
                let mut after = None;
                loop {
                    let page = self.locks(after, 0, "").await?;
                    for record in page.items {
                        all.extend(self.events_of(&record.name).await?);
                    }
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
                // There is no order between locks but their time: good enough to read, and stable.
                all.sort_by_key(|(seq, event)| (event.at, *seq));
                all.into_iter().map(|(_, event)| event).zip(1..).map(|(event, seq)| (seq, event)).collect()
            }
        };
        let limit = page_size(ask.limit) as usize;
        let number = |cursor: &Cursor| cursor.0.parse::<u64>().unwrap_or(0);
        match &ask.span {
            Span::After(after) => all.retain(|(seq, _)| *seq > number(after)),
            Span::Before(before) => all.retain(|(seq, _)| *seq < number(before)),
            Span::Newest => {}
        }
        if !matches!(ask.span, Span::After(_)) {
            all.reverse();
        }
        all.truncate(limit);
        let last = all.last().map(|(seq, _)| Cursor(seq.to_string()));
        let next = match &ask.span {
            Span::After(after) => Some(last.unwrap_or_else(|| after.clone())),
            _ => last.filter(|_| all.len() == limit),
        };
        Ok(Page { items: all.into_iter().map(|(_, event)| event).collect(), next })
    }

    async fn now(&self) -> Result<Timestamp> {
        self.docs.now().await
    }

    fn changes(&self, waiter: &LeaseId) -> Changes {
        Changes::polling(*waiter, POLL)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let (now, mut swept, mut visited, mut after) = (self.docs.now().await?, Swept::default(), 0, None);
        loop {
            let page = self.locks(after, 0, "").await?;
            for record in page.items {
                if visited < limit && record.next_end().is_some_and(|end| end <= now) {
                    visited += 1;
                    if let Outcome::Swept(one) =
                        self.apply(&record.name, &LockOp::Sweep(Sweep::default())).await?
                    {
                        swept += one;
                    }
                }
            }
            after = page.next;
            if after.is_none() || visited >= limit {
                return Ok(swept);
            }
        }
    }
}

fn parse<T: for<'de> Deserialize<'de>>(body: &str) -> Result<T> {
    serde_json::from_str(body).map_err(|error| {
        Error::store(Trouble::Broken, "a stored lock cannot be read", "restore it from a backup")
            .because(error)
    })
}

fn write<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| {
        Error::store(Trouble::Broken, "a lock cannot be written", "please report this").because(error)
    })
}
