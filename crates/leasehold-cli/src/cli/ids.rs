//! Ids of tasks, executions and workers as a user types them: in full, or their first or last characters.

use std::str::FromStr;

use leasehold::model::{ExecutionId, TaskId, ValidationError, WorkerId};

/// Minimum number of characters of a short id.
const MIN_CHARS: usize = 4;
const UUID_CHARS: usize = 32;

/// Id in full, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdArg<I> {
    Full(I),
    Part(PartOfId),
}

/// First or last characters of a UUID, without hyphens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartOfId(String);

impl PartOfId {
    fn parse(text: &str) -> Option<Self> {
        let digits = text.replace('-', "").to_ascii_lowercase();
        let is_part = (MIN_CHARS..UUID_CHARS).contains(&digits.len());
        (is_part && digits.chars().all(|c| c.is_ascii_hexdigit())).then_some(Self(digits))
    }

    pub(crate) fn matches(&self, uuid: &str) -> bool {
        let digits = uuid.replace('-', "");
        digits.starts_with(&self.0) || digits.ends_with(&self.0)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<I: FromStr<Err = ValidationError>> FromStr for IdArg<I> {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        // The id of an execution is that of its task, with a prefix.
        let bare = text.strip_prefix("exec_").unwrap_or(text);
        let full = text.parse().or_else(|error| bare.parse().map_err(|_| error));
        full.map(Self::Full).or_else(|error: ValidationError| {
            PartOfId::parse(bare).map(Self::Part).ok_or_else(|| {
                error.map_message(|wrong| {
                    format!("{wrong}, or at least {MIN_CHARS} of its first or last characters")
                })
            })
        })
    }
}

pub(crate) type TaskIdArg = IdArg<TaskId>;
pub(crate) type ExecutionIdArg = IdArg<ExecutionId>;
pub(crate) type WorkerIdArg = IdArg<WorkerId>;

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01a1e21e-0000-7000-8000-00a1deadbeef";

    #[test]
    fn an_id_is_typed_in_full_or_in_part() {
        assert_eq!(ID.parse::<TaskIdArg>().unwrap(), IdArg::Full(ID.parse().unwrap()));
        assert_eq!(format!("exec_{ID}").parse::<TaskIdArg>().unwrap(), IdArg::Full(ID.parse().unwrap()));
        assert!(matches!("#12".parse::<TaskIdArg>(), Ok(IdArg::Full(_))));
        for part in ["01a1", "01A1E21E-0000", "beef", "00a1deadbeef", "8000-00a1deadbeef"] {
            let Ok(IdArg::Part(part)) = part.parse::<TaskIdArg>() else { panic!("{part}") };
            assert!(part.matches(ID), "{part:?}");
        }
        let Ok(IdArg::Part(part)) = "exec_deadbeef".parse::<ExecutionIdArg>() else { panic!("a part") };
        assert!(part.matches(ID) && !part.matches("01a1e21e-0000-7000-8000-00a1deadbee0"));
        for wrong in ["", "abc", "xyzw", "#x", &format!("{ID}0"), "exec_"] {
            assert!(wrong.parse::<TaskIdArg>().is_err(), "{wrong}");
        }
    }
}
