//! `http(s)://HOST`: a leasehold server as the engine. For many machines, without a database driver.

mod call;
mod clocks;
mod desk;
mod docs;
mod ghosts;
mod health;
mod line;
mod link;
mod locks;
mod options;
mod store;
mod tasks;
mod tls;
mod trouble;
mod wakes;

pub use options::HttpOptions;
pub use store::HttpStore;
