//! Store that counts and times the calls on another store. Plain numbers without an exporter: a metrics
//! system reads [`InstrumentedStore::read`] periodically.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! use std::sync::Arc;
//! use leasehold::{Leasehold, store::{InstrumentedStore, StoreUrl, connect}};
//!
//! let store = Arc::new(InstrumentedStore::new(connect(&StoreUrl::parse("memory:")?).await?));
//! let leasehold = Leasehold::with_store(store.clone())?;
//! leasehold.lock("report").acquire().await?.release().await?;
//! assert_eq!(store.read().await.acquisitions, 1);
//! # Ok(()) }
//! ```
//!
//! Every operation is also a [`tracing`] span `store` at the level `debug`, with the name of the operation
//! as `op`.

mod counters;
mod histogram;
mod lease_tracker;
mod store;

pub use counters::{MetricsSnapshot, Operation};
pub use histogram::{Buckets, Histogram};
pub use store::InstrumentedStore;
