//! Columns without borders: two blanks between them, nothing cut off, so that it reads the same in a pipe.

use comfy_table::{ContentArrangement, presets};

use super::paint::Paint;
use super::text::{self, visible};

/// How a whole row is painted.
pub(super) type Tint = fn(Paint, String) -> String;

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
        let tints = vec![(|paint, line| paint.bold(line)) as Tint];
        Self { table, tints }
    }

    /// No character of a cell breaks the line or changes the terminal.
    pub(super) fn row(&mut self, tint: Tint, cells: Vec<String>) {
        self.table.add_row(cells.into_iter().map(|cell| visible(&cell)));
        self.tints.push(tint);
    }

    /// The table as text, with a line break at the end.
    pub(super) fn paint(&self, paint: Paint) -> String {
        let lines = self.table.lines().zip(&self.tints);
        text::lines(lines.map(|(line, tint)| tint(paint, line.trim_end().to_owned())))
    }
}

/// A row like any other.
pub(super) fn plain(_: Paint, line: String) -> String {
    line
}

/// A block of names and values, the values in one column.
pub(super) fn block(indent: usize, lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    text::lines(lines.iter().map(|(name, value)| format!("{:indent$}{name:width$}  {}", "", visible(value))))
}
