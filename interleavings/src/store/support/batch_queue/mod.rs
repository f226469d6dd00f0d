//! Queue of calls that are executed together.

pub mod checks;
pub mod lost_worker;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/batch_queue.rs"));
}

pub(crate) use subject::{BatchQueue, BatchSize, Pending};
