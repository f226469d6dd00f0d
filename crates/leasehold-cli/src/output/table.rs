//! Tables: on a terminal the columns that fit its width, the most important first, and short ids; elsewhere all
//! columns and ids in full.

use std::collections::HashSet;

use leasehold::model::{ExecutionId, TaskId};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::text::{Layout, Style, lines, visible};

/// Blanks between two columns.
const GAP: usize = 2;
/// Minimum number of characters of a short id.
const MIN_ID_CHARS: usize = 8;

/// Function that colours a whole row.
pub(super) type Tint = fn(Style, String) -> String;

pub(super) struct Column {
    heading: String,
    /// Order in which columns are dropped: the one with the highest rank first; rank 0 is always shown.
    rank: u8,
    /// Width to which the column may be cut.
    min: Option<usize>,
    /// Whether the column is missing in [`Layout::Plain`].
    extra: bool,
}

impl Column {
    pub(super) fn new(heading: impl Into<String>) -> Self {
        Self { heading: heading.into(), rank: 0, min: None, extra: false }
    }

    pub(super) const fn rank(mut self, rank: u8) -> Self {
        self.rank = rank;
        self
    }

    pub(super) const fn shrinks_to(mut self, min: usize) -> Self {
        self.min = Some(min);
        self
    }

    pub(super) const fn extra(mut self) -> Self {
        self.extra = true;
        self
    }
}

/// Returns rows under a heading. Cells are escaped: none of their characters breaks the line or changes
/// the terminal.
pub(super) fn table(
    columns: &[Column],
    rows: impl IntoIterator<Item = (Tint, Vec<String>)>,
    style: Style,
) -> String {
    let heading: Vec<_> = columns.iter().map(|column| column.heading.clone()).collect();
    let mut all = vec![((|style, line| style.bold(line)) as Tint, heading)];
    for (tint, cells) in rows {
        all.push((tint, cells.iter().map(|cell| visible(cell)).collect()));
    }
    let mut widths: Vec<_> = (0..columns.len())
        .map(|at| all.iter().filter_map(|(_, row)| row.get(at)).map(|cell| cell.width()).max().unwrap_or(0))
        .collect();
    let shown = fit(columns, &mut widths, style.layout());
    lines(all.into_iter().map(|(tint, row)| {
        let cells = shown.iter().filter_map(|at| Some(padded(row.get(*at)?, widths[*at])));
        let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
        tint(style, line.trim_end().to_owned())
    }))
}

/// Chooses the columns that are shown, and reduces their widths to the space of the layout.
fn fit(columns: &[Column], widths: &mut [usize], layout: Layout) -> Vec<usize> {
    let all = 0..columns.len();
    let space = match layout {
        Layout::Plain => return all.filter(|at| !columns[*at].extra).collect(),
        Layout::Wide => return all.collect(),
        Layout::Fit(space) => space,
    };
    let least = |at: usize, width: usize| columns[at].min.map_or(width, |min| min.min(width));
    let total = |shown: &[usize], width: &dyn Fn(usize) -> usize| {
        shown.iter().map(|at| width(*at) + GAP).sum::<usize>().saturating_sub(GAP)
    };
    let mut shown: Vec<usize> = all.collect();
    while total(&shown, &|at| least(at, widths[at])) > space {
        let Some(dropped) =
            shown.iter().copied().filter(|at| columns[*at].rank > 0).max_by_key(|at| columns[*at].rank)
        else {
            break;
        };
        shown.retain(|at| *at != dropped);
    }
    while total(&shown, &|at| widths[at]) > space {
        let cuttable = shown.iter().copied().filter(|at| widths[*at] > least(*at, widths[*at]));
        let Some(widest) = cuttable.max_by_key(|at| widths[*at]) else { break };
        widths[widest] -= 1;
    }
    shown
}

fn padded(cell: &str, width: usize) -> String {
    let cell = cut_to_width(cell, width);
    let missing = width.saturating_sub(cell.width());
    cell + &" ".repeat(missing)
}

/// Cuts a text to a number of terminal columns; the last one is then an ellipsis.
pub(crate) fn cut_to_width(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut cut, mut used) = (String::new(), 0);
    for c in text.chars() {
        let next = used + c.width().unwrap_or(0);
        if next + 1 > width {
            break;
        }
        used = next;
        cut.push(c);
    }
    cut + "…"
}

pub(super) fn plain(_: Style, line: String) -> String {
    line
}

