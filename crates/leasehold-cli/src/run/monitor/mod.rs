//! MONITOR: the process that holds the lease and is the parent of the command.

mod event_loop;
mod events;
mod lease;

pub(super) use event_loop::{run_monitor, set_process_name};
