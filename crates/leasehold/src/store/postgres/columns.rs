//! Conversion of single values to and from columns.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;

use super::error::PgError;
use crate::model::{Timestamp, Ttl};

/// Converts a time to the value of its column.
pub(super) fn micros(time: Timestamp) -> i64 {
    int8(time.as_micros())
}

/// Converts a TTL to the value of its column.
pub(super) fn ttl_micros(ttl: Ttl) -> i64 {
    int8(ttl.as_micros())
}

/// Converts a number to the value of its column: tokens and counts stay below 2^53.
pub(super) fn int8(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a small number to the value of its column.
pub(super) fn int4(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Reads a number that is not negative.
pub(super) fn number(row: &Row, at: usize) -> Result<u64, PgError> {
    u64::try_from(row.try_get::<_, i64>(at)?).map_err(invalid_row)
}

/// Reads a time.
pub(super) fn time(row: &Row, at: usize) -> Result<Timestamp, PgError> {
    number(row, at).map(Timestamp::from_micros)
}

/// Reads a time, if the column is not null.
pub(super) fn maybe_time(row: &Row, at: usize) -> Result<Option<Timestamp>, PgError> {
    row.try_get::<_, Option<i64>>(at)?.map(|_| time(row, at)).transpose()
}

/// Reads a duration.
pub(super) fn ttl(row: &Row, at: usize) -> Result<Ttl, PgError> {
    Ttl::try_from(number(row, at)?).map_err(invalid_row)
}

/// Reads a small number that is not negative.
pub(super) fn count(row: &Row, at: usize) -> Result<u32, PgError> {
    u32::try_from(row.try_get::<_, i32>(at)?).map_err(invalid_row)
}

/// Parses a JSON column, if it is not null.
pub(super) fn read_json<T: DeserializeOwned>(row: &Row, at: usize) -> Result<Option<T>, PgError> {
    row.try_get::<_, Option<&str>>(at)?.map(parse_json).transpose()
}

/// Parses a JSON value.
pub(super) fn parse_json<T: DeserializeOwned>(text: &str) -> Result<T, PgError> {
    serde_json::from_str(text).map_err(invalid_row)
}

/// Converts a value to the text of its JSON column.
pub(super) fn to_json<T: Serialize>(value: &T) -> Result<String, PgError> {
    serde_json::to_string(value).map_err(invalid_row)
}

/// Returns the first row of a statement that always returns one.
pub(super) fn first_row(rows: &[Row]) -> Result<&Row, PgError> {
    rows.first().ok_or_else(|| PgError::InvalidRow("the statement returned no row".into()))
}

/// Converts an error about the value of a column.
pub(super) fn invalid_row(error: impl std::error::Error + Send + Sync + 'static) -> PgError {
    PgError::InvalidRow(Box::new(error))
}
