//! Short ids in tables: the last characters of a UUID. The first ones are a time, which ids of one minute share.

use std::collections::HashSet;

use leasehold::model::{ExecutionId, TaskId};

use super::text::{Layout, Style};

/// Minimum number of characters of a short id.
const MIN_CHARS: usize = 8;

/// Number of characters that tell the ids of one table apart; `None` if ids are written in full.
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
        Self((MIN_CHARS..32).find(is_unique))
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
