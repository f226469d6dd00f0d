//! Queries: one lock, the state that a waiter needs, and lists. Also maintenance: expires leases and
//! tickets, removes idle locks, and bounds the history by age.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use redis::Cmd;

use super::super::error::unreadable;
use super::super::keys::{Bucket, prefix_end};
use super::super::scripts::{FORGET, PEEK, READ, ScriptCall, script_time};
use super::apply::Locks;
use super::codec;
use crate::error::Result;
use crate::model::{LeaseId, LockName, LockOp, LockRecord, Outcome, Sweep, Swept, Timestamp, Ttl};
use crate::store::lock_store::page_size;
use crate::store::repeat::Repeat;
use crate::store::{Cursor, ListLocks, Page, Peek};

/// Number of locks of each bucket that one pass of `forget` examines.
const FORGET_BATCH: usize = 64;
const MAX_AGE_MILLIS: u64 = 90 * 24 * 3600 * 1000;

impl Locks {
    pub(crate) async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let key = self.keys.bucket_of(name).lock(name.as_str());
        let stored: Option<Vec<u8>> = self.connections.query(redis::cmd("GET").arg(key)).await?;
        match stored {
            Some(stored) => self.record(name, stored).await,
            None => Ok(None),
        }
    }

    /// Reads the head of the record and its leases: neither the list of waiters nor their ids.
    pub(crate) async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let key = self.keys.bucket_of(name).lock(name.as_str());
        let now = script_time(self.clock.as_ref());
        let id = waiter.as_uuid().as_bytes().as_slice();
        let with = |cmd: &mut Cmd| {
            cmd.arg(1).arg(&key).arg(id).arg(&now);
        };
        let (now, mut wake_at, mut lease): (u64, Option<u64>, Option<Vec<u8>>) =
            PEEK.run(&self.connections, ScriptCall::new(Repeat::Safe), with).await?;
        // No replica has acknowledged a lease that a release has handed over. So the waiter does not see
        // the lease here: it is due to send its acquire again, which waits for the replicas.
        if self.wait_replicas > 0 && lease.take().is_some() {
            wake_at = Some(now);
        }
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
        if codec::has_waiters(&stored) {
            let bucket = self.keys.bucket_of(name);
            let with = |cmd: &mut Cmd| {
                cmd.arg(2).arg(bucket.lock(name.as_str())).arg(bucket.queue(name.as_str()));
            };
            let both: (Option<Vec<u8>>, Vec<Vec<u8>>) =
                READ.run(&self.connections, ScriptCall::new(Repeat::Safe), with).await?;
            let (Some(again), tickets) = both else { return Ok(None) };
            (stored, listed) = (again, tickets);
        }
        codec::stored_lock(name, &stored, listed).map(|stored| Some(stored.record))
    }

    pub(crate) async fn now(&self) -> Result<Timestamp> {
        self.connections.now(self.clock.as_ref()).await
    }

    pub(crate) async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
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
                    return Ok(Page::of(items, limit, |last| Cursor(last.name.as_str().to_owned())));
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
        // A few times the average share of a bucket is mostly enough.
        let share = limit / 16 + 8;
        let from = after.map_or_else(|| format!("[{prefix}"), |after| format!("({after}"));
        let read = self.keys.buckets().map(|bucket| {
            let mut cmd = redis::cmd("ZRANGEBYLEX");
            cmd.arg(&bucket.names).arg(&from).arg(prefix_end(prefix)).arg("LIMIT").arg(0).arg(share);
            async move { self.connections.query::<Vec<String>>(&cmd).await }
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
            let stored: Vec<Option<Vec<u8>>> = self.connections.query(&cmd).await?;
            let found = names.into_iter().zip(stored).filter_map(|(name, stored)| Some((name, stored?)));
            try_join_all(found.map(|(name, stored)| self.record(name, stored))).await
        });
        let mut records: Vec<_> = try_join_all(read).await?.into_iter().flatten().flatten().collect();
        records.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(records)
    }

    pub(crate) async fn sweep(&self, limit: u32) -> Result<Swept> {
        let now = self.now().await?.as_micros();
        let read = self.keys.buckets().map(|bucket| {
            let mut cmd = redis::cmd("ZRANGEBYSCORE");
            cmd.arg(&bucket.due).arg("-inf").arg(now).arg("LIMIT").arg(0).arg(limit);
            async move { self.connections.query::<Vec<String>>(&cmd).await }
        });
        let due = try_join_all(read).await?.into_iter().flatten().take(limit as usize);
        let mut swept = Swept::default();
        for name in due {
            let name = LockName::new(name).map_err(|_| unreadable("the name of a lock"))?;
            if let Outcome::Swept(one) = self.apply(&name, &LockOp::Sweep(Sweep::default())).await? {
                swept += one;
            }
        }
        self.prune().await?;
        Ok(swept)
    }

    /// Removes idle locks among the next ones of each bucket. Each bucket has a minimum token
    /// of its own: on a Cluster it is on the node of its locks, so that one script can raise it and
    /// remove a lock atomically.
    pub(crate) async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        let now = script_time(self.clock.as_ref());
        let mut cursors = self.forget_cursors.lock().await;
        let mut forgotten = 0;
        for (bucket, after) in self.keys.buckets().zip(cursors.iter_mut()) {
            if forgotten >= limit {
                break; // The next pass continues here or in an earlier bucket.
            }
            let from = if after.is_empty() { "-".to_owned() } else { format!("({after}") };
            let cmd = redis::cmd("ZRANGEBYLEX")
                .arg(&bucket.names)
                .arg(from)
                .arg("+")
                .arg("LIMIT")
                .arg(0)
                .arg(FORGET_BATCH)
                .take();
            let names: Vec<String> = self.connections.query(&cmd).await?;
            *after = names.last().filter(|_| names.len() == FORGET_BATCH).cloned().unwrap_or_default();
            if names.is_empty() {
                continue;
            }
            let with = |cmd: &mut Cmd| {
                cmd.arg(3 + 2 * names.len()).arg(&bucket.names).arg(&bucket.due).arg(&bucket.min_token);
                for name in &names {
                    cmd.arg(bucket.lock(name)).arg(bucket.queue(name));
                }
                cmd.arg(&now).arg(idle.as_micros()).arg(limit - forgotten);
                for name in &names {
                    cmd.arg(name);
                }
            };
            let count: u32 = FORGET.run(&self.connections, ScriptCall::new(Repeat::Safe), with).await?;
            forgotten += count;
        }
        Ok(forgotten)
    }

    /// Bounds the history by age; its length is bounded whenever events are moved. Positions of events
    /// are times of the server's clock.
    async fn prune(&self) -> Result<()> {
        let (seconds, _): (u64, u64) = self.connections.query(&redis::cmd("TIME")).await?;
        let oldest = (seconds * 1000).saturating_sub(MAX_AGE_MILLIS);
        self.mover.prune(oldest).await
    }
}
