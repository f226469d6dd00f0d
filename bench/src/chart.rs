//! Charts of a report as SVG: how each load compares with the raw engine, on a logarithmic scale.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::report::{Format, Report, Table};

/// Layer that is drawn: what programs use.
const LAYER: &str = "client";
/// Ends of the scale; a longer bar is cut, and its number says how long it would be.
const SCALE: (f64, f64) = (0.05, 100.0);
const TICKS: [(f64, &str); 7] = [
    (0.05, "0.05"),
    (0.1, "0.1"),
    (0.5, "0.5"),
    (1.0, "raw"),
    (2.0, "2 ×"),
    (10.0, "10 ×"),
    (100.0, "100 ×"),
];

const LABELS_WIDTH: f64 = 380.0;
const BARS_WIDTH: f64 = 480.0;
const NUMBERS_WIDTH: f64 = 60.0;
const ROW_HEIGHT: f64 = 20.0;
const HEAD_HEIGHT: f64 = 56.0;

/// Colours for light and dark pages.
const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600;font-size:14px}.tick{fill:#57606a}\
line{stroke:#d0d7de}.raw{stroke:#57606a}.faster{fill:#1a7f37}.slower{fill:#bc4c00}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.tick{fill:#9198a1}line{stroke:#3d444d}.raw{stroke:#9198a1}\
.faster{fill:#3fb950}.slower{fill:#db6d28}}";

/// Prints the report of this benchmark, and writes its charts if they are wanted.
pub(crate) fn publish(report: &Report, bench: &str, format: &Format) -> Result<()> {
    if let Some(folder) = &format.charts {
        write_all(report, bench, folder)?;
    }
    report.print(format)
}

/// Writes a chart into this folder for each table that compares loads with the raw engine.
fn write_all(report: &Report, bench: &str, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for table in &report.tables {
        let bars = bars(table);
        if !bars.is_empty() {
            let file = folder.join(format!("{bench}-{}.svg", file_name(table.title)));
            fs::write(&file, draw(table.title, &bars))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

/// Load, and its speed as a multiple of the raw engine's.
type Bar = (String, f64);

fn bars(table: &Table) -> Vec<Bar> {
    let position = |name| table.columns.iter().position(|column| *column == name);
    let (Some(load), Some(by), Some(ratio)) = (position("load"), position("by"), position("of raw")) else {
        return Vec::new();
    };
    let drawn = table.rows.iter().filter(|row| row[by].as_text() == LAYER);
    drawn.filter_map(|row| Some((row[load].as_text().to_owned(), row[ratio].as_number()?))).collect()
}

/// Returns the part of a file's name for a title: its first word.
fn file_name(title: &str) -> String {
    let mut words = title.split(|letter: char| !letter.is_alphanumeric());
    words.next().unwrap_or_default().to_lowercase()
}

/// Returns the horizontal position of a ratio.
fn position(ratio: f64) -> f64 {
    let (low, high) = SCALE;
    LABELS_WIDTH + BARS_WIDTH * (ratio.clamp(low, high) / low).ln() / (high / low).ln()
}

fn draw(title: &str, bars: &[Bar]) -> String {
    let rows = f64::from(u32::try_from(bars.len()).unwrap_or(u32::MAX));
    let (width, bottom) = (LABELS_WIDTH + BARS_WIDTH + NUMBERS_WIDTH, HEAD_HEIGHT + rows * ROW_HEIGHT);
    let (height, raw) = (bottom + 8.0, position(1.0));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>{title}, compared with the raw engine</title>\n<style>{STYLE}</style>\n\
         <text class=\"title\" x=\"8\" y=\"20\">{title}: speed of the client, the raw engine is 1</text>\n",
        title = escaped(title)
    );
    for (ratio, label) in TICKS {
        let (x, class) = (position(ratio), if label == "raw" { " class=\"raw\"" } else { "" });
        let _ = writeln!(
            svg,
            "<line{class} x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{HEAD_HEIGHT}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            HEAD_HEIGHT - 8.0
        );
    }
    let mut y = HEAD_HEIGHT;
    for (load, ratio) in bars {
        let (end, class) = (position(*ratio), if *ratio < 1.0 { "slower" } else { "faster" });
        let (left, length, baseline) = (raw.min(end), (end - raw).abs().max(1.0), y + 14.0);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{baseline}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{left:.1}\" y=\"{}\" width=\"{length:.1}\" height=\"12\" rx=\"2\"/>\
             <text x=\"{}\" y=\"{baseline}\">{ratio:.2}</text>",
            LABELS_WIDTH - 10.0,
            escaped(load),
            y + 4.0,
            LABELS_WIDTH + BARS_WIDTH + 8.0,
        );
        y += ROW_HEIGHT;
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Cell;

    fn table(columns: Vec<&'static str>, ratios: &[(&str, f64)]) -> Table {
        let row = |(by, ratio): &(&str, f64)| {
            vec![Cell::text("sqlite <full>, 1 client"), Cell::text(*by), Cell::ratio(Some(*ratio))]
        };
        Table { title: "Uncontended: own locks", columns, left: 2, rows: ratios.iter().map(row).collect() }
    }

    #[test]
    fn a_chart_has_a_bar_for_each_row_of_the_client() {
        let table = table(vec!["load", "by", "of raw"], &[("store", 0.9), ("client", 0.5), ("client", 4.0)]);
        let chart = draw(table.title, &bars(&table));
        assert_eq!(chart.matches("<rect").count(), 2);
        assert!(chart.contains("class=\"slower\"") && chart.contains("class=\"faster\""), "{chart}");
        assert!(chart.contains("sqlite &lt;full&gt;"), "{chart}");
    }

    #[test]
    fn only_comparisons_become_charts() {
        assert!(bars(&table(vec!["load", "p50", "p99"], &[("client", 0.5)])).is_empty());
        let folder = tempfile::tempdir().unwrap();
        let tables = vec![table(vec!["load", "by", "of raw"], &[("client", 0.5)])];
        write_all(&Report { tables, remarks: Vec::new() }, "locks", folder.path()).unwrap();
        let files: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(files, ["locks-uncontended.svg"]);
    }

    #[test]
    fn the_scale_is_logarithmic_and_bounded() {
        let middle = f64::midpoint(position(0.1), position(10.0));
        assert!((middle - position(1.0)).abs() < 1e-9);
        assert!((position(1e6) - position(100.0)).abs() < 1e-9);
        assert!(position(1e-6) >= LABELS_WIDTH);
    }
}
