//! Errors in the settings file, with their positions.

use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Error in `leasehold.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    message: String,
    hint: Option<&'static str>,
}

impl ConfigError {
    pub(super) fn unreadable(file: &Path, error: &std::io::Error) -> Self {
        Self { message: format!("{} cannot be read: {error}", file.display()), hint: None }
    }

    /// Returns a suggestion for how to fix the error.
    pub fn hint(&self) -> Option<&'static str> {
        self.hint
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// Text of the settings file; finds the line and the key of a position.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
}

impl Text<'_> {
    pub(super) fn error(&self, at: Option<Range<usize>>, message: impl fmt::Display) -> ConfigError {
        let start = at.map_or(0, |at| at.start.min(self.text.len()));
        let line = 1 + self.text[..start].matches('\n').count();
        let key = self.key(start).map_or_else(String::new, |key| format!(", {key}"));
        ConfigError { message: format!("{}, line {line}{key}: {message}", self.file.display()), hint: None }
    }

    pub(super) fn error_with_hint(
        &self,
        at: Option<Range<usize>>,
        message: impl fmt::Display,
        hint: &'static str,
    ) -> ConfigError {
        ConfigError { hint: Some(hint), ..self.error(at, message) }
    }

    /// Returns the parser's error, unless its message would contain a secret.
    pub(super) fn parse_error(&self, error: &toml::de::Error) -> ConfigError {
        let start = error.span().map_or(0, |at| at.start.min(self.text.len()));
        match self.key(start).as_deref() {
            Some("'secrets'") => {
                let hint = "write: secrets = [\"env:NAME\", \"file:PATH\"]";
                self.error_with_hint(error.span(), "the secrets are invalid", hint)
            }
            Some("'store'") => {
                let hint = "write: store = \"sqlite:/path/to/leasehold.db\"";
                self.error_with_hint(error.span(), "the store is invalid", hint)
            }
            _ => self.error(error.span(), error.message().trim()),
        }
    }

    /// Returns the key, or the heading, at this position. An item of a list may be some lines below
    /// its key.
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
