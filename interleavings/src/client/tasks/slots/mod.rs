//! Slots of a worker.

pub mod checks;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/slots.rs"));
}
