//! The rules, model-checked: every order of events in a small world, on the very `LockRecord::apply` that engines use.
//!
//! A world has a clock, one lock, two or three workers, requests, replies and writes in flight, an admin and two
//! sweepers. Messages are delivered in any order, at any time, or never. The checker visits every state that can be
//! reached and asks each for the promises of `promises.rs`; then the same is done with rules that are wrong on
//! purpose, each of which must be caught.

mod audit;
mod audit_leases;
mod audit_queue;
mod config;
mod facts;
mod forget;
mod mutants;
mod mutants_leases;
mod mutants_queue;
mod promises;
mod right;
mod rules;
mod state;
mod system;
mod worker;
mod worlds;
mod wrong;
