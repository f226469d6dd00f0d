//! KEEPER: the process that holds the lease and is the parent of the command.
//!
//! | file | idea |
//! |---|---|
//! | `keep.rs` | what it does from beginning to end |
//! | `lease.rs` | getting the locks and giving them back, through the library |
//! | `hold.rs` | from the start of the command to the death of the last of its processes |
//! | `events.rs` | what may happen meanwhile |

mod events;
mod hold;
mod keep;
mod lease;

pub(super) use keep::{keep, take_another_name};
