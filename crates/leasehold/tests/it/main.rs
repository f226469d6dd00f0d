//! The integration tests of the library, in one binary: linking many costs more than it tells.

mod client;
mod codes;
mod engines;
mod github_check;
