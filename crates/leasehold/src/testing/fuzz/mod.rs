//! Fuzzing on stable Rust: the corpus of a target, inputs that are mutated from it, and the report of
//! an input that fails.
//!
//! A target is a test in a module `fuzz` that calls [`fuzz`]. `cargo xtask test` runs it for a bounded
//! number of inputs, and `cargo xtask fuzz` for as long as wanted.

mod driver;
mod json;
mod mutator;
mod shape;

pub use driver::fuzz;
pub use shape::Shape;
