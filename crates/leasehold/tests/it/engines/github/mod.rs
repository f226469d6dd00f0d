//! Tests of `github://OWNER/REPO`, on a fake of GitHub.

mod app;
mod assignment;
mod crash;
mod fake;
mod faults;
mod issues;
mod metrics;
mod people;
mod rate_limits;
mod refs;
mod suite;
mod support;
mod tasks;
