//! Locks on any engine that can compare and swap a document: load, apply, save if nobody was faster, else again.
//!
//! | file | idea |
//! |---|---|
//! | `locks.rs` | the engine and its locks: the calls of the trait |
//! | `swap.rs` | the loop itself |
//! | `lanes.rs` | the callers of one process stand in line for a lock, and remember what they last saw of it |
//! | `lock_doc.rs` | a lock's document |
//! | `sights.rs` | when a lease is over, seen from where there is no common clock |
//! | `history.rs` | the events that have moved out of the documents |

mod history;
mod lanes;
mod lock_doc;
mod locks;
mod sights;
mod swap;

pub use locks::{Cas, CasLocks};
pub use sights::Sights;