pub(super) fn warning_if(is_unusual: bool) -> Tint {
    if is_unusual { Style::warning } else { plain }
}

/// Number of characters of the short ids of one table, which tell them apart; `None` if ids are written in full.
/// A short id is the end of a UUID: its beginning is a time, which ids of one minute share.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShortIds(Option<usize>);

impl ShortIds {
    /// Returns the length for these UUIDs. Only on a terminal are ids cut.
    pub(super) fn new(uuids: impl Iterator<Item = String>, style: Style) -> Self {
        if !matches!(style.layout(), Layout::Fit(_)) {
            return Self(None);
        }
        let digits: Vec<String> = uuids.map(|uuid| uuid.replace('-', "")).collect();
        let is_unique = |chars: &usize| {
            let mut seen = HashSet::new();
            digits.iter().all(|digits| seen.insert(&digits[digits.len().saturating_sub(*chars)..]))
        };
        Self((MIN_ID_CHARS..32).find(is_unique))
    }

    pub(super) fn uuid(self, uuid: &str) -> String {
        let digits = uuid.replace('-', "");
        match self.0 {
            Some(chars) => digits[digits.len().saturating_sub(chars)..].to_owned(),
            None => uuid.to_owned(),
        }
    }

    /// Returns the id of a task: `#12` if it has a number.
    pub(super) fn task(self, id: &TaskId) -> String {
        if id.number().is_some() { id.short() } else { self.uuid(&id.to_string()) }
    }

    pub(super) fn execution(self, id: ExecutionId) -> String {
        let full = id.to_string();
        match full.rsplit_once('_') {
            Some((prefix, uuid)) => format!("{prefix}_{}", self.uuid(uuid)),
            None => full,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(layout: Layout) -> String {
        let columns = [
            Column::new("NAME").shrinks_to(8),
            Column::new("TOKEN").rank(2),
            Column::new("STATE"),
            Column::new("NOTE").rank(1).shrinks_to(6),
            Column::new("MORE").rank(3).extra(),
        ];
        let row = |cells: [&str; 5]| (plain as Tint, cells.map(str::to_owned).to_vec());
        let rows = [
            row(["nightly/backup", "1730817105", "held", "a long explanation", "x"]),
            row(["名前", "1", "free", "", "y"]),
        ];
        table(&columns, rows, Style::plain_as(layout))
    }

    #[test]
    fn a_table_drops_the_least_important_columns_and_then_cuts() {
        insta::assert_snapshot!(shown(Layout::Wide), @"
        NAME            TOKEN       STATE  NOTE                MORE
        nightly/backup  1730817105  held   a long explanation  x
        名前            1           free                       y
        ");
        insta::assert_snapshot!(shown(Layout::Plain), @"
        NAME            TOKEN       STATE  NOTE
        nightly/backup  1730817105  held   a long explanation
        名前            1           free
        ");
        insta::assert_snapshot!(shown(Layout::Fit(50)), @"
        NAME          TOKEN       STATE  NOTE         MORE
        nightly/bac…  1730817105  held   a long exp…  x
        名前          1           free                y
        ");
        insta::assert_snapshot!(shown(Layout::Fit(30)), @"
        NAME         STATE  NOTE
        nightly/ba…  held   a long ex…
        名前         free
        ");
        insta::assert_snapshot!(shown(Layout::Fit(16)), @"
        NAME       STATE
        nightly/…  held
        名前       free
        ");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in 15..100 {
            for line in shown(Layout::Fit(width)).lines() {
                assert!(line.width() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn a_short_id_is_as_long_as_needed_to_be_unique() {
        let ids = ["01a1e21e-0000-7000-8000-00a111111111", "01a1e21e-0000-7000-8000-00b111111111"];
        let short = |layout| {
            let short = ShortIds::new(ids.iter().map(ToString::to_string), Style::plain_as(layout));
            ids.map(|id| short.uuid(id))
        };
        assert_eq!(short(Layout::Fit(80)), ["a111111111", "b111111111"]);
        assert_eq!(short(Layout::Wide), ids);
        let one = ShortIds::new(std::iter::once(ids[0].to_owned()), Style::plain_as(Layout::Fit(80)));
        assert_eq!(one.uuid(ids[0]), "11111111");
        let execution: ExecutionId = format!("exec_{}", ids[0]).parse().unwrap();
        assert_eq!(one.execution(execution), "exec_11111111");
        assert_eq!(one.task(&"#12".parse().unwrap()), "#12");
    }
}
