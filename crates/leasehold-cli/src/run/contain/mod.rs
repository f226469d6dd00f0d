//! Containment: what the kernel offers to keep the processes of a command together, so that one call kills all of them.
//!
//! | mode | what it is | what kills |
//! |---|---|---|
//! | `cgroup` | a cgroup (version 2) of the command's own, below ours | a write to `cgroup.kill`, by any of our processes |
//! | `pidns` | a PID namespace of the command's own, with a user namespace around it unless we are root | the kernel, when the first process of the namespace dies; that one dies with KEEPER |
//! | `none` | nothing: the tree is found by its parents, as in every mode | signals, one by one |
//!
//! The decision record 25 says why `auto` is `cgroup` or else `none`, and what each mode leaves open.
//!
//! | file | idea |
//! |---|---|
//! | `choice.rs` | which mode |
//! | `cgroup.rs` | a cgroup for a command, and ending those that nobody watches any more |
//! | `pidns.rs` | a PID namespace for a command |
//! | `machine.rs` | what this machine can do, for `doctor` |

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(not(target_os = "linux"))]
#[path = "no_cgroup.rs"]
mod cgroup;
mod choice;
mod machine;
#[cfg(target_os = "linux")]
mod pidns;
#[cfg(not(target_os = "linux"))]
#[path = "no_pidns.rs"]
mod pidns;

pub(super) use cgroup::Cgroup;
pub(crate) use choice::Contain;
pub(super) use choice::Prepared;
pub(crate) use machine::{Machine, examine};
pub(super) use pidns::{Namespace, Pipes};
