//! Conversion of single values to and from columns.

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

/// Returns the first row of a statement that always returns one.
pub(super) fn first_row(rows: &[Row]) -> Result<&Row, PgError> {
    rows.first().ok_or_else(|| PgError::InvalidRow("the statement returned no row".into()))
}

/// Converts an error about the value of a column.
pub(super) fn invalid_row(error: impl std::error::Error + Send + Sync + 'static) -> PgError {
    PgError::InvalidRow(Box::new(error))
}
