//! Redis engine, `redis://…`: many machines, the fastest of the remote engines. One server, with
//! Sentinel, or a Cluster.

mod call;
mod docs;
mod group;
mod health;
mod history;
mod inbox;
mod keys;
mod line;
mod link;
mod locks;
mod options;
mod packed;
mod scripts;
mod store;
mod tasks;
mod trouble;

pub use options::{RedisOptions, Topology};
pub use store::RedisStore;
