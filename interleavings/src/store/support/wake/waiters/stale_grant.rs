//! Mutant: the last request is not locked until the lease is delivered.

#[path = "checks.rs"]
pub mod checks;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/stale_grant.rs"));
}

use super::registry;
