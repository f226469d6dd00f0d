//! Tests of the checkers: each finds its violation, and no violation where there is none.

mod checkers;
mod format;
