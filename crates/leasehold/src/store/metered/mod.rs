//! A store that counts and times what is done with another one. Plain numbers, no exporter: whoever has a system for them
//! reads [`MeteredStore::read`] now and then.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! use std::sync::Arc;
//! use leasehold::{Leasehold, store::{MeteredStore, StoreUrl, connect}};
//!
//! let store = Arc::new(MeteredStore::new(connect(&StoreUrl::parse("memory:")?).await?));
//! let leasehold = Leasehold::with_store(store.clone())?;
//! leasehold.lock("report").acquire().await?.release().await?;
//! assert_eq!(store.read().await.acquisitions, 1);
//! # Ok(()) }
//! ```
//!
//! Every operation is also a [`tracing`] span `store` at the level `debug`, with the name of the operation as `op`.
//!
//! | file | idea |
//! |---|---|
//! | `store.rs` | the store around the store, and its locks |
//! | `tasks.rs`, `docs.rs` | its tasks and documents |
//! | `op.rs` | what is timed, by name |
//! | `histogram.rs` | counts in fixed buckets |
//! | `meter.rs` | the numbers, and what each outcome adds to them |
//! | `watch.rs` | what is remembered of requests and leases, within bounds |
//! | `reading.rs` | the numbers at one moment |

mod docs;
mod histogram;
mod meter;
mod op;
mod reading;
mod store;
mod tasks;
mod watch;

pub use histogram::{Buckets, Histogram};
pub use reading::{Operation, Reading};
pub use store::MeteredStore;
