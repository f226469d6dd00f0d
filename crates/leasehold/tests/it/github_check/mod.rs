//! Exhaustive check of the protocol over comments of an issue, in small configurations: requests
//! arrive at any time, workers die at any step, ids have any order, times have a coarse resolution,
//! lists may be stale. Mutants of the protocol have to be caught.

mod mutants;
mod passes;
mod refs;
mod rules;
mod steps;
mod system;
