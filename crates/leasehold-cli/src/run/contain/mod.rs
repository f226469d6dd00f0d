//! Containment: kernel features that keep the processes of a command together, so that one call
//! kills all of them.
//!
//! | mode | what it is | what kills |
//! |---|---|---|
//! | `cgroup` | a cgroup (version 2) of the command's own, below ours | a write to `cgroup.kill`, by any of our processes |
//! | `pidns` | a PID namespace of the command's own, with a user namespace around it unless we are root | the kernel, when the first process of the namespace dies; that process dies with MONITOR |
//! | `none` | nothing: the tree is found by parent pids, as in every mode | signals, one by one |
//!
//! Decision record 25 explains why `auto` means `cgroup` or else `none`, and the limits of each mode.

#[cfg(target_os = "linux")]
mod cgroup;
mod containment;
mod mode;
#[cfg(target_os = "linux")]
mod pidns;
#[cfg(not(target_os = "linux"))]
mod unsupported;

#[cfg(target_os = "linux")]
pub(super) use cgroup::Cgroup;
pub(super) use containment::Containment;
pub(crate) use containment::{SupportedModes, probe_modes};
pub(crate) use mode::Contain;
#[cfg(target_os = "linux")]
pub(super) use pidns::Namespace;
#[cfg(not(target_os = "linux"))]
pub(super) use unsupported::{Cgroup, Namespace};
