//! Placeholder for systems without PID namespaces.

use std::io;
use std::marker::PhantomData;

use nix::unistd::Pid;

/// PID namespace that can never be created.
#[derive(Debug)]
pub(in crate::run) enum Namespace {}

/// Pipes of the processes of a namespace; unused here.
pub(in crate::run) struct Pipes<K, C> {
    pub(in crate::run) keepers: K,
    pub(in crate::run) commands: C,
}

impl Namespace {
    pub(in crate::run) fn fork<K, C>(
        pipes: Pipes<K, C>,
        _: impl FnOnce(C) -> i32,
    ) -> io::Result<(Pid, Self, K)> {
        let _ = (pipes.keepers, PhantomData::<C>);
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
