//! Tests of the checkers: each finds its violation, and no violation where there is none.

#[cfg(feature = "testing")]
mod broken;
mod checkers;
mod format;
