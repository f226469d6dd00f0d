//! Locks on any engine with compare-and-swap for documents: load, apply, save if the version is
//! unchanged, else repeat.

mod cas_loop;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
mod history;
mod lock_doc;
mod locks;
mod observed_expiry;

pub use locks::{Cas, CasLocks};
pub use observed_expiry::LeaseObservations;
