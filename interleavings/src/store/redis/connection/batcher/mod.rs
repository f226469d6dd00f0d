//! Batching of operations of many callers.

pub mod checks;
mod connections;
mod connector;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/batcher.rs"));
}
pub mod unguarded_drop;

use super::scripts;
