//! Columns without borders: two blanks between them, no truncation, so that the table reads the
//! same in a pipe.

use comfy_table::{ContentArrangement, presets};

use super::style::Style;
use super::text::{self, visible};

/// Function that colours a whole row.
pub(super) type Tint = fn(Style, String) -> String;

/// Rows under a heading.
pub(super) struct Table {
    table: comfy_table::Table,
    tints: Vec<Tint>,
}

impl Table {
    pub(super) fn new(headings: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(headings);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let tints = vec![(|style, line| style.bold(line)) as Tint];
        Self { table, tints }
    }

    /// Adds a row. Cells are escaped: none of their characters breaks the line or changes the
    /// terminal.
    pub(super) fn row(&mut self, tint: Tint, cells: Vec<String>) {
        self.table.add_row(cells.into_iter().map(|cell| visible(&cell)));
        self.tints.push(tint);
    }

    /// Returns the table as text, with a line break at the end.
    pub(super) fn render(&self, style: Style) -> String {
        let lines = self.table.lines().zip(&self.tints);
        text::lines(lines.map(|(line, tint)| tint(style, line.trim_end().to_owned())))
    }
}

/// Tint without colours.
pub(super) fn plain(_: Style, line: String) -> String {
    line
}

/// Returns a block of names and values, with the values aligned in one column.
pub(super) fn block(indent: usize, lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    text::lines(lines.iter().map(|(name, value)| format!("{:indent$}{name:width$}  {}", "", visible(value))))
}
