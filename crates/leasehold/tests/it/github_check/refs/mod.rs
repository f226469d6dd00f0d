//! Locks as git refs, checked exhaustively for small worlds: every read shows any tip that ever was, requests and answers
//! take any time, workers die at any step. And ways that are wrong on purpose, which have to be caught.
//!
//! | file | idea |
//! |---|---|
//! | `system.rs` | ref, network and workers as a state machine, and the decisions that can be wrong |
//! | `steps.rs` | what each step does |
//! | `worlds.rs` | the right way keeps its promises, the wrong ones are caught |

mod steps;
mod system;
mod worlds;
