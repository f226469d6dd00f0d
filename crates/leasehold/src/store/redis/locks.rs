//! Operations on locks, and queries: one lock, many, and those with expired leases or tickets.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::try_join_all;
use redis::{Cmd, FromRedisValue, RedisError, Value};

use super::call::{Answer, Arguments, Served};
use super::group::Part;
use super::inbox::Inbox;
use super::keys::{Bucket, Keys};
use super::link::Link;
use super::options::RedisOptions;
use super::packed;
use super::scripts::{APPLY, Call, FORGET, PEEK, READ};
use super::trouble::explain;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Acquire, LeaseId, Leave, LockName, LockOp, LockRecord, Outcome, Sweep, Swept, Timestamp, Ttl,
};
use crate::store::lock_store::page_size;
use crate::store::repeat::Repeat;
use crate::store::wake::{Waiters, ring};
use crate::store::{BootInstant, Clock, Cursor, ListLocks, Page, Peek, Recipient, clock};

/// Timeout for replicas to acknowledge a grant, in milliseconds.
pub(super) const WAIT_MILLIS: u32 = 1000;
/// Number of locks of each bucket that one pass of `forget` examines.
const LOOKED_AT: usize = 64;
/// Maximum age of an event.
const MAX_AGE_MILLIS: u64 = 90 * 24 * 3600 * 1000;

/// Locks on Redis.
pub(super) struct Locks {
    pub(super) link: Arc<Link>,
    pub(super) keys: Keys,
    pub(super) inbox: Inbox,
    pub(super) shown: String,
    clock: Option<Clock>,
    /// Maximum number of events in each bucket.
    bucket_events: u32,
    wait_replicas: u32,
    pub(super) waiters: Waiters,
    /// For each bucket the name of the last lock that was examined by `forget`.
    forget_after: tokio::sync::Mutex<Vec<String>>,
}

impl Locks {
    pub(super) fn new(link: Link, options: &RedisOptions) -> Self {
        let keys = Keys::new(&options.prefix);
        Self {
            link: Arc::new(link),
            inbox: Inbox::new(&keys),
            keys,
            shown: options.shown.clone(),
            waiters: Waiters::default(),
            clock: options.clock.clone(),
            bucket_events: options.max_events.div_ceil(u32::from(super::keys::BUCKETS)).max(1),
            wait_replicas: options.wait_replicas,
            forget_after: tokio::sync::Mutex::new(vec![String::new(); usize::from(super::keys::BUCKETS)]),
        }
    }

