//! Tests of the simulation.

mod mutants;
mod passes;
mod regressions;
