//! `github://OWNER/REPO`, on a GitHub of our own.

mod crash;
mod fake;
mod faults;
mod names;
mod people;
mod suite;
mod support;
mod tasks;
