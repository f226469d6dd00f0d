//! Which containment is wanted, and what comes of it.

use std::io;
use std::sync::Arc;

use super::{Cgroup, Namespace};

/// What is to keep the processes of a command together.
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

    /// As another process of this program is told.
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

    /// Tries whether this mode can be had here, if it was asked for by name. To be called while this process has one thread.
    pub(in crate::run) fn check(self) -> io::Result<()> {
        let tried = match self {
            Self::Auto | Self::None => Ok(()),
            Self::Cgroup => Cgroup::probe().map(|_| ()),
            Self::Pidns => Namespace::probe(),
        };
        tried.map_err(|error| unavailable(self, &error))
    }

    /// Makes what has to be there before the first of our processes is forked.
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

/// The mode of one command, made ready.
#[derive(Debug, Clone)]
pub(in crate::run) enum Prepared {
    None,
    Cgroup {
        cgroup: Arc<Cgroup>,
        /// Whether the command must not run without it.
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

    /// Kills what commands have left in cgroups that none of our processes watches any more. To be called before a command
    /// begins.
    pub(in crate::run) fn end_abandoned(&self) {
        if let Some(cgroup) = self.cgroup() {
            cgroup.end_abandoned();
        }
    }

    /// Removes what was made. To be called when the command and all that it started are dead.
    pub(in crate::run) fn remove(&self) {
        if let Some(cgroup) = self.cgroup() {
            cgroup.remove();
        }
    }
}

/// The containment that was asked for cannot be had.
pub(super) fn unavailable(mode: Contain, error: &io::Error) -> io::Error {
    let name = mode.name();
    io::Error::new(
        error.kind(),
        format!("--contain {name} is not possible here: {error}; leasehold doctor says what is"),
    )
}
