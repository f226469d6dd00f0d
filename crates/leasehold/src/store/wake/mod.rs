//! Wake-ups for exactly the waiter whose ticket was granted: a map within this process, a datagram to
//! another process. Also notifications for workers when tasks may have arrived, and notices to the
//! holder of a lease, or to a worker, about changes made by other callers.
//!
//! Wake-ups are hints. A lost wake-up costs a waiter one poll, never its place in the queue.

mod arrivals;
#[cfg(target_os = "linux")]
mod datagram;
mod hub;
mod notice;

pub(crate) use arrivals::Doorbell;
pub use arrivals::QueueSubscription;
#[cfg(all(target_os = "linux", feature = "sqlite"))]
pub(crate) use datagram::{broadcast, listen};
#[cfg(feature = "http")]
pub(crate) use hub::Bell;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use hub::ring;
#[cfg(feature = "redis")]
pub(crate) use hub::served_by_number;
pub(crate) use hub::{Reach, Waiters};
pub use hub::{RemoteGrant, WaiterSubscription, Wakeup};
pub use notice::{OnNotice, Recipient, Subscription};
pub(crate) use notice::{deliver, subscribe};
