//! What this machine can do to keep the processes of a command together.

use std::io;
use std::path::PathBuf;

use super::{Cgroup, Contain, Namespace};

/// What was found.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Below which cgroup others can be made.
    pub(crate) cgroup: io::Result<PathBuf>,
    /// Whether a PID namespace can be made.
    pub(crate) pidns: io::Result<()>,
}

impl Machine {
    /// The mode that a command would get; the error says why it would not run.
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

/// Tries what there is. To be called while this process has one thread.
pub(crate) fn examine() -> Machine {
    Machine { cgroup: Cgroup::probe(), pidns: Namespace::probe() }
}
