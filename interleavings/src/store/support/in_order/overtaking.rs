//! Mutant: a later call is put before the calls that wait.

#[path = "checks.rs"]
pub mod checks;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/overtaking.rs"));
}
