//! Parts of the engines.

pub mod redis;
pub mod support;

pub(crate) use leasehold::BootInstant;
pub(crate) use support::{batch_queue, repeat, sync};
