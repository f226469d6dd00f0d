//! `http(s)://HOST`: a leasehold server as the engine. For many machines, without a database driver.

mod calls;
mod client;
mod connection;
mod error;
mod in_doubt;
mod options;
mod store;
mod subscriber;

pub use options::HttpOptions;
pub use store::HttpStore;
