//! Mutant: a dropped call does not take back the turn that it has received.

#[path = "checks.rs"]
pub mod checks;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/lost_turn.rs"));
}
