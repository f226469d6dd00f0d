//! The command of `leasehold tasks work`, for one attempt at a task.
//!
//! The same promise as for `run`, by the same processes: **the whole process tree of the command is dead before the
//! lease on its task can end**.
//!
//! ```text
//! WORKER ─┬─ WATCHDOG ── KEEPER ── COMMAND ── …        for each task that runs
//!         └─ WATCHDOG ── KEEPER ── COMMAND ── …
//! ```
//!
//! - WORKER has the leases on all its tasks, and tells each KEEPER until when its own is valid.
//! - WATCHDOG is this program once more, with one thread and no store. It forks KEEPER, and kills the tree when WORKER
//!   or KEEPER is gone, or when time is up.
//! - KEEPER knows one thing about the lease: until when it is valid. When that time comes near, or WORKER is gone, it ends
//!   the tree by itself.
//! - All are subreapers: if KEEPER is killed, the command dies with it (parent-death signal), and what else is left falls
//!   to WATCHDOG, or else to WORKER, which end it.
//!
//! | file | idea |
//! |---|---|
//! | `order.rs` | what KEEPER is told before it starts the command |
//! | `keep.rs` | the start of KEEPER |
//! | `watch.rs` | KEEPER, from the start of the command to the death of the last of its processes |
//! | `launch.rs` | WORKER starts a KEEPER |
//! | `keeper.rs` | KEEPER as WORKER sees it |
//! | `crew.rs` | all of them, and what they leave behind |

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
