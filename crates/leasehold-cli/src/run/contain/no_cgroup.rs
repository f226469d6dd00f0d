//! Placeholder for systems without cgroups.

use std::io;

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
