//! `github://OWNER/REPO`, on a GitHub of our own.

mod app;
mod assignment;
mod crash;
mod fake;
mod faults;
mod limits;
mod metered;
mod names;
mod people;
mod refs;
mod suite;
mod support;
mod tasks;
