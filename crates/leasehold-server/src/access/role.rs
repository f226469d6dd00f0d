//! Roles of callers; each role includes the rights of those below it.

use std::fmt;
use std::str::FromStr;

use leasehold::model::ValidationError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a caller may do; each role may also do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Looks.
    Reader,
    /// Takes locks and tasks, starts workflows.
    Worker,
    /// Steps in: pauses, cancels, retries, asks holders to stop.
    Operator,
    /// Takes locks away from others.
    Admin,
}

impl Role {
    const ALL: [Self; 4] = [Self::Reader, Self::Worker, Self::Operator, Self::Admin];

    const fn word(self) -> &'static str {
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
        f.pad(self.word())
    }
}

impl FromStr for Role {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let words = || Self::ALL.map(Self::word).join(", ");
        let found = Self::ALL.into_iter().find(|role| role.word() == text);
        found.ok_or_else(|| ValidationError(format!("'{text}' is not a role; the roles are {}", words())))
    }
}
