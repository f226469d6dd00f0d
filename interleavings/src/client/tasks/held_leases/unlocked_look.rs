//! Mutant: looks for a lease among the removed ones before it locks the held ones.

#[path = "checks.rs"]
pub mod checks;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/unlocked_look.rs"));
}
