//! Locks on any engine with compare-and-swap for documents: load, apply, save if the version is
//! unchanged, else repeat.

mod history;
mod lanes;
mod lock_doc;
mod locks;
mod sights;
mod swap;

pub use locks::{Cas, CasLocks};
pub use sights::LeaseObservations;
