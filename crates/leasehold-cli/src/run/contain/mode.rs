//! Containment modes that can be requested.

use std::io;

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
}

/// Returns the error for a requested containment that is not available.
pub(super) fn unavailable(mode: Contain, error: &io::Error) -> io::Error {
    let name = mode.name();
    let hint = "leasehold doctor lists the available modes";
    io::Error::new(error.kind(), format!("--contain {name} is not available here: {error}; {hint}"))
}
