//! Roles of callers; each role includes the rights of those below it.

use std::fmt;
use std::str::FromStr;

use leasehold::model::ValidationError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Role of a caller. Each role includes the rights of the roles before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May query everything and change nothing.
    Reader,
    /// May acquire locks, lease tasks and start workflows.
    Worker,
    /// May pause, cancel and retry, and request the release of locks.
    Operator,
    /// May release locks of others by force, and delete tasks.
    Admin,
}

impl Role {
    const ALL: [Self; 4] = [Self::Reader, Self::Worker, Self::Operator, Self::Admin];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Worker => "worker",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let names = || Self::ALL.map(Self::as_str).join(", ");
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| ValidationError(format!("invalid role '{text}': must be one of {}", names())))
    }
}
