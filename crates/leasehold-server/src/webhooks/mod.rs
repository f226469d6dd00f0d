//! Webhooks: whether they come from whom they say, what tells one event from another, and what was delivered before.
//!
//! | file | idea |
//! |---|---|
//! | `signature.rs` | signatures over the raw bytes: GitHub, Stripe, Standard Webhooks |
//! | `secret.rs` | what senders sign with; never shown |
//! | `key.rs` | the idempotency key of an event |
//! | `replay.rs` | deliveries that have been here, in the store |

mod key;
mod replay;
mod secret;
mod signature;

pub use key::Pointer;
pub(crate) use key::{Event, delivery_id, key_header, key_of};
pub(crate) use replay::Deliveries;
pub use secret::Secret;
pub(crate) use signature::Check;
pub use signature::Scheme;
