//! The binary as a program: every command, every exit code, every kind of invalid input. One test
//! binary: linking many takes longer than running them.

mod bounds;
mod completions;
mod config;
mod contention;
mod deadlocks;
mod deploy;
mod docs;
mod engines;
mod events;
mod examples;
#[cfg(feature = "torture")]
mod faults;
mod force;
mod habits;
mod help;
mod hints;
mod http;
mod input;
mod json;
mod leases;
mod locks;
mod maintenance;
mod namespaces;
mod notices;
mod output;
mod pasted;
mod reference;
mod run;
mod schedules;
mod secrets;
mod serve;
mod stores;
mod support;
mod tables;
mod tasks;
mod terminal_safety;
mod torture;
mod tutorials;
mod wait;
mod wait_display;
mod workflows;
