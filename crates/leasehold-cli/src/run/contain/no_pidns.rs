//! Where there are no PID namespaces.

use std::io;
use std::marker::PhantomData;

use nix::unistd::Pid;

/// Cannot be made.
#[derive(Debug)]
pub(in crate::run) enum Namespace {}

/// Cannot be used.
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
