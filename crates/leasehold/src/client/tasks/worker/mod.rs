//! Workers: fetching tasks, running attempts, keeping their leases and settling their results.

mod attempt;
mod builder;
mod completer;
mod context;
mod external_worker;
mod fetcher;
mod heartbeat;
mod held_leases;
mod slots;

pub use builder::{Worker, WorkerBuilder};
pub use context::TaskContext;
