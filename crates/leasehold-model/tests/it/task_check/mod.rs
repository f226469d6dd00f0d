//! Model check of the rules of tasks: every order of events in small configurations, on the same
//! `Task::apply` and `TaskTable` that engines follow.
//!
//! A configuration has a clock, one or two tasks, one or two workers, requests, replies and writes
//! in flight, people who cancel, retry and change tasks, and two sweepers. Messages are delivered
//! in any order, at any time, twice or never. A paused worker is one whose messages are late. The
//! checker visits every reachable state and checks the properties of `properties.rs`; then it does
//! the same with mutants of the rules, each of which must be caught.

mod audit;
mod audit_table;
mod audit_task;
mod config;
mod configurations;
mod coverage;
mod memory;
mod mutants;
mod mutants_leases;
mod mutants_table;
mod properties;
mod rules;
mod state;
mod system;
mod worker;
