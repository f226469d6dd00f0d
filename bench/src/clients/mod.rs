//! Ways to take a lock and give it back: the library's, and the engines' own.

mod client;
pub(crate) mod etcd;
mod library;
pub(crate) mod pgbench;
mod raw_memory;
pub(crate) mod raw_postgres;
pub(crate) mod raw_redis;
mod raw_sqlite;
mod rslock;

pub(crate) use client::Client;
pub(crate) use etcd::Etcd;
pub(crate) use library::{LibraryClient, StoreClient};
pub(crate) use raw_memory::{FairMap, FairMapClient, Map, MapClient};
pub(crate) use raw_postgres::RawPostgres;
pub(crate) use raw_redis::{RawRedis, RedisLine};
pub(crate) use raw_sqlite::{RawSqlite, create as create_raw_sqlite};
pub(crate) use rslock::Rslock;
