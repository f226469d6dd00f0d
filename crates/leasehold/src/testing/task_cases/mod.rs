//! Conformance cases for every engine with tasks. `task_list.rs` has their names in order.

#![expect(missing_docs, reason = "the names of the cases are sentences")]

pub mod begun;
pub mod by_hand;
pub mod keys;
pub mod leasing;
pub mod locked;
pub mod recovery;
pub mod room;
pub mod runner;
pub mod settling;
pub mod showing;
pub mod timing;
