//! Report of a benchmark: the same rows as tables for a terminal, in Markdown and in JSON; medians and
//! formats of its numbers.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, TableStyle, presets};
use serde_json::{Value, json};

#[derive(Debug, Args)]
pub(crate) struct Format {
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown, for docs/benchmarks.md
    #[arg(long)]
    markdown: bool,
    /// Write charts into this folder, such as docs/images
    #[arg(long, value_name = "FOLDER")]
    pub(crate) charts: Option<PathBuf>,
}

/// Tables, and remarks below them.
pub(crate) struct Report {
    pub(crate) tables: Vec<Table>,
    pub(crate) remarks: Vec<String>,
}

pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) columns: Vec<&'static str>,
    /// Number of columns that are aligned to the left; the others are aligned to the right.
    pub(crate) left: usize,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// Cell: its value in JSON (times are in nanoseconds), and its text in a table.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    value: Value,
    text: String,
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { value: text.clone().into(), text }
    }

    /// Returns the text in a table.
    pub(crate) fn as_text(&self) -> &str {
        &self.text
    }

    /// Returns the number, of several rounds the median.
    pub(crate) fn as_number(&self) -> Option<f64> {
        self.value.as_f64().or_else(|| self.value["median"].as_f64())
    }

    pub(crate) fn number(number: Option<f64>, format: impl FnOnce(f64) -> String) -> Self {
        Self { value: number.into(), text: number.map(format).unwrap_or_default() }
    }

    pub(crate) fn rate(rate: Option<f64>) -> Self {
        Self::number(rate, grouped)
    }

    pub(crate) fn time(nanos: Option<f64>) -> Self {
        Self::number(nanos, duration)
    }

    pub(crate) fn ratio(ratio: Option<f64>) -> Self {
        Self::number(ratio, |ratio| format!("{ratio:.2}"))
    }

    /// Adds the values of all rounds to the JSON.
    pub(crate) fn with_rounds(self, rounds: &[f64]) -> Self {
        Self { value: json!({ "median": self.value, "rounds": rounds }), ..self }
    }
}

/// Returns the table of performance targets, with rows that [`target`] makes.
pub(crate) fn targets(rows: Vec<Vec<Cell>>) -> Table {
    Table { title: "Targets", columns: vec!["", "target", "result"], left: 3, rows }
}

/// Returns the row of a performance target and its result.
pub(crate) fn target(is_met: bool, text: impl Into<String>, result: impl Into<String>) -> Vec<Cell> {
    let mark = if is_met { "✓" } else { "✗" };
    vec![Cell { value: is_met.into(), text: mark.to_owned() }, Cell::text(text), Cell::text(result)]
}

impl Report {
    pub(crate) fn print(&self, format: &Format) -> Result<()> {
        match format {
            Format { json: true, .. } => println!("{}", serde_json::to_string_pretty(&self.json())?),
            Format { markdown: true, .. } => println!("{}", self.write(presets::ASCII_MARKDOWN, "### ")),
            Format { .. } => println!("{}", self.write(presets::NOTHING, "")),
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let tables = self.tables.iter().map(|table| {
            // The mark of a target has no title.
            let names = table.columns.iter().map(|name| if name.is_empty() { "met" } else { *name });
            let row = |row: &Vec<Cell>| -> Value {
                names.clone().zip(row).map(|(name, cell)| (name, cell.value.clone())).collect()
            };
            json!({ "title": table.title, "rows": table.rows.iter().map(row).collect::<Vec<_>>() })
        });
        json!({ "tables": tables.collect::<Vec<_>>(), "remarks": self.remarks })
    }

    fn write(&self, style: TableStyle, heading: &str) -> String {
        let tables = self.tables.iter().filter(|table| !table.rows.is_empty());
        let tables = tables.map(|table| {
            let mut text = comfy_table::Table::new();
            text.set_header(&table.columns);
            for row in &table.rows {
                text.add_row(row.iter().map(|cell| &cell.text));
            }
            for column in text.column_iter_mut().skip(table.left) {
                column.set_cell_alignment(CellAlignment::Right);
            }
            text.load_style(style).set_content_arrangement(ContentArrangement::Disabled);
            format!("{heading}{}\n\n{}", table.title, text.trim_fmt())
        });
        tables.chain(self.remarks.iter().cloned()).collect::<Vec<_>>().join("\n\n")
    }
}

/// Returns the median; of an even number of values, the mean of the middle two; `None` without values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<_> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[n / 2]),
        n => Some(f64::midpoint(sorted[n / 2 - 1], sorted[n / 2])),
    }
}

/// Formats a number with thousands separators: `1,234,567`.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 && digit.is_ascii_digit() {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats nanoseconds with a unit and three digits.
pub(crate) fn duration(nanos: f64) -> String {
    let (number, unit) = match nanos {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let digits = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    format!("{number:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([1.0, 999.4, 1234.0, 1_234_567.0].map(grouped), ["1", "999", "1,234", "1,234,567"]);
        assert_eq!(
            [512.0, 1_234.0, 99_960_000.0, 2e9].map(duration),
            ["512 ns", "1.23 µs", "100.0 ms", "2.00 s"]
        );
    }
}
