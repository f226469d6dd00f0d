//! Waking exactly the waiter that has been served: a map within this process, a datagram to another one. And waking
//! workers when tasks may have arrived. And notices to the holder of a lease, or to a worker, about what others have
//! done to it.
//!
//! Wake-ups are hints. One that is lost costs a waiter one poll, never its turn.

mod arrivals;
#[cfg(target_os = "linux")]
mod datagram;
mod hub;
mod notice;

pub use arrivals::Arrivals;
pub(crate) use arrivals::Doorbell;
#[cfg(all(target_os = "linux", feature = "sqlite"))]
pub(crate) use datagram::{broadcast, listen};
#[cfg(feature = "http")]
pub(crate) use hub::Bell;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use hub::ring;
#[cfg(feature = "redis")]
pub(crate) use hub::served_by_number;
pub use hub::{Changes, HandedOver, Wake};
pub(crate) use hub::{Reach, Waiters};
pub use notice::{OnNotice, Recipient, Subscription};
pub(crate) use notice::{deliver, subscribe};
