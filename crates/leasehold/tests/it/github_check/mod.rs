//! The protocol over comments of an issue, checked exhaustively for small worlds: workers whose requests arrive when they
//! like, who die at any step; ids in any order; times in coarse units; lists that are old. And protocols that are wrong on
//! purpose, which have to be caught.
//!
//! | file | idea |
//! |---|---|
//! | `rules.rs` | what a worker does with what it sees: the right way, and the wrong ones |
//! | `system.rs` | issue, network and workers as a state machine |
//! | `steps.rs` | what each step does |
//! | `right.rs` | the right protocol never has two holders, and the dead are followed |
//! | `wrong.rs` | every wrong one is caught |
//! | `refs/` | the same for locks that are git refs |

mod refs;
mod right;
mod rules;
mod steps;
mod system;
mod wrong;
