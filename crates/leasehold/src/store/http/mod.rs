//! `http(s)://HOST`: a leasehold server as the engine. For many machines, without a database driver.

mod client;
mod connection;
mod documents;
mod error;
mod health;
mod in_doubt;
mod locks;
mod options;
mod server_clocks;
mod store;
mod subscriber;
mod tasks;
mod tls;

pub use options::HttpOptions;
pub use store::HttpStore;
