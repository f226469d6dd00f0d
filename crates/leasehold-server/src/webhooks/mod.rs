//! Webhooks: whether they come from whom they say, which of them start something, what tells one event from another, and what
//! was delivered before.
//!
//! | file | idea |
//! |---|---|
//! | `signature.rs` | signatures over the raw bytes: GitHub, Stripe, Standard Webhooks |
//! | `secret.rs` | what senders sign with; never shown |
//! | `event.rs` | one delivery: its headers, its body, its kind of event |
//! | `filter.rs` | which events start the workflow of a trigger |
//! | `key.rs` | the idempotency key of an event |
//! | `replay.rs` | deliveries that have been here, in the store |
//! | `outcome.rs` | the outcome of a delivery, and the log of refused ones |
//! | `origin.rs` | only a trigger may say that a webhook started an execution |

mod event;
mod filter;
mod key;
mod origin;
mod outcome;
mod replay;
mod secret;
mod signature;

pub(crate) use event::Event;
pub use filter::{Condition, Filter, Pattern};
pub use key::Pointer;
pub(crate) use key::{Identity, identify, key_header};
pub(crate) use origin::{must_keep_its_webhook, must_not_claim_a_webhook};
pub(crate) use outcome::{Outcome, Refusal, RefusalLog};
pub(crate) use replay::Deliveries;
pub use secret::Secret;
pub use signature::Scheme;
pub(crate) use signature::{Check, Refused};
