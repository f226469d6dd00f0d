//! Command of `leasehold tasks work`, for one attempt at a task.
//!
//! Guarantee, by the same processes as for `run`: **the whole process tree of the command is dead
//! before the lease on its task can end**.
//!
//! ```text
//! WORKER ─┬─ WATCHDOG ── MONITOR ── COMMAND ── …        for each task that runs
//!         └─ WATCHDOG ── MONITOR ── COMMAND ── …
//! ```
//!
//! - WORKER holds the leases on all its tasks, and sends each MONITOR the expiry time of its lease.
//! - WATCHDOG is this program again, with one thread and no store. WATCHDOG forks MONITOR, and kills
//!   the tree when WORKER or MONITOR has exited, or when the lease is about to end.
//! - MONITOR knows only the expiry time of the lease. Shortly before that time, or when WORKER has
//!   exited, MONITOR ends the tree without help from the others.
//! - All are subreapers: if MONITOR is killed, the command dies with it (parent-death signal), and
//!   the remaining processes are reparented to WATCHDOG, or else to WORKER, which end them.

mod launch;
mod monitor;
mod pool;

pub(crate) use launch::{Launched, Launcher};
pub(crate) use monitor::run_attempt_monitor;
pub(crate) use pool::{AttemptEnd, MonitorHandle, MonitorPool};
