//! KEEPER: the process that holds the lease and is the parent of the command.

mod events;
mod hold;
mod keep;
mod lease;

pub(super) use keep::{keep, take_another_name};
