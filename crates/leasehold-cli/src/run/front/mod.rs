//! FRONT: the process that the shell started. One thread, no runtime, no call that could wait for a
//! store.

mod end;
mod jobs;
mod stand;

pub(super) use stand::{Family, Front};
