//! The conformance suite: what every engine must do, as one list of cases; and a store that fails on purpose.
//!
//! An engine runs the whole suite with one line in its tests, [`lock_conformance!`](crate::lock_conformance), given a
//! function that makes a fresh [`Fixture`]. No case can be left out: the list is here, once. An engine with tasks runs
//! [`task_conformance!`](crate::task_conformance) too.

pub mod cases;
mod differential;
pub mod doc_cases;
mod faulty;
mod faulty_tasks;
mod fixture;
mod list;
mod player;
mod random;
pub mod shop;
pub mod task_cases;
mod task_differential;
mod task_list;

pub use differential::agrees_with_the_rules;
pub use faulty::{Fault, FaultyStore};
pub use fixture::Fixture;
pub use player::Player;
pub use task_differential::tasks_agree_with_the_rules;
