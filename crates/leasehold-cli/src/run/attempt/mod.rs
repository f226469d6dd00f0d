//! Command of `leasehold tasks work`, for one attempt at a task.
//!
//! Guarantee, by the same processes as for `run`: **the whole process tree of the command is dead
//! before the lease on its task can end**.
//!
//! ```text
//! WORKER ─┬─ WATCHDOG ── KEEPER ── COMMAND ── …        for each task that runs
//!         └─ WATCHDOG ── KEEPER ── COMMAND ── …
//! ```
//!
//! - WORKER holds the leases on all its tasks, and sends each KEEPER the expiry time of its lease.
//! - WATCHDOG is this program again, with one thread and no store. WATCHDOG forks KEEPER, and kills
//!   the tree when WORKER or KEEPER has exited, or when the lease is about to end.
//! - KEEPER knows only the expiry time of the lease. Shortly before that time, or when WORKER has
//!   exited, KEEPER ends the tree without help from the others.
//! - All are subreapers: if KEEPER is killed, the command dies with it (parent-death signal), and
//!   the remaining processes are reparented to WATCHDOG, or else to WORKER, which end them.

mod crew;
mod keep;
mod keeper;
mod launch;
mod order;
mod watch;

pub(crate) use crew::Crew;
pub(crate) use keep::keep;
pub(crate) use keeper::{End, Keeper};
pub(crate) use launch::{CleanCommand, ExecutionStart, Launched, Launcher, WorkerCommand};
