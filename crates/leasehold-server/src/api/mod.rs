//! The endpoints, one file per kind of thing.
//!
//! | file | idea |
//! |---|---|
//! | `acquire.rs` | asking for locks, and waiting for them |
//! | `delivery.rs` | an answer that gives a lease, and takes it back if nobody gets the answer |
//! | `lease.rs` | a lease as clients see it, and how they name it |
//! | `locks.rs` | holding, giving back, looking, stepping in |
//! | `fence.rs` | whether a token is still good |
//! | `history.rs` | what happened to a lock |
//! | `events.rs` | what happens, as it happens |
//! | `health.rs` | whether the server is alive and ready |

pub(crate) mod acquire;
mod delivery;
pub(crate) mod events;
pub(crate) mod executions;
pub(crate) mod fence;
pub(crate) mod health;
pub(crate) mod history;
mod lease;
pub(crate) mod locks;
pub(crate) mod metrics;
pub(crate) mod started;
pub(crate) mod store;
pub(crate) mod tasks;
pub(crate) mod webhooks;
pub(crate) mod workflows;
