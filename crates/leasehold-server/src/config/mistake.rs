//! What is wrong with the file, and where.

use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Something in `leasehold.toml` that cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    message: String,
    hint: Option<&'static str>,
}

impl Mistake {
    /// The file itself cannot be had.
    pub(super) fn unreadable(file: &Path, error: &std::io::Error) -> Self {
        Self { message: format!("{} cannot be read: {error}", file.display()), hint: None }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<&'static str> {
        self.hint
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Mistake {}

/// The file as people wrote it: knows the line and the key of a place in it.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
}

impl Text<'_> {
    /// What is wrong at a place of the file.
    pub(super) fn mistake(&self, at: Option<Range<usize>>, wrong: impl fmt::Display) -> Mistake {
        let start = at.map_or(0, |at| at.start.min(self.text.len()));
        let line = 1 + self.text[..start].matches('\n').count();
        let key = match self.key(start) {
            Some(key) => format!(", {key}"),
            None => String::new(),
        };
        Mistake { message: format!("{}, line {line}{key}: {wrong}", self.file.display()), hint: None }
    }

    /// The same, with what to do next.
    pub(super) fn mistake_with(
        &self,
        at: Option<Range<usize>>,
        wrong: impl fmt::Display,
        hint: &'static str,
    ) -> Mistake {
        Mistake { hint: Some(hint), ..self.mistake(at, wrong) }
    }

    /// What the parser says, unless it would repeat a secret.
    pub(super) fn not_parsed(&self, error: &toml::de::Error) -> Mistake {
        let start = error.span().map_or(0, |at| at.start.min(self.text.len()));
        match self.key(start).as_deref() {
            Some("'secrets'") => {
                let wrong = "the secrets are not written as they should be";
                self.mistake_with(error.span(), wrong, "write: secrets = [\"env:NAME\", \"file:PATH\"]")
            }
            Some("'store'") => {
                let wrong = "the store is not written as it should be";
                self.mistake_with(error.span(), wrong, "write: store = \"sqlite:/path/to/leasehold.db\"")
            }
            _ => self.mistake(error.span(), error.message().trim()),
        }
    }

    /// The key of this place, or the heading that it is. An item of a list may stand some lines below its key.
    fn key(&self, start: usize) -> Option<String> {
        let begin = self.text[..start].rfind('\n').map_or(0, |end| end + 1);
        let first = self.text[begin..].lines().next()?;
        let is_item = |line: &str| line.starts_with(['"', '\'', '#']) || line.is_empty();
        let mut lines = std::iter::once(first).chain(self.text[..begin].lines().rev()).map(str::trim);
        let line = if is_item(first.trim()) { lines.find(|line| !is_item(line))? } else { lines.next()? };
        if line.starts_with('[') {
            return Some(line.split('#').next()?.trim().to_owned());
        }
        let (key, _) = line.split_once('=')?;
        Some(format!("'{}'", key.trim()))
    }
}
