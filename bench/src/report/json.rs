//! The report for programs.

use anyhow::Result;

use super::Report;

/// One object; what could not be measured is null.
pub(crate) fn write(report: &Report) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)?)
}
