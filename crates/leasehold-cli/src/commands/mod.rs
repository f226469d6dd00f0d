//! What the commands do: each one asks the library and hands the answer to `output`.
//!
//! | file | commands |
//! |---|---|
//! | `dispatch.rs` | from the command line to a command, with its store |
//! | `limits.rs` | what every command needs of the system |
//! | `run.rs` | `run`, up to the plan that `crate::run` carries out |
//! | `list.rs`, `look.rs` | `locks list`, `locks status`, `locks why` |
//! | `acquire.rs`, `lease.rs` | `locks acquire`, and renewing and releasing what it left held |
//! | `force.rs`, `ask.rs`, `wait.rs` | `locks release --force`, `locks ask`, `locks wait` |
//! | `history.rs`, `watch.rs` | `history`, `watch` |
//! | `sweep.rs`, `fence.rs`, `doctor.rs` | `sweep`, `fence check`, `doctor` |
//! | `tasks/`, `schedules.rs` | `tasks`, `queues`, `workers`; `schedules` |
//! | `serve.rs`, `token.rs` | `serve`, up to the plan that `crate::serve` carries out; `token` |
//! | `workflows.rs` | `workflows`, `executions` |
//! | `shell.rs` | `completions`, `man` |
//! | `request.rs` | what `run` and `locks acquire` ask for |

mod acquire;
mod ask;
mod dispatch;
mod doctor;
mod fence;
mod force;
mod history;
mod lease;
mod limits;
mod list;
mod look;
mod request;
mod run;
mod schedules;
mod serve;
mod shell;
mod store;
mod sweep;
mod tasks;
mod token;
mod wait;
mod watch;
mod workflows;

pub(crate) use dispatch::dispatch;
