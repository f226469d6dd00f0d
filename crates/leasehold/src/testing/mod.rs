//! The conformance suite: what every engine must do, as one list of cases; and a store that fails on purpose.
//!
//! An engine runs the whole suite with one line in its tests, [`lock_conformance!`](crate::lock_conformance), given a
//! function that makes a fresh [`Fixture`]. No case can be left out: the list is here, once.

pub mod cases;
mod differential;
mod faulty;
mod fixture;
mod list;
mod player;

pub use differential::agrees_with_the_rules;
pub use faulty::{Fault, FaultyStore};
pub use fixture::Fixture;
pub use player::Player;
