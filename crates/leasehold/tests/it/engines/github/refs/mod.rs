//! Tests of `github://OWNER/REPO?arbiter=ref`: locks by compare-and-swap of git refs.

mod clock;
mod cost;
mod faults;
mod git;
mod people;
mod race;
mod stale_reads;
mod suite;
pub(super) mod support;