    pub(super) async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let since = BootInstant::now();
        let arguments = Arguments::of(op, self.asking(name, op, since))?;
        let bucket = self.keys.bucket_of(name);
        let (lock, queue) = (bucket.lock(name.as_str()), bucket.queue(name.as_str()));
        let now = self.clock.as_ref().map(|clock| clock.now().as_micros().to_string()).unwrap_or_default();
        // A script cannot publish to another shard.
        let publish = if self.link.is_cluster() { "" } else { "1" };
        let with = |cmd: &mut Cmd| {
            cmd.arg(6).arg(&lock).arg(&bucket.names).arg(&bucket.due).arg(&bucket.events).arg(&queue);
            cmd.arg(&bucket.floor);
            cmd.arg(arguments.op()).arg(&now).arg(name.as_str()).arg(self.bucket_events);
            cmd.arg(self.inbox.channel()).arg(publish);
            arguments.add_to(cmd);
        };
        let asks_replicas = self.wait_replicas > 0 && matches!(op, LockOp::Acquire(_));
        let wait = asks_replicas.then(|| redis::cmd("WAIT").arg(self.wait_replicas).arg(WAIT_MILLIS).take());
        if let Some(outcome) = self.apply_with_others(name, op, &arguments, &now).await {
            return outcome;
        }
        let reply = APPLY
            .run(&self.link, Call { lease: lease_of(op), then: wait.as_ref(), repeat: op.into() }, with)
            .await;
        let mut reply = reply.map_err(|error| self.explain(error))?;
        let mut acknowledged = None;
        if asks_replicas && let Value::Array(both) = &mut reply {
            acknowledged = both.pop();
            reply = both.pop().unwrap_or(Value::Nil);
        }
        let Answer { outcome, handed_over } = Answer::read(op, &reply)?;
        if !handed_over.is_empty() && self.wake(name, handed_over, since) {
            // Let the new holder run before this caller returns: its release need not wait for this
            // caller's next ticket.
            tokio::task::yield_now().await;
        }
        match (&outcome, acknowledged) {
            (Outcome::Granted(lease), Some(Value::Int(replicas)))
                if replicas < i64::from(self.wait_replicas) =>
            {
                Err(self.give_back(name, lease.ask.lease_id, replicas).await)
            }
            _ => Ok(outcome),
        }
    }

    /// Registers an acquire attempt of a waiter and returns its number, by which the waiter
    /// recognizes that a handed-over lease was granted after this attempt.
    fn asking(&self, name: &LockName, op: &LockOp, since: BootInstant) -> Option<u64> {
        match op {
            // With `wait_replicas` the waiter must query the store itself.
            LockOp::Acquire(Acquire { ask, queue: Some(_), .. }) if self.wait_replicas == 0 => {
                // A process that cannot read the ticket cannot guess this number.
                let number = clock::new_lease_id().as_uuid().as_u64_pair().1;
                self.waiters.asks(name, &ask.lease_id, number, since).then_some(number)
            }
            _ => None,
        }
    }

    /// Sends a simple operation in a batch when many callers wait. Returns `None` if it must be
    /// sent alone.
    async fn apply_with_others(
        &self,
        name: &LockName,
        op: &LockOp,
        arguments: &Arguments,
        now: &str,
    ) -> Option<Result<Outcome>> {
        let lease = lease_of(op)?;
        if self.wait_replicas > 0 || !self.link.is_for_group(lease) {
            return None;
        }
        let words = arguments.short(name.as_str())?;
        let bucket = self.keys.bucket_of(name);
        let part = Part {
            record: bucket.lock(name.as_str()),
            bucket: [bucket.names.clone(), bucket.due.clone(), bucket.events.clone(), bucket.floor.clone()],
            words,
            now: now.to_owned(),
            bucket_events: self.bucket_events,
        };
        let reply = self.link.send_with_others(lease, part, op.into()).await?;
        let reply = reply.map_err(|error| self.explain(error));
        Some(reply.and_then(|reply| Answer::read(op, &reply)).map(|answer| answer.outcome))
    }

    /// Withdraws a grant that a failover would lose, and returns the error for the caller.
    async fn give_back(&self, name: &LockName, lease_id: LeaseId, replicas: i64) -> Error {
        let given_back = Box::pin(self.apply(name, &LockOp::Leave(Leave { lease_id }))).await;
        if let Err(error) = given_back {
            tracing::debug!(lock = %name, %error, "a lease could not be given back; it ends by its time");
        }
        let message = format!(
            "{replicas} of {} replicas of the store {} have acknowledged the grant of lock '{name}', so it was given back",
            self.wait_replicas, self.shown
        );
        Error::store(
            StoreErrorKind::Unavailable,
            message,
            "look at the replicas, or ask for fewer with ?wait_replicas=…",
        )
    }

    /// Wakes exactly the waiters that were granted the lock. Returns whether one of them is in this
    /// process.
    fn wake(&self, name: &LockName, handed_over: Vec<Served>, since: BootInstant) -> bool {
        let mut inboxes = BTreeMap::new();
        let mut leases = Vec::with_capacity(handed_over.len());
        for Served { lease, inbox } in handed_over {
            inboxes.insert(lease.ask.lease_id, inbox);
            leases.push(lease);
        }
        if self.wait_replicas > 0 {
            // The waiters must query the store themselves, so that the replicas acknowledge their
            // grants, too.
            for lease in &leases {
                ring(&lease.ask.lease_id);
            }
            return false;
        }
        let served = leases.len();
        let elsewhere = self.waiters.wake_here(name, leases, since);
        if self.link.is_cluster() && !elsewhere.is_empty() {
            self.tell_other_shards(elsewhere.iter().map(|lease| lease.ask.lease_id), &inboxes);
        }
        elsewhere.len() < served
    }

    /// Sends notices to other processes.
    pub(super) async fn notify(&self, to: &[Recipient]) {
        let publish = if self.link.is_cluster() { "SPUBLISH" } else { "PUBLISH" };
        for recipient in to {
            let id = recipient.as_uuid().as_bytes().as_slice();
            let cmd = redis::cmd(publish).arg(self.inbox.notices()).arg(id).take();
            if let Err(error) = self.link.send((&cmd).into()).await {
                tracing::debug!(%error, "other processes are not notified: they learn it at their next renewal");
            }
        }
    }

    /// Notifies processes whose channel is on another shard of a Cluster. Does not wait for the
    /// result: the message is only a hint.
    fn tell_other_shards(&self, served: impl Iterator<Item = LeaseId>, inboxes: &BTreeMap<LeaseId, String>) {
        for id in served {
            let Some((inbox, host)) = inboxes.get(&id).zip(self.link.host()) else {
                continue;
            };
            let cmd = redis::cmd("SPUBLISH").arg(inbox).arg(id.as_uuid().as_bytes().as_slice()).take();
            let Some(sending) = self.link.current() else {
                continue;
            };
            host.spawn(async move {
                if let Err(error) = sending.send((&cmd).into()).await {
                    tracing::debug!(%error, "a wake-up could not be sent; its waiter polls");
                }
            });
        }
    }

    pub(super) async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let key = self.keys.bucket_of(name).lock(name.as_str());
        let stored: Option<Vec<u8>> = self.ask(redis::cmd("GET").arg(key)).await?;
        match stored {
            Some(stored) => self.record(name, stored).await,
            None => Ok(None),
        }
    }

    /// Reads the head of the record and its leases: neither the list of waiters nor their ids.
    pub(super) async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let key = self.keys.bucket_of(name).lock(name.as_str());
        let now = self.clock.as_ref().map(|clock| clock.now().as_micros().to_string()).unwrap_or_default();
        let id = waiter.as_uuid().as_bytes().as_slice();
        let with = |cmd: &mut Cmd| {
            cmd.arg(1).arg(&key).arg(id).arg(&now);
        };
        let reply = PEEK.run(&self.link, Call::plain(Repeat::Safe), with).await;
        let reply = reply.and_then(|reply| Ok(redis::from_redis_value(reply)?));
        let (now, wake_at, lease): (u64, Option<u64>, Option<Vec<u8>>) =
            reply.map_err(|error| self.explain(error))?;
        Ok(Peek {
            lease: lease.as_deref().map(packed::lease).transpose()?,
            wake_at: wake_at.map(Timestamp::from_micros),
            holder_is_gone: false,
            now: Timestamp::from_micros(now),
        })
    }

    /// Parses a record. If the waiters are in a list, reads both again, atomically.
    async fn record(&self, name: &LockName, mut stored: Vec<u8>) -> Result<Option<LockRecord>> {
        let mut listed = Vec::new();
        if packed::has_a_list(&stored) {
            let bucket = self.keys.bucket_of(name);
            let with = |cmd: &mut Cmd| {
                cmd.arg(2).arg(bucket.lock(name.as_str())).arg(bucket.queue(name.as_str()));
            };
            let reply = READ.run(&self.link, Call::plain(Repeat::Safe), with).await;
            let reply = reply.and_then(|reply| Ok(redis::from_redis_value(reply)?));
            let both: (Option<Vec<u8>>, Vec<Vec<u8>>) = reply.map_err(|error| self.explain(error))?;
            let (Some(again), tickets) = both else { return Ok(None) };
            (stored, listed) = (again, tickets);
        }
        packed::record(name, &stored, &listed).map(Some)
    }

    pub(super) async fn now(&self) -> Result<Timestamp> {
        if let Some(clock) = &self.clock {
            return Ok(clock.now());
        }
        let (seconds, micros): (u64, u64) = self.ask(&redis::cmd("TIME")).await?;
        Ok(Timestamp::from_micros(seconds * 1_000_000 + micros))
    }

    pub(super) async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        let now = self.now().await?;
        let limit = page_size(ask.limit) as usize;
        let prefix = ask.prefix.as_deref().unwrap_or_default();
        let mut after = ask.after.as_ref().map(|after| after.0.clone());
        let mut items = Vec::new();
        loop {
            let (names, last) = self.names(prefix, after.as_deref(), limit).await?;
            after = last;
            for record in self.records(&names).await? {
                if ask.state.is_none_or(|state| state.matches(&record, now)) {
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
            cmd.arg(&bucket.names).arg(&from).arg(end_of(prefix)).arg("LIMIT").arg(0).arg(share);
            async move { self.ask::<Vec<String>>(&cmd).await }
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
        Ok((checked.map_err(|_| packed::unreadable("the name of a lock"))?, bound))
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
            let stored: Vec<Option<Vec<u8>>> = self.ask(&cmd).await?;
            let found = names.into_iter().zip(stored).filter_map(|(name, stored)| Some((name, stored?)));
            try_join_all(found.map(|(name, stored)| self.record(name, stored))).await
        });
        let mut records: Vec<_> = try_join_all(read).await?.into_iter().flatten().flatten().collect();
        records.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(records)
    }

    pub(super) async fn sweep(&self, limit: u32) -> Result<Swept> {
        let now = self.now().await?.as_micros();
        let read = self.keys.buckets().map(|bucket| {
            let mut cmd = redis::cmd("ZRANGEBYSCORE");
            cmd.arg(&bucket.due).arg("-inf").arg(now).arg("LIMIT").arg(0).arg(limit);
            async move { self.ask::<Vec<String>>(&cmd).await }
        });
        let due = try_join_all(read).await?.into_iter().flatten().take(limit as usize);
        let mut swept = Swept::default();
        for name in due {
            let name = LockName::new(name).map_err(|_| packed::unreadable("the name of a lock"))?;
            if let Outcome::Swept(one) = self.apply(&name, &LockOp::Sweep(Sweep::default())).await? {
                swept += one;
            }
        }
        self.prune().await?;
        Ok(swept)
    }

    /// Removes idle locks among the next ones of each bucket. Each bucket has a floor of its own:
    /// on a Cluster it is on the node of its locks, so that one script can raise it and remove a
    /// lock atomically.
    pub(super) async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        let now = self.clock.as_ref().map(|clock| clock.now().as_micros().to_string()).unwrap_or_default();
        let mut cursors = self.forget_after.lock().await;
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
                .arg(LOOKED_AT)
                .take();
            let names: Vec<String> = self.ask(&cmd).await?;
            *after = names.last().filter(|_| names.len() == LOOKED_AT).cloned().unwrap_or_default();
            if names.is_empty() {
                continue;
            }
            let with = |cmd: &mut Cmd| {
                cmd.arg(3 + 2 * names.len()).arg(&bucket.names).arg(&bucket.due).arg(&bucket.floor);
                for name in &names {
                    cmd.arg(bucket.lock(name)).arg(bucket.queue(name));
                }
                cmd.arg(&now).arg(idle.as_micros()).arg(limit - forgotten);
                for name in &names {
                    cmd.arg(name);
                }
            };
            let reply = FORGET.run(&self.link, Call::plain(Repeat::Safe), with).await;
            let reply = reply.and_then(|reply| Ok(redis::from_redis_value::<u32>(reply)?));
            forgotten += reply.map_err(|error| self.explain(error))?;
        }
        Ok(forgotten)
    }

    /// Bounds the history by age; its length is bounded by each write. Event ids are times of the
    /// server's clock.
    async fn prune(&self) -> Result<()> {
        let (seconds, _): (u64, u64) = self.ask(&redis::cmd("TIME")).await?;
        let oldest = (seconds * 1000).saturating_sub(MAX_AGE_MILLIS);
        let trim = self.keys.buckets().map(|bucket| {
            let cmd = redis::cmd("XTRIM").arg(&bucket.events).arg("MINID").arg("~").arg(oldest).take();
            async move { self.ask::<u64>(&cmd).await }
        });
        try_join_all(trim).await.map(drop)
    }

    /// Sends a command that belongs to no lease.
    pub(super) async fn ask<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T> {
        let reply = self.link.send(cmd.into()).await.map_err(|error| self.explain(error))?;
        redis::from_redis_value(reply).map_err(|error| self.explain(error.into()))
    }

    pub(super) fn explain(&self, error: RedisError) -> Error {
        explain(&self.shown, error)
    }
}

/// Returns the lease of an operation: operations for one lease must stay in order.
fn lease_of(op: &LockOp) -> Option<&LeaseId> {
    match op {
        LockOp::Acquire(acquire) => Some(&acquire.ask.lease_id),
        LockOp::Renew(renew) | LockOp::RenewLogged(renew) => Some(&renew.lease_id),
        LockOp::Release(release) => Some(&release.lease_id),
        LockOp::Leave(leave) => Some(&leave.lease_id),
        LockOp::RequestRelease(_) | LockOp::ForceRelease(_) | LockOp::Sweep(_) | LockOp::Restarted(_) => None,
    }
}

/// Returns the end of the range of names that begin with `prefix`: no text contains the byte 0xff.
pub(super) fn end_of(prefix: &str) -> Vec<u8> {
    if prefix.is_empty() {
        return b"+".to_vec();
    }
    [b"(", prefix.as_bytes(), &[0xff]].concat()
}
