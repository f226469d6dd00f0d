//! Mutant: a dropped call does not wait until its operation is handed over.

#[path = "checks.rs"]
pub mod checks;
#[path = "connections.rs"]
mod connections;
#[path = "connector.rs"]
mod connector;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/unguarded_drop.rs"));
}
