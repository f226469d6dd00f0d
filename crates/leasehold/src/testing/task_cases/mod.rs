//! Conformance cases for every engine with tasks. `task_list.rs` has their names in order.

#![expect(missing_docs, reason = "the names of the cases are sentences")]

pub mod admin;
pub mod begun;
pub mod keys;
pub mod lease;
pub mod lock_queue_limit;
pub mod locked;
pub mod queries;
pub mod recovery;
pub mod runner;
pub mod settle;
pub mod timing;
