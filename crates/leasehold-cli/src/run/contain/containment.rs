//! Preparation of a containment, and the modes that this machine supports.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::mode::{Contain, unavailable};
use super::{Cgroup, Namespace};

impl Contain {
    /// Tests whether this mode is available here, if it was requested by name. Must be called while
    /// this process has one thread.
    pub(in crate::run) fn check(self) -> io::Result<()> {
        let tried = match self {
            Self::Auto | Self::None => Ok(()),
            Self::Cgroup => Cgroup::probe().map(|_| ()),
            Self::Pidns => Namespace::probe(),
        };
        tried.map_err(|error| unavailable(self, &error))
    }

    /// Creates the resources that must exist before the first of our processes is forked.
    pub(in crate::run) fn prepare(self) -> io::Result<Containment> {
        match self {
            Self::None => Ok(Containment::None),
            Self::Pidns => self.check().map(|()| Containment::Pidns),
            Self::Auto | Self::Cgroup => {
                let required = self == Self::Cgroup;
                match Cgroup::create() {
                    Ok(cgroup) => Ok(Containment::Cgroup { cgroup: Arc::new(cgroup), required }),
                    Err(error) if required => Err(unavailable(self, &error)),
                    Err(_) => Ok(Containment::None),
                }
            }
        }
    }
}

/// Prepared containment of one command.
#[derive(Debug, Clone)]
pub(in crate::run) enum Containment {
    None,
    Cgroup {
        cgroup: Arc<Cgroup>,
        /// Whether the command must not run without the cgroup.
        required: bool,
    },
    Pidns,
}

impl Containment {
    pub(in crate::run) fn cgroup(&self) -> Option<&Arc<Cgroup>> {
        match self {
            Self::Cgroup { cgroup, .. } => Some(cgroup),
            Self::None | Self::Pidns => None,
        }
    }

    /// Kills the processes that commands left in cgroups whose owner has exited. Must be called
    /// before a command begins.
    pub(in crate::run) fn end_abandoned(&self) {
        if let Some(cgroup) = self.cgroup() {
            cgroup.end_abandoned();
        }
    }

    /// Removes the resources. Must be called when the command and all processes that it started are dead.
    pub(in crate::run) fn remove(&self) {
        if let Some(cgroup) = self.cgroup() {
            cgroup.remove();
        }
    }
}

#[derive(Debug)]
pub(crate) struct SupportedModes {
    /// Cgroup below which others can be created.
    pub(crate) cgroup: io::Result<PathBuf>,
    pub(crate) pidns: io::Result<()>,
}

impl SupportedModes {
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
pub(crate) fn probe_modes() -> SupportedModes {
    SupportedModes { cgroup: Cgroup::probe(), pidns: Namespace::probe() }
}
