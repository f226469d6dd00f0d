//! Options that all lists share: output format and repetition.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::values;

/// Presentation of a list.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct ListView {
    /// Output format: wide (all columns and whole ids), name (names or ids only, one per line) or json
    #[arg(short, long, value_name = "FORMAT", value_enum, hide_possible_values = true)]
    pub(crate) output: Option<OutputFormat>,
    /// Show the list again every 2s, or with --watch=DURATION at this interval, until Ctrl-C
    #[arg(short, long, value_name = "DURATION", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "2s", value_parser = values::duration)]
    pub(crate) watch: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    Wide,
    Json,
    Name,
}
