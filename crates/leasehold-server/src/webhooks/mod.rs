//! Webhooks: verification of signatures, filters, identity of events, and detection of repeated
//! deliveries.

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
pub(crate) use key::{EventIdentity, identify, key_header};
pub(crate) use origin::{must_keep_its_webhook, must_not_claim_a_webhook};
pub(crate) use outcome::{Outcome, RejectLog, RejectReason};
pub(crate) use replay::Deliveries;
pub use secret::Secret;
pub use signature::Scheme;
pub(crate) use signature::{Check, SignatureError};
