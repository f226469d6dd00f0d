//! Redis engine, `redis://…`: many machines, the fastest of the remote engines. One server, with
//! Sentinel, or a Cluster.

mod connection;
mod documents;
mod error;
mod health;
mod keys;
mod locks;
mod options;
mod scripts;
mod store;
mod tasks;

pub use options::{RedisOptions, Topology};
pub use store::RedisStore;
