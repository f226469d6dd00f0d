//! Errors in the settings file, with their position.

use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Error in `leasehold.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    message: String,
    hint: Option<&'static str>,
}

impl Mistake {
    /// Returns the error for a file that cannot be read.
    pub(super) fn unreadable(file: &Path, error: &std::io::Error) -> Self {
        Self { message: format!("{} cannot be read: {error}", file.display()), hint: None }
    }

    /// Returns a suggestion for how to fix the error.
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

/// Text of the settings file; finds the line and the key of a position.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
}

impl Text<'_> {
    /// Returns an error at a position of the file.
    pub(super) fn mistake(&self, at: Option<Range<usize>>, wrong: impl fmt::Display) -> Mistake {
        let start = at.map_or(0, |at| at.start.min(self.text.len()));
        let line = 1 + self.text[..start].matches('\n').count();
        let key = match self.key(start) {
            Some(key) => format!(", {key}"),
            None => String::new(),
        };
        Mistake { message: format!("{}, line {line}{key}: {wrong}", self.file.display()), hint: None }
    }

    /// Like [`Text::mistake`], with a suggestion.
    pub(super) fn mistake_with(
        &self,
        at: Option<Range<usize>>,
        wrong: impl fmt::Display,
        hint: &'static str,
    ) -> Mistake {
        Mistake { hint: Some(hint), ..self.mistake(at, wrong) }
    }

    /// Returns the parser's error, unless its message would contain a secret.
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

    /// Returns the key, or the heading, at this position. An item of a list may be some lines below its key.
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
