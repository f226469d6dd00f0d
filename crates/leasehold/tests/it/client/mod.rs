//! Tests of the client layer: guards, strategies, workers, faults between client and store.

mod acquire;
mod cooperative_cancellation;
mod deadlocks;
mod detach;
mod faults;
mod guard;
mod in_doubt;
mod lease_id;
mod maintenance;
mod multi_lock;
mod retention;
mod schedules;
mod slow_store;
mod strategies;
mod support;
mod task_admin;
pub(crate) mod task_feed;
mod task_locks;
mod worker;
mod worker_faults;
mod worker_refusals;
pub(crate) mod workflows;
