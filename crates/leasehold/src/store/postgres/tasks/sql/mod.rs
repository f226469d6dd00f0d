//! Statements on tasks and documents.

mod fast_path;
mod slow_path;
mod templates;

pub(crate) use templates::{Sql, SqlTexts, fill};
