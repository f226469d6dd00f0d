//! Conformance suite: the required behaviour of every engine, as one list of cases; a store with
//! injected faults; and virtual time for simulations.
//!
//! An engine runs the whole suite with one line in its tests,
//! [`lock_conformance!`](crate::lock_conformance), with a function that creates a fresh
//! [`Fixture`]. No engine can omit a case, because there is only one list. An engine with tasks
//! runs [`task_conformance!`](crate::task_conformance) too. [`fuzz`] runs parsers and codecs on hostile
//! input.

pub mod cases;
mod differential;
pub mod doc_cases;
mod faulty;
mod fixture;
pub mod fuzz;
mod list;
mod random;
pub mod task_cases;
mod task_differential;
pub mod task_fixture;
mod task_list;

pub use differential::agrees_with_the_rules;
pub use faulty::{Fault, FaultyStore};
pub use fixture::{Fixture, TestClient};
pub use random::effort;
pub use task_differential::tasks_agree_with_the_rules;

pub use crate::store::simulation::{Mutant, SimulatedProcess, Simulation};
