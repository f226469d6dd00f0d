//! Placeholders for systems without cgroups and PID namespaces.

use std::io;
use std::marker::PhantomData;

use nix::unistd::Pid;

/// PID namespace that can never be created.
#[derive(Debug)]
pub(in crate::run) enum Namespace {}

/// Pipes of the processes of a namespace; unused here.
pub(in crate::run) struct Pipes<K, C> {
    pub(in crate::run) for_monitor: K,
    pub(in crate::run) for_command: C,
}

impl Namespace {
    pub(in crate::run) fn fork<K, C>(
        pipes: Pipes<K, C>,
        _: impl FnOnce(C) -> i32,
    ) -> io::Result<(Pid, Self, K)> {
        let _ = (pipes.for_monitor, PhantomData::<C>);
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

    pub(in crate::run) fn remove(&self) {}

    pub(super) fn probe() -> io::Result<std::path::PathBuf> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::run) fn fork(&self) -> Result<nix::unistd::ForkResult, nix::errno::Errno> {
        match *self {}
    }
}
