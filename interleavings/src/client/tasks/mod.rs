//! Parts of a worker.

pub mod held_leases;
pub mod slots;
