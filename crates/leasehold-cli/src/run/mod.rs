//! `leasehold run LOCK … -- CMD ARGS…`: runs a command only while its lock is held.
//!
//! Guarantee: **the whole process tree of the command is dead before its lease can end**, whether
//! or not the store responds, after a suspend or a `SIGSTOP`, and when any two of the three
//! supervising processes are killed with `SIGKILL`, in any order.
//!
//! ```text
//! shell ── SUPERVISOR ── WATCHDOG ── MONITOR ── COMMAND ── …
//! ```
//!
//! - SUPERVISOR is the process that the shell started. SUPERVISOR forwards signals, hands the
//!   terminal to the command and mirrors its exit code. The only thing SUPERVISOR knows about the
//!   lease is its expiry time; shortly before that time SUPERVISOR kills the tree without help from
//!   the others.
//! - WATCHDOG waits, and kills the tree when SUPERVISOR or MONITOR has exited, or when the lease is
//!   about to end.
//! - MONITOR holds the lease, is the parent of the command, and ends processes that the command
//!   left behind before MONITOR releases the lock.
//! - COMMAND is forked before the lock is requested (so that the lease can name the process), and
//!   waits as a pre-exec child for its "go".
//!
//! SUPERVISOR, WATCHDOG and MONITOR are *subreapers*: an orphan of the tree is reparented to
//! MONITOR, if MONITOR is dead to WATCHDOG, and otherwise to SUPERVISOR, regardless of how often
//! the orphan forked or changed its session. Each of the three can therefore find every process of
//! the tree, and one alone suffices: when any of them exits, the others kill the tree immediately.
//! If MONITOR dies, the command dies with it (parent-death signal).
//!
//! Where the kernel supports it, the tree is also in a cgroup, or on request in a PID namespace:
//! see `contain/`.

mod attempt;
mod command;
mod contain;
mod environment;
mod link;
mod lookup;
mod monitor;
mod plan;
mod pre_exec;
mod signals;
mod start;
mod status;
mod supervisor;
mod sys;
mod terminal;
mod timer;
mod timing;
mod tree;
mod watchdog;

pub(crate) use attempt::{AttemptEnd, Launched, Launcher, MonitorHandle, MonitorPool, run_attempt_monitor};
pub(crate) use contain::{Contain, SupportedModes, probe_modes};
pub(crate) use environment::{PROGRESS, enclosing_leases};
pub(crate) use plan::{RunPlan, WaitTimeout};
pub(crate) use signals::is_ignored;
pub(crate) use start::run;
