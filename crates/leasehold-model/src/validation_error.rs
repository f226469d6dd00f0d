//! Error for a value that does not follow its rules.

/// Validation error; the message is meant for end users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ValidationError {
    kind: ValueKind,
    message: String,
}

/// Kind of the value that a [`ValidationError`] rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueKind {
    /// Name, key, holder or reason.
    Name,
    /// Id of a lease, a task, an execution or a worker.
    Id,
    /// Fencing token.
    Token,
    /// TTL, interval or another duration.
    Duration,
    /// Time of day and date.
    Time,
    /// Number of holders of a lock.
    Slots,
    /// Priority.
    Priority,
    /// Metadata of a lease or an execution.
    Metadata,
    /// Payload, input or result, or its JSON.
    Payload,
    /// Number of attempts of a task.
    Attempts,
    /// State of a task.
    State,
    /// Description or settings of a worker.
    Worker,
    /// Policy of a schedule.
    Policy,
    /// Cron expression.
    Cron,
    /// Time zone.
    TimeZone,
    /// Any other value, or values that do not go together.
    Other,
}

impl ValidationError {
    /// Creates an error about a value of this kind.
    pub fn new(kind: ValueKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Creates an error about a value that has no kind of its own, or about values that do not go
    /// together.
    pub fn other(message: impl Into<String>) -> Self {
        Self::new(ValueKind::Other, message)
    }

    /// Returns the kind of the rejected value.
    pub const fn kind(&self) -> ValueKind {
        self.kind
    }

    /// Returns the error with another message.
    #[must_use]
    pub fn map_message(self, change: impl FnOnce(String) -> String) -> Self {
        Self { message: change(self.message), ..self }
    }
}

/// Defines the conversions of a number that its type validates, for its stored form.
macro_rules! number_conversions {
    ($type:ident, $number:ty) => {
        impl TryFrom<$number> for $type {
            type Error = ValidationError;
            fn try_from(number: $number) -> Result<Self, ValidationError> {
                Self::new(number)
            }
        }

        impl From<$type> for $number {
            fn from(value: $type) -> $number {
                value.get()
            }
        }
    };
}
pub(super) use number_conversions;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LockName, Payload, TaskId, Token, Ttl, parse_duration};

    #[test]
    fn an_error_names_the_kind_of_the_value() {
        let kinds = [
            LockName::new("").unwrap_err().kind(),
            Ttl::new(std::time::Duration::ZERO).unwrap_err().kind(),
            parse_duration("soon").unwrap_err().map_message(|message| message + "!").kind(),
            Token::new(u64::MAX).unwrap_err().kind(),
            Payload::new("{").unwrap_err().kind(),
            "1".parse::<TaskId>().unwrap_err().kind(),
        ];
        let [name, ttl, duration, token, payload, id] = kinds;
        assert_eq!(
            (name, token, payload, id),
            (ValueKind::Name, ValueKind::Token, ValueKind::Payload, ValueKind::Id)
        );
        assert_eq!([ttl, duration], [ValueKind::Duration; 2]);
    }
}
