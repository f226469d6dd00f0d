//! `leasehold run LOCK … -- CMD ARGS…`: a command that runs only while it holds a lock.
//!
//! The promise: **the whole process tree of the command is dead before its lease can end**, whether the store answers
//! or not, after a suspend or a `SIGSTOP`, and when any one process of ours is killed with `SIGKILL`.
//!
//! ```text
//! shell ── FRONT ── KEEPER ── COMMAND ── …
//! ```
//!
//! - FRONT is what the shell sees. It forwards signals, lends out the terminal, mirrors the exit code, and knows one
//!   thing about the lease: until when it is valid. When that time comes near it ends the tree by itself.
//! - KEEPER holds the lease, is the parent of the command, and ends what the command leaves behind before it releases.
//! - COMMAND is forked before the lock is asked for (so that the lease can name it), and waits as a stub for its "go".
//!
//! FRONT and KEEPER are both *subreapers*: an orphan of the tree falls to KEEPER, or if that is dead to FRONT, however
//! often it forked or changed its session. So each can find every process of the tree, and either alone suffices. If
//! KEEPER dies, the command dies with it (parent-death signal) and FRONT ends the rest; if FRONT dies, KEEPER does.
//!
//! | file | idea |
//! |---|---|
//! | `plan.rs` | what to run, under which locks |
//! | `start.rs` | the checks before anything happens, and the forks |
//! | `timing.rs` | when to ask the command to stop, when to kill it |
//! | `front.rs`, `signals.rs`, `terminal.rs` | the process that the shell sees |
//! | `keeper/` | the process that holds the lease |
//! | `attempt/` | the same for the commands of `leasehold tasks work` |
//! | `stub.rs`, `lookup.rs`, `environment.rs` | the command, until it is executed |
//! | `tree.rs` | finding and ending every process of the tree |
//! | `link.rs`, `alarm.rs`, `say.rs` | what they say to each other, when they wake, what they say to people |
//! | `sys.rs` | the system calls that have no safe wrapper |

mod alarm;
mod attempt;
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

pub(crate) use attempt::{CleanCommand, Crew, End, ExecutionStart, Keeper, Launched, Launcher, keep};
pub(crate) use environment::PROGRESS;
pub(crate) use plan::{Patience, RunPlan};
pub(crate) use signals::is_ignored;
pub(crate) use start::run;
