//! Locks in a map with a mutex.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;

use crate::Result;
use crate::model::{
    Applied, Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Sweep, Swept, Timestamp, TokenFloor, Ttl,
};
use crate::store::lock_store::page_size;
use crate::store::support::mutex::lock;
use crate::store::wake::Waiters;
use crate::store::{
    Clock, Cursor, EventRange, ListEvents, ListLocks, LockStore, Page, Peek, WaiterSubscription,
};

/// Poll interval of callers that wait for a lock or for tasks; notifications wake them earlier.
pub(super) const POLL: Duration = Duration::from_secs(1);
/// Maximum number of events; the newest are kept.
const MAX_EVENTS: usize = 10_000;

#[derive(Debug)]
pub(super) struct MemoryLocks {
    clock: Clock,
    table: Mutex<Table>,
    waiters: Waiters,
}

#[derive(Debug, Default)]
struct Table {
    records: BTreeMap<LockName, LockRecord>,
    events: VecDeque<Event>,
    /// Lower bound of new tokens: above every token of a deleted lock.
    min_token: TokenFloor,
    /// Number of the oldest events that were dropped.
    dropped_events: u64,
}

impl MemoryLocks {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, table: Mutex::default(), waiters: Waiters::default() }
    }

    fn apply_now(&self, name: &LockName, op: &LockOp) -> Outcome {
        let mut table = lock(&self.table);
        let (since, now) = self.clock.read();
        let Applied { outcome, handed_over, events, .. } = match table.records.get_mut(name) {
            Some(record) => record.apply(op, now),
            None => {
                let mut record = LockRecord::without_record(name.clone(), table.min_token);
                let applied = record.apply(op, now);
                if applied.changed {
                    table.records.insert(name.clone(), record);
                }
                applied
            }
        };
        table.append(events);
        drop(table);
        if !handed_over.is_empty() {
            self.waiters.wake_local(name, handed_over, since);
        }
        outcome
    }
}

#[async_trait]
impl LockStore for MemoryLocks {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        Ok(self.apply_now(name, op))
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        Ok(lock(&self.table).records.get(name).cloned())
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let table = lock(&self.table);
        Ok(Peek::of(table.records.get(name), waiter, self.clock.now()))
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        let now = self.clock.now();
        let limit = page_size(query.limit) as usize;
        let prefix = query.prefix.as_deref().unwrap_or_default();
        let start =
            query.after.as_ref().map_or(Bound::Included(prefix), |after| Bound::Excluded(after.0.as_str()));
        let table = lock(&self.table);
        let items: Vec<_> = table
            .records
            .range::<str, _>((start, Bound::Unbounded))
            .map(|(_, record)| record)
            .skip_while(|record| record.name.as_str() < prefix)
            .take_while(|record| record.name.as_str().starts_with(prefix))
            .filter(|record| query.state.is_none_or(|state| state.matches(record, now)))
            .take(limit)
            .cloned()
            .collect();
        Ok(Page::of(items, limit, |last| Cursor(last.name.as_str().to_owned())))
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        let limit = page_size(query.limit) as usize;
        let table = lock(&self.table);
        let numbered = (table.dropped_events + 1..).zip(&table.events);
        let wanted = numbered.filter(|(_, event)| query.lock.as_ref().is_none_or(|lock| event.lock == *lock));
        let found: Vec<(u64, Event)> = match &query.span {
            EventRange::After(Cursor(after)) => {
                let after = after.parse().unwrap_or(0);
                wanted
                    .filter(|(seq, _)| *seq > after)
                    .take(limit)
                    .map(|(seq, event)| (seq, event.clone()))
                    .collect()
            }
            EventRange::Newest | EventRange::Before(_) => {
                let before = match &query.span {
                    EventRange::Before(Cursor(before)) => before.parse().unwrap_or(0),
                    _ => u64::MAX,
                };
                let all: Vec<_> = wanted.take_while(|(seq, _)| *seq < before).collect();
                all.into_iter().rev().take(limit).map(|(seq, event)| (seq, event.clone())).collect()
            }
        };
        Ok(Page::of_events(found, &query.span, limit, |seq| Cursor(seq.to_string())))
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.waiters.subscribe(lock, *waiter, POLL)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let now = self.clock.now();
        let due: Vec<LockName> = {
            let table = lock(&self.table);
            let due = table.records.values().filter(|record| record.next_end().is_some_and(|end| end <= now));
            due.take(limit as usize).map(|record| record.name.clone()).collect()
        };
        let mut swept = Swept::default();
        for name in due {
            if let Outcome::Swept(one) = self.apply_now(&name, &LockOp::Sweep(Sweep::default())) {
                swept += one;
            }
        }
        Ok(swept)
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        let mut table = lock(&self.table);
        let min_token = table.min_token.raised(self.clock.now(), idle);
        let idle = table.records.values().filter(|record| record.is_forgettable(min_token));
        let names: Vec<LockName> = idle.take(limit as usize).map(|record| record.name.clone()).collect();
        if !names.is_empty() {
            table.min_token = min_token;
        }
        for name in &names {
            table.records.remove(name);
        }
        Ok(u32::try_from(names.len()).unwrap_or(u32::MAX))
    }
}

impl Table {
    fn append(&mut self, events: Vec<Event>) {
        self.events.extend(events);
        while self.events.len() > MAX_EVENTS {
            self.events.pop_front();
            self.dropped_events += 1;
        }
    }
}
