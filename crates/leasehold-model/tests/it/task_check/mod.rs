//! The rules of tasks, model-checked: every order of events in a small world, on the very `Task::apply` and `TaskTable`
//! that engines follow.
//!
//! A world has a clock, one or two tasks, one or two workers, requests, replies and writes in flight, people who cancel,
//! retry and change, and two sweepers. Messages are delivered in any order, at any time, twice or never. A worker that is
//! paused is one whose messages come late. The checker visits every state that can be reached and asks each for the
//! promises of `promises.rs`; then the same is done with rules that are wrong on purpose, each of which must be caught.

mod audit;
mod audit_table;
mod audit_task;
mod config;
mod facts;
mod memory;
mod mutants;
mod mutants_leases;
mod mutants_table;
mod promises;
mod right;
mod rules;
mod state;
mod system;
mod worker;
mod worlds;
mod wrong;
