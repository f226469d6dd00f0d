//! `github://OWNER/REPO`, on a GitHub of our own.

mod app;
mod crash;
mod fake;
mod faults;
mod names;
mod people;
mod refs;
mod suite;
mod support;
mod tasks;
