//! Integration tests of the library, in one binary: linking many binaries takes longer than running them.

mod client;
mod codes;
mod engines;
mod fuzz;
mod github_check;
