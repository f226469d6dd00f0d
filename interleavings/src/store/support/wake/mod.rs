//! Notifications of waiters and workers.

pub mod queues;
mod registry {
    include!(concat!(env!("OUT_DIR"), "/registry.rs"));
}
pub mod waiters;
