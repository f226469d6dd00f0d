//! `github://OWNER/REPO?arbiter=ref`: locks by compare-and-swap of git refs.

mod clock;
mod cost;
mod faults;
mod git;
mod old;
mod people;
mod race;
mod suite;
pub(super) mod support;
