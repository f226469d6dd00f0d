//! SQLite engine: the conformance suite, restarts, power cuts, and foreign or missing files.

mod boot;
mod file;
mod processes;
mod restart;
mod suite;
mod tasks;
mod writers;
