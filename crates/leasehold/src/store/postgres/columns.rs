//! Conversion of values to and from columns, and parameters of statements.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::error::PgError;
use crate::model::{LockName, QueueName, Timestamp, Ttl};

/// Parameter of a statement.
pub(super) type Param<'a> = &'a (dyn ToSql + Sync);

/// Parameter of a statement, with its value.
pub(super) type OwnedParam<'a> = Box<dyn ToSql + Sync + Send + 'a>;

pub(super) fn params<'a>(owned: &'a [OwnedParam<'_>]) -> Vec<Param<'a>> {
    owned.iter().map(|param| &**param as Param<'a>).collect()
}

/// Returns an array with a value of each row.
pub(super) fn column<'a, R, T>(rows: impl IntoIterator<Item = R>, value: impl Fn(R) -> T) -> OwnedParam<'a>
where
    Vec<T>: ToSql + Sync + Send + 'a,
{
    Box::new(rows.into_iter().map(value).collect::<Vec<T>>())
}

/// Returns an array with a value of each row as JSON.
pub(super) fn json_column<'a, R, T: Serialize>(
    rows: impl IntoIterator<Item = R>,
    value: impl Fn(R) -> Option<T>,
) -> Result<OwnedParam<'a>, PgError> {
    let texts = rows.into_iter().map(|row| value(row).map(|value| to_json(&value)).transpose());
    Ok(Box::new(texts.collect::<Result<Vec<Option<String>>, _>>()?))
}

pub(super) fn micros(time: Timestamp) -> i64 {
    int8(time.as_micros())
}

pub(super) fn ttl_micros(ttl: Ttl) -> i64 {
    int8(ttl.as_micros())
}

/// Converts a number to the value of its column: tokens and counts stay below 2^53.
pub(super) fn int8(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn int4(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Reads a number that is not negative.
pub(super) fn number(row: &Row, at: usize) -> Result<u64, PgError> {
    u64::try_from(row.try_get::<_, i64>(at)?).map_err(invalid_row)
}

pub(super) fn time(row: &Row, at: usize) -> Result<Timestamp, PgError> {
    number(row, at).map(Timestamp::from_micros)
}

/// Reads a time, if the column is not null.
pub(super) fn maybe_time(row: &Row, at: usize) -> Result<Option<Timestamp>, PgError> {
    row.try_get::<_, Option<i64>>(at)?.map(|_| time(row, at)).transpose()
}

/// Reads a time from the first column of a statement that always returns a row.
pub(super) fn only_time(rows: &[Row]) -> Result<Timestamp, PgError> {
    time(first_row(rows)?, 0)
}

pub(super) fn ttl(row: &Row, at: usize) -> Result<Ttl, PgError> {
    Ttl::try_from(number(row, at)?).map_err(invalid_row)
}

/// Reads a small number that is not negative.
pub(super) fn count(row: &Row, at: usize) -> Result<u32, PgError> {
    u32::try_from(row.try_get::<_, i32>(at)?).map_err(invalid_row)
}

pub(super) fn lock_name(row: &Row, at: usize) -> Result<LockName, PgError> {
    LockName::new(row.try_get::<_, &str>(at)?).map_err(invalid_row)
}

pub(super) fn queue_name(row: &Row, at: usize) -> Result<QueueName, PgError> {
    QueueName::new(row.try_get::<_, &str>(at)?).map_err(invalid_row)
}

/// Parses a JSON column, if it is not null.
pub(super) fn read_json<T: DeserializeOwned>(row: &Row, at: usize) -> Result<Option<T>, PgError> {
    row.try_get::<_, Option<&str>>(at)?.map(parse_json).transpose()
}

pub(super) fn parse_json<T: DeserializeOwned>(text: &str) -> Result<T, PgError> {
    serde_json::from_str(text).map_err(invalid_row)
}

pub(super) fn to_json<T: Serialize>(value: &T) -> Result<String, PgError> {
    serde_json::to_string(value).map_err(invalid_row)
}

/// Returns the first row of a statement that always returns one.
pub(super) fn first_row(rows: &[Row]) -> Result<&Row, PgError> {
    rows.first().ok_or_else(|| PgError::InvalidRow("the statement returned no row".into()))
}

pub(super) fn invalid_row(error: impl std::error::Error + Send + Sync + 'static) -> PgError {
    PgError::InvalidRow(Box::new(error))
}
