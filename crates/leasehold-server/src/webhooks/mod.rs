//! Webhooks: verification of signatures, filters, identity of events, and detection of repeated
//! deliveries.

mod event;
mod filter;
#[cfg(test)]
mod fuzz;
mod outcome;
mod signature;

pub use event::Pointer;
pub(crate) use event::{
    Event, EventIdentity, identify, key_header, must_keep_its_webhook, must_not_claim_a_webhook,
};
pub use filter::{Condition, Filter, Pattern};
pub(crate) use outcome::{Outcome, RejectLog, RejectReason, key_of_body, key_of_delivery};
pub(crate) use signature::{Check, SignatureError};
pub use signature::{Scheme, Secret};
