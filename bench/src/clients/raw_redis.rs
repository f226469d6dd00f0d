//! Redis without leasehold: `SET NX PX` and a compare-and-delete script, with one connection per client; for a
//! contended lock, a list on which the clients block; and rslock, a popular lock library.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Client as RedisClient, Script};
use rslock::{Lock, LockManager};

use super::Client;

const TTL: Duration = Duration::from_secs(30);
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    Ok(RedisClient::open(url)?.get_multiplexed_async_connection().await?)
}

pub(crate) struct RawRedis {
    conn: MultiplexedConnection,
    key: String,
    holder: String,
    delete: Script,
    token: u64,
}

impl RawRedis {
    pub(crate) async fn open(url: &str, key: String, number: u32) -> Result<Self> {
        let conn = connect(url).await?;
        let (holder, delete) = (format!("bench-{number}"), Script::new(COMPARE_AND_DELETE));
        Ok(Self { conn, key, holder, delete, token: 0 })
    }
}

impl Client for RawRedis {
    async fn acquire(&mut self) -> Result<u64> {
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(&self.holder).arg("NX").arg("PX").arg(TTL.as_secs() * 1000);
        match set.query_async::<Option<String>>(&mut self.conn).await? {
            Some(_) => self.token += 1,
            None => bail!("an uncontended lock could not be acquired"),
        }
        Ok(self.token)
    }

    async fn release(&mut self) -> Result<()> {
        let deleted: u32 = self.delete.key(&self.key).arg(&self.holder).invoke_async(&mut self.conn).await?;
        if deleted == 1 { Ok(()) } else { bail!("an uncontended lock could not be released") }
    }
}

/// Client that blocks on a list with a single element: the maximum that the server can do.
pub(crate) struct RedisQueue {
    conn: MultiplexedConnection,
    key: String,
    token: u64,
}

impl RedisQueue {
    pub(crate) async fn open(url: &str, key: String) -> Result<Self> {
        let conn = connect(url).await?;
        Ok(Self { conn, key, token: 0 })
    }

    pub(crate) async fn prepare(url: &str, key: &str) -> Result<()> {
        let mut conn = connect(url).await?;
        let _: u32 = conn.del(key).await?;
        let _: u32 = conn.rpush(key, 0).await?;
        Ok(())
    }
}

impl Client for RedisQueue {
    async fn acquire(&mut self) -> Result<u64> {
        let popped: Option<(String, u64)> = self.conn.blpop(&self.key, 5.0).await?;
        self.token = popped.context("the lock was not released in time")?.1 + 1;
        Ok(self.token)
    }

    async fn release(&mut self) -> Result<()> {
        let _: u32 = self.conn.rpush(&self.key, self.token).await?;
        Ok(())
    }
}

/// rslock as in its documentation: a client with its own manager, and so its own connection.
pub(crate) struct Rslock {
    manager: LockManager,
    key: String,
    lock: Option<Lock>,
    token: u64,
}

impl Rslock {
    pub(crate) fn new(url: &str, key: String) -> Self {
        Self { manager: LockManager::new(vec![url]), key, lock: None, token: 0 }
    }
}

impl Client for Rslock {
    async fn acquire(&mut self) -> Result<u64> {
        self.lock = Some(self.manager.lock(self.key.as_bytes(), TTL).await?);
        self.token += 1;
        Ok(self.token)
    }

    async fn release(&mut self) -> Result<()> {
        let lock = self.lock.take().context("released before it was acquired")?;
        self.manager.unlock(&lock).await;
        Ok(())
    }
}

/// Returns the number of commands that clients of leasehold have sent so far: scripts, and reads between
/// them. The server also counts the commands inside scripts: each script reads the clock once, and one or
/// more records.
pub(crate) async fn commands_sent(url: &str) -> Result<u64> {
    let mut conn = connect(url).await?;
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut conn).await?;
    let calls = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    Ok((calls("get") + calls("mget") + calls("time")).saturating_sub(calls("evalsha")))
}

pub(crate) async fn remove(url: &str, prefix: &str) -> Result<()> {
    let mut conn = connect(url).await?;
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{prefix}*")).arg("COUNT").arg(1000);
        let (next, keys): (u64, Vec<String>) = scan.query_async(&mut conn).await?;
        if !keys.is_empty() {
            // A key may contain a million tasks: `UNLINK` frees it in the background.
            let _: u64 = conn.unlink(keys).await?;
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
    }
}
