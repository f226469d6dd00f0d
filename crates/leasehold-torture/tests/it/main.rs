//! Tests of the checkers: each finds its violation, and no violation where there is none.

#[cfg(feature = "testing")]
mod broken;
mod checkers;
mod engine_faults;
mod format;
mod fuzz;
mod parts;
mod second_opinion;
