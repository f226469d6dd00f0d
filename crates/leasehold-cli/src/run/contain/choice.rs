//! Requested containment, and its preparation.

use std::io;
use std::sync::Arc;

use super::{Cgroup, Namespace};

/// Containment of the processes of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Contain {
    /// A cgroup where one can be made, else none
    #[default]
    Auto,
    /// A cgroup (version 2) of its own; killed with one write
    Cgroup,
    /// A PID namespace of its own; killed by the kernel with the processes of leasehold
    Pidns,
    /// Nothing but the relations between processes
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
    pub(in crate::run) fn prepare(self) -> io::Result<Prepared> {
        match self {
            Self::None => Ok(Prepared::None),
            Self::Pidns => self.check().map(|()| Prepared::Pidns),
            Self::Auto => Ok(Cgroup::create().map_or(Prepared::None, |cgroup| Prepared::Cgroup {
                cgroup: Arc::new(cgroup),
                required: false,
            })),
            Self::Cgroup => Cgroup::create()
                .map(|cgroup| Prepared::Cgroup { cgroup: Arc::new(cgroup), required: true })
                .map_err(|error| unavailable(self, &error)),
        }
    }
}

/// Prepared containment of one command.
#[derive(Debug, Clone)]
pub(in crate::run) enum Prepared {
    None,
    Cgroup {
        cgroup: Arc<Cgroup>,
        /// Whether the command must not run without the cgroup.
        required: bool,
    },
    Pidns,
}

impl Prepared {
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
        format!("--contain {name} is not possible here: {error}; leasehold doctor says what is"),
    )
}
