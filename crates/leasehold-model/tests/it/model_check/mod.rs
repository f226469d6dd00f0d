//! The rules, model-checked: every order of events in a small world, on the very `LockRecord::apply` that engines use.
//!
//! A world has a clock, one lock, two or three workers, requests, replies and writes in flight, an admin and two
//! sweepers. Messages are delivered in any order, at any time, or never. The checker visits every state that can be
//! reached and asks each for the promises of `promises.rs`; then the same is done with rules that are wrong on
//! purpose, each of which must be caught.
//!
//! | file | idea |
//! |---|---|
//! | `config.rs`, `worlds.rs` | how large a world is; the worlds that are explored |
//! | `state.rs` | what a world looks like at one moment |
//! | `system.rs`, `worker.rs` | what may happen next, and what comes of it |
//! | `promises.rs` | what must hold; the promises about what workers believe |
//! | `audit.rs`, `audit_leases.rs`, `audit_queue.rs` | the promises about one step of the rules |
//! | `facts.rs` | what must have happened at least once, so that no promise holds for want of a case |
//! | `forget.rs` | forgetting the lock while it is idle, and making it again |
//! | `rules.rs`, `mutants.rs`, `mutants_leases.rs`, `mutants_queue.rs` | the rules as they are, and wrong ones |
//! | `right.rs`, `wrong.rs` | the tests |

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
