//! Mutant: the waiter is notified before its lease is there.

#[path = "checks.rs"]
pub mod checks;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/early_notify.rs"));
}

use super::registry;
