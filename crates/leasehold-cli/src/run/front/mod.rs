//! FRONT: the process that the shell sees. One thread, no runtime, nothing that could wait for a store.
//!
//! | file | idea |
//! |---|---|
//! | `stand.rs` | what it does from beginning to end |
//! | `jobs.rs` | signals and the terminal: being a good job of its shell |
//! | `end.rs` | killing everything, when time is up or KEEPER is dead |

mod end;
mod jobs;
mod stand;

pub(super) use stand::{Family, Front};
