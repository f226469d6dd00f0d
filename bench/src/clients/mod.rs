//! Clients that acquire and release a lock: with leasehold, with raw engines and with other libraries.

pub(crate) mod etcd;
mod library;
mod raw_memory;
pub(crate) mod raw_postgres;
pub(crate) mod raw_redis;
mod raw_sqlite;

use anyhow::Result;

pub(crate) use etcd::Etcd;
pub(crate) use library::{LibraryClient, StoreClient};
pub(crate) use raw_memory::{FairMap, FairMapClient, Map, MapClient};
pub(crate) use raw_postgres::RawPostgres;
pub(crate) use raw_redis::{RawRedis, RedisQueue, Rslock};
pub(crate) use raw_sqlite::{RawSqlite, create as create_raw_sqlite, in_transaction};

pub(crate) trait Client: Send + 'static {
    /// Acquires the lock, and waits if necessary; returns a number that rises from holder to holder.
    fn acquire(&mut self) -> impl Future<Output = Result<u64>> + Send;

    fn release(&mut self) -> impl Future<Output = Result<()>> + Send;
}
