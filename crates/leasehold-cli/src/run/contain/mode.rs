//! Containment modes: the requested one, its preparation, and the modes that this machine supports.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Cgroup, Namespace};

/// Containment of the processes of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Contain {
    /// A cgroup if one can be created, otherwise none
    #[default]
    Auto,
    /// A cgroup (version 2) for each command; killed with one write
    Cgroup,
    /// A PID namespace for each command; killed by the kernel when leasehold exits
    Pidns,
    /// Nothing: processes are found by their parents
    None,
}

impl Contain {
    const ALL: [Self; 4] = [Self::Auto, Self::Cgroup, Self::Pidns, Self::None];

    /// Returns the number by which another process of this program receives the mode.
    pub(in crate::run) fn number(self) -> u64 {
        self as u64
    }

    pub(in crate::run) fn from_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cgroup => "cgroup",
            Self::Pidns => "pidns",
            Self::None => "none",
        }
    }

    /// Finds a mode by its name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

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
            Self::Auto => Ok(Cgroup::create().map_or(Containment::None, |cgroup| Containment::Cgroup {
                cgroup: Arc::new(cgroup),
                required: false,
            })),
            Self::Cgroup => Cgroup::create()
                .map(|cgroup| Containment::Cgroup { cgroup: Arc::new(cgroup), required: true })
                .map_err(|error| unavailable(self, &error)),
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

    /// Removes the resources. Must be called when the command and all processes that it started are
    /// dead.
    pub(in crate::run) fn remove(&self) {
        if let Some(cgroup) = self.cgroup() {
            cgroup.remove();
        }
    }
}

/// Returns the error for a requested containment that is not available.
pub(super) fn unavailable(mode: Contain, error: &io::Error) -> io::Error {
    let name = mode.name();
    io::Error::new(
        error.kind(),
        format!(
            "--contain {name} is not available here: {error}; leasehold doctor lists the available modes"
        ),
    )
}

/// Result of the inspection.
#[derive(Debug)]
pub(crate) struct SupportedModes {
    /// Cgroup below which others can be created.
    pub(crate) cgroup: io::Result<PathBuf>,
    /// Whether a PID namespace can be created.
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
