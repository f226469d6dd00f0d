//! SUPERVISOR: the process that the shell started. One thread, no runtime, no call that could wait
//! for a store.

mod event_loop;
mod job_control;
mod kill;

pub(super) use event_loop::{ProcessFamily, Supervisor};
