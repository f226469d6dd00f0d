//! Placeholders for systems without cgroups and PID namespaces.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::unistd::{ForkResult, Pid};

/// PID namespace that can never be created.
#[derive(Debug)]
pub(in crate::run) enum Namespace {}

impl Namespace {
    pub(in crate::run) fn fork<K, C>(_: K, _: C, _: impl FnOnce(C) -> i32) -> io::Result<(Pid, Self, K)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::run) fn init(&self) -> Pid {
        match *self {}
    }

    pub(in crate::run) fn close_when_empty(&self) {}

    pub(super) fn probe() -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Cgroup that can never be created.
#[derive(Debug)]
pub(in crate::run) enum Cgroup {}

impl Cgroup {
    pub(in crate::run) fn create() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::run) fn kill(&self) {}

    pub(in crate::run) fn end_abandoned(&self) {}

    pub(in crate::run) fn end_abandoned_below_own() {}

    pub(in crate::run) fn remove(&self) {}

    pub(super) fn probe() -> io::Result<PathBuf> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::run) fn fork(&self) -> Result<ForkResult, Errno> {
        match *self {}
    }
}
