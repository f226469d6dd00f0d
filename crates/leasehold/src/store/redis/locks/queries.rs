//! Queries: one lock, the state that a waiter needs, and lists.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use redis::Cmd;

use super::super::error::unreadable;
use super::super::keys::{Bucket, prefix_end};
use super::super::scripts::{PEEK, READ, ScriptCall, script_time};
use super::apply::Locks;
use super::codec;
use crate::error::Result;
use crate::model::{LeaseId, LockName, LockRecord, Timestamp};
use crate::store::lock_store::page_size;
use crate::store::repeat::Repeat;
use crate::store::{Cursor, ListLocks, Page, Peek};

impl Locks {
    pub(in crate::store::redis) async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let key = self.keys.bucket_of(name).lock(name.as_str());
        let stored: Option<Vec<u8>> = self.query(redis::cmd("GET").arg(key)).await?;
        match stored {
            Some(stored) => self.record(name, stored).await,
            None => Ok(None),
        }
    }

    /// Reads the head of the record and its leases: neither the list of waiters nor their ids.
    pub(in crate::store::redis) async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let key = self.keys.bucket_of(name).lock(name.as_str());
        let now = script_time(self.clock.as_ref());
        let id = waiter.as_uuid().as_bytes().as_slice();
        let with = |cmd: &mut Cmd| {
            cmd.arg(1).arg(&key).arg(id).arg(&now);
        };
        let reply = PEEK.run(&self.connections, ScriptCall::new(Repeat::Safe), with).await;
        let reply = reply.and_then(|reply| Ok(redis::from_redis_value(reply)?));
        let (now, wake_at, lease): (u64, Option<u64>, Option<Vec<u8>>) =
            reply.map_err(|error| self.explain(error))?;
        Ok(Peek {
            lease: lease.as_deref().map(codec::lease).transpose()?,
            wake_at: wake_at.map(Timestamp::from_micros),
            holder_is_dead: false,
            now: Timestamp::from_micros(now),
        })
    }

    /// Parses a record. If the waiters are in a list, reads both again, atomically.
    async fn record(&self, name: &LockName, mut stored: Vec<u8>) -> Result<Option<LockRecord>> {
        let mut listed = Vec::new();
        if codec::has_waiter_list(&stored) {
            let bucket = self.keys.bucket_of(name);
            let with = |cmd: &mut Cmd| {
                cmd.arg(2).arg(bucket.lock(name.as_str())).arg(bucket.queue(name.as_str()));
            };
            let reply = READ.run(&self.connections, ScriptCall::new(Repeat::Safe), with).await;
            let reply = reply.and_then(|reply| Ok(redis::from_redis_value(reply)?));
            let both: (Option<Vec<u8>>, Vec<Vec<u8>>) = reply.map_err(|error| self.explain(error))?;
            let (Some(again), tickets) = both else { return Ok(None) };
            (stored, listed) = (again, tickets);
        }
        codec::stored_lock(name, &stored, listed).map(|stored| Some(stored.record))
    }

    pub(in crate::store::redis) async fn now(&self) -> Result<Timestamp> {
        if let Some(clock) = &self.clock {
            return Ok(clock.now());
        }
        self.connections.server_time().await.map_err(|error| self.explain(error))
    }

    pub(in crate::store::redis) async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        let now = self.now().await?;
        let limit = page_size(query.limit) as usize;
        let prefix = query.prefix.as_deref().unwrap_or_default();
        let mut after = query.after.as_ref().map(|after| after.0.clone());
        let mut items = Vec::new();
        loop {
            let (names, last) = self.names(prefix, after.as_deref(), limit).await?;
            after = last;
            for record in self.records(&names).await? {
                if query.state.is_none_or(|state| state.matches(&record, now)) {
                    items.push(record);
                }
                if items.len() == limit {
                    let next = items.last().map(|record| Cursor(record.name.as_str().to_owned()));
                    return Ok(Page { items, next });
                }
            }
            if after.is_none() {
                return Ok(Page { items, next: None });
            }
        }
    }

    /// Returns names of all buckets in order, and the last name up to which they are complete;
    /// `None` if these are all.
    async fn names(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<LockName>, Option<String>)> {
        // A bucket has a small share of a page. Requesting a few times that share from each is
        // mostly enough.
        let share = limit / 16 + 8;
        let from = after.map_or_else(|| format!("[{prefix}"), |after| format!("({after}"));
        let read = self.keys.buckets().map(|bucket| {
            let mut cmd = redis::cmd("ZRANGEBYLEX");
            cmd.arg(&bucket.names).arg(&from).arg(prefix_end(prefix)).arg("LIMIT").arg(0).arg(share);
            async move { self.query::<Vec<String>>(&cmd).await }
        });
        let found = try_join_all(read).await?;
        // Names beyond the last one of a bucket that may have more are incomplete.
        let bound =
            found.iter().filter(|names| names.len() == share).filter_map(|names| names.last()).min().cloned();
        let mut names: Vec<String> = found.into_iter().flatten().collect();
        if let Some(bound) = &bound {
            names.retain(|name| name <= bound);
        }
        names.sort_unstable();
        let checked = names.iter().map(LockName::new).collect::<Result<_, _>>();
        Ok((checked.map_err(|_| unreadable("the name of a lock"))?, bound))
    }

    /// Returns the records of these names, in their order; omits those that no longer exist.
    async fn records(&self, names: &[LockName]) -> Result<Vec<LockRecord>> {
        let mut buckets: BTreeMap<&str, (&Bucket, Vec<&LockName>)> = BTreeMap::new();
        for name in names {
            let bucket = self.keys.bucket_of(name);
            buckets.entry(bucket.names.as_str()).or_insert((bucket, Vec::new())).1.push(name);
        }
        let read = buckets.into_values().map(|(bucket, names)| async move {
            let mut cmd = redis::cmd("MGET");
            for name in &names {
                cmd.arg(bucket.lock(name.as_str()));
            }
            let stored: Vec<Option<Vec<u8>>> = self.query(&cmd).await?;
            let found = names.into_iter().zip(stored).filter_map(|(name, stored)| Some((name, stored?)));
            try_join_all(found.map(|(name, stored)| self.record(name, stored))).await
        });
        let mut records: Vec<_> = try_join_all(read).await?.into_iter().flatten().flatten().collect();
        records.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(records)
    }
}
