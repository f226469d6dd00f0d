//! Conformance suite: the required behaviour of every engine, as one list of cases; and a store
//! with injected faults.
//!
//! An engine runs the whole suite with one line in its tests,
//! [`lock_conformance!`](crate::lock_conformance), with a function that creates a fresh
//! [`Fixture`]. No engine can omit a case, because there is only one list. An engine with tasks
//! runs [`task_conformance!`](crate::task_conformance) too.

pub mod cases;
mod client;
mod differential;
pub mod doc_cases;
mod faulty;
mod fixture;
mod list;
mod random;
pub mod task_cases;
mod task_differential;
pub mod task_fixture;
mod task_list;

pub use client::TestClient;
pub use differential::agrees_with_the_rules;
pub use faulty::{Fault, FaultyStore};
pub use fixture::Fixture;
pub use task_differential::tasks_agree_with_the_rules;
