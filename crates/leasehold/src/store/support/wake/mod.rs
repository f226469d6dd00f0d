//! Wake-ups for exactly the waiter whose ticket was granted: a map within this process, a datagram to
//! another process. Also notifications for workers when tasks may have arrived, and notices to the
//! holder of a lease, or to a worker, about changes made by other callers.
//!
//! Wake-ups are hints. A lost wake-up costs a waiter one poll, never its place in the queue.

#[cfg(all(target_os = "linux", feature = "sqlite"))]
mod datagram;
mod queues;
mod registry;
mod subscriptions;
mod waiters;

#[cfg(all(target_os = "linux", feature = "sqlite"))]
pub(crate) use datagram::{broadcast, listen, send_grant};
pub(crate) use queues::QueueNotifier;
pub use queues::QueueSubscription;
pub use subscriptions::{OnNotice, Recipient, Subscription};
pub(crate) use subscriptions::{deliver, subscribe};
pub(crate) use waiters::Waiters;
#[cfg(feature = "redis")]
pub(crate) use waiters::deliver_by_number;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use waiters::wake_by_id;
pub use waiters::{RemoteGrant, WaiterSubscription, Wakeup};
#[cfg(feature = "http")]
pub(crate) use {registry::Registry, waiters::WaiterSlot};
