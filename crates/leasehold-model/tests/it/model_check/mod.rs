//! Model check of the rules: every order of events in small configurations, on the same
//! `LockRecord::apply` that engines use.
//!
//! A configuration has a clock, one lock, two or three workers, requests, replies and writes in
//! flight, an admin and two sweepers. Messages are delivered in any order, at any time, or never.
//! The checker visits every reachable state and checks the properties of `properties.rs`; then it
//! does the same with mutants of the rules, each of which must be caught.

mod audit;
mod audit_leases;
mod audit_queue;
mod config;
mod configurations;
mod coverage;
mod mutants;
mod mutants_leases;
mod mutants_queue;
mod properties;
mod rules;
mod state;
mod system;
mod worker;
