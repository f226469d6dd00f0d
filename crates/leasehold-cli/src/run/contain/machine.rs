//! Containment modes that this machine supports.

use std::io;
use std::path::PathBuf;

use super::{Cgroup, Contain, Namespace};

/// Result of the inspection.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Cgroup below which others can be created.
    pub(crate) cgroup: io::Result<PathBuf>,
    /// Whether a PID namespace can be created.
    pub(crate) pidns: io::Result<()>,
}

impl Machine {
    /// Returns the mode that a command would get; the error states why it would not run.
    pub(crate) fn mode(&self, wanted: Contain) -> Result<Contain, &io::Error> {
        match wanted {
            Contain::Auto if self.cgroup.is_err() => Ok(Contain::None),
            Contain::Auto => Ok(Contain::Cgroup),
            Contain::Cgroup => self.cgroup.as_ref().map(|_| wanted),
            Contain::Pidns => self.pidns.as_ref().map(|()| wanted),
            Contain::None => Ok(wanted),
        }
    }
}

/// Tests the available modes. Must be called while this process has one thread.
pub(crate) fn inspect_machine() -> Machine {
    Machine { cgroup: Cgroup::probe(), pidns: Namespace::probe() }
}
