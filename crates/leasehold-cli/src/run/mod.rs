//! `leasehold run LOCK … -- CMD ARGS…`: a command that runs only while it holds a lock.
//!
//! The promise: **the whole process tree of the command is dead before its lease can end**, whether the store answers
//! or not, after a suspend or a `SIGSTOP`, and when processes of ours are killed with `SIGKILL`, any two of the three, in any order.
//!
//! ```text
//! shell ── FRONT ── WATCHDOG ── KEEPER ── COMMAND ── …
//! ```
//!
//! - FRONT is what the shell sees. It forwards signals, lends out the terminal, mirrors the exit code, and knows one
//!   thing about the lease: until when it is valid. When that time comes near it ends the tree by itself.
//! - WATCHDOG waits, and kills the tree when FRONT or KEEPER is gone, or when time is up.
//! - KEEPER holds the lease, is the parent of the command, and ends what the command leaves behind before it releases.
//! - COMMAND is forked before the lock is asked for (so that the lease can name it), and waits as a stub for its "go".
//!
//! The first three are *subreapers*: an orphan of the tree falls to KEEPER, or if that is dead to WATCHDOG, or else to
//! FRONT, however often it forked or changed its session. So each can find every process of the tree, and one alone
//! suffices: when any of them is gone, the others kill the tree at once. If KEEPER dies, the command dies with it
//! (parent-death signal).
//!
//! Where the kernel offers it, the tree is also in a cgroup, or on request in a PID namespace: see `contain/`.
//!
//! | file | idea |
//! |---|---|
//! | `plan.rs` | what to run, under which locks |
//! | `start.rs` | the checks before anything happens, and the forks |
//! | `timing.rs` | when to ask the command to stop, when to kill it |
//! | `front.rs`, `signals.rs`, `terminal.rs` | the process that the shell sees |
//! | `keeper/` | the process that holds the lease |
//! | `watchdog.rs` | the process between them |
//! | `attempt/` | the same for the commands of `leasehold tasks work` |
//! | `stub.rs`, `lookup.rs`, `environment.rs` | the command, until it is executed |
//! | `contain/` | cgroups and PID namespaces |
//! | `tree.rs` | finding and ending every process of the tree |
//! | `link.rs`, `alarm.rs`, `say.rs` | what they say to each other, when they wake, what they say to people |
//! | `sys.rs` | the system calls that have no safe wrapper |

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
pub(crate) use contain::{Contain, Machine, examine};
pub(crate) use environment::PROGRESS;
pub(crate) use plan::{Patience, RunPlan};
pub(crate) use signals::is_ignored;
pub(crate) use start::run;
