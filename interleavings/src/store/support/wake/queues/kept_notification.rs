//! Mutant: a worker that leaves does not pass on its unused notification.

#[path = "checks.rs"]
pub mod checks;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/kept_notification.rs"));
}
