//! Mutant: a worker that ends stays registered.

#[path = "checks.rs"]
pub mod checks;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/lost_worker.rs"));
}
