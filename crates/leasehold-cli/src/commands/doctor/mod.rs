//! `doctor`: checks whether the store can be used, and prints what to do if not.

mod checks;
mod health;
mod report;

pub(super) use health::doctor;
