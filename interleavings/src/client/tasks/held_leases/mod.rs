//! Leases that a worker holds.

pub mod checks;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/held_leases.rs"));
}
pub mod unlocked_look;
