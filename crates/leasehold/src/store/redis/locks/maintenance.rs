//! Maintenance: expires leases and tickets, removes idle locks, and bounds the history by age.

use futures_util::future::try_join_all;
use redis::Cmd;

use super::super::error::unreadable;
use super::super::scripts::{FORGET, ScriptCall, script_time};
use super::apply::Locks;
use crate::error::Result;
use crate::model::{LockName, LockOp, Outcome, Sweep, Swept, Ttl};
use crate::store::repeat::Repeat;

/// Number of locks of each bucket that one pass of `forget` examines.
const FORGET_BATCH: usize = 64;
/// Maximum age of an event.
const MAX_AGE_MILLIS: u64 = 90 * 24 * 3600 * 1000;

impl Locks {
    pub(in crate::store::redis) async fn sweep(&self, limit: u32) -> Result<Swept> {
        let now = self.now().await?.as_micros();
        let read = self.keys.buckets().map(|bucket| {
            let mut cmd = redis::cmd("ZRANGEBYSCORE");
            cmd.arg(&bucket.due).arg("-inf").arg(now).arg("LIMIT").arg(0).arg(limit);
            async move { self.query::<Vec<String>>(&cmd).await }
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
    pub(in crate::store::redis) async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
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
            let names: Vec<String> = self.query(&cmd).await?;
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
            let reply = FORGET.run(&self.connections, ScriptCall::new(Repeat::Safe), with).await;
            let reply = reply.and_then(|reply| Ok(redis::from_redis_value::<u32>(reply)?));
            forgotten += reply.map_err(|error| self.explain(error))?;
        }
        Ok(forgotten)
    }

    /// Bounds the history by age; its length is bounded by each write. Event ids are times of the
    /// server's clock.
    async fn prune(&self) -> Result<()> {
        let (seconds, _): (u64, u64) = self.query(&redis::cmd("TIME")).await?;
        let oldest = (seconds * 1000).saturating_sub(MAX_AGE_MILLIS);
        let trim = self.keys.buckets().map(|bucket| {
            let cmd = redis::cmd("XTRIM").arg(&bucket.events).arg("MINID").arg("~").arg(oldest).take();
            async move { self.query::<u64>(&cmd).await }
        });
        try_join_all(trim).await.map(drop)
    }
}
