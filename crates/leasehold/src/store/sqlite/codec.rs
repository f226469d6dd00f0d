//! Conversion of values to and from columns.

use rusqlite::types::Type;

use crate::model::Timestamp;

/// Returns a time in its stored form: microseconds.
pub(super) fn micros(time: Timestamp) -> i64 {
    to_integer(time.as_micros())
}

/// Reads a stored time.
pub(super) fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Returns a number in its stored form: SQLite's integers are signed.
pub(super) fn to_integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn to_json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

pub(super) fn from_json<T: for<'de> serde::Deserialize<'de>>(
    text: &str,
    column: usize,
) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| unreadable(column, error))
}

/// Returns the error for a text column with an invalid value.
pub(super) fn unreadable(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into())
}
