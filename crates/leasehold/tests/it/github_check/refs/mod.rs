//! Exhaustive check of locks as git refs, in small configurations: a read returns any earlier tip,
//! requests and responses take any time, workers die at any step. Mutants of the protocol have to
//! be caught.

mod properties;
mod steps;
mod system;
