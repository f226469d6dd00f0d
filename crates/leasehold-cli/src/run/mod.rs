//! `leasehold run LOCK … -- CMD ARGS…`: runs a command only while its lock is held.
//!
//! Guarantee: **the whole process tree of the command is dead before its lease can end**, whether
//! or not the store responds, after a suspend or a `SIGSTOP`, and when any two of the three
//! supervising processes are killed with `SIGKILL`, in any order.
//!
//! ```text
//! shell ── FRONT ── WATCHDOG ── KEEPER ── COMMAND ── …
//! ```
//!
//! - FRONT is the process that the shell started. FRONT forwards signals, hands the terminal to the
//!   command and mirrors its exit code. The only thing FRONT knows about the lease is its expiry
//!   time; shortly before that time FRONT kills the tree without help from the others.
//! - WATCHDOG waits, and kills the tree when FRONT or KEEPER has exited, or when the lease is about
//!   to end.
//! - KEEPER holds the lease, is the parent of the command, and ends processes that the command left
//!   behind before KEEPER releases the lock.
//! - COMMAND is forked before the lock is requested (so that the lease can name the process), and
//!   waits as a stub for its "go".
//!
//! FRONT, WATCHDOG and KEEPER are *subreapers*: an orphan of the tree is reparented to KEEPER, if
//! KEEPER is dead to WATCHDOG, and otherwise to FRONT, regardless of how often the orphan forked or
//! changed its session. Each of the three can therefore find every process of the tree, and one
//! alone suffices: when any of them exits, the others kill the tree immediately. If KEEPER dies,
//! the command dies with it (parent-death signal).
//!
//! Where the kernel supports it, the tree is also in a cgroup, or on request in a PID namespace:
//! see `contain/`.

mod alarm;
mod attempt;
mod contain;
mod environment;
mod front;
mod keeper;
mod link;
mod lookup;
mod plan;
mod say;
mod signals;
mod start;
mod stub;
mod sys;
mod terminal;
mod timing;
mod tree;
mod watchdog;

pub(crate) use attempt::{
    CleanCommand, Crew, End, ExecutionStart, Keeper, Launched, Launcher, WorkerCommand, keep,
};
pub(crate) use contain::{Contain, Machine, inspect_machine};
pub(crate) use environment::PROGRESS;
pub(crate) use plan::{Patience, RunPlan};
pub(crate) use signals::is_ignored;
pub(crate) use start::run;
