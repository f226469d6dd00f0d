//! Colours: on a terminal only, and not if `NO_COLOR` is set or the terminal is a dumb one.

use std::fmt::Display;
use std::io::IsTerminal;

use clap::builder::styling::{self, AnsiColor};

/// Colour setting of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    on: bool,
}

impl Style {
    /// Setting without colours.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { on: false };

    /// Returns the setting for this stream.
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: stream.is_terminal() && !set("NO_COLOR") && !dumb }
    }

    /// Whether colours are used.
    pub(crate) const fn is_on(self) -> bool {
        self.on
    }

    pub(crate) fn bold(self, text: impl Display) -> String {
        self.with(styling::Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: impl Display) -> String {
        self.with(styling::Style::new().dimmed(), text)
    }

    pub(crate) fn good(self, text: impl Display) -> String {
        self.with(AnsiColor::Green.on_default(), text)
    }

    pub(crate) fn warning(self, text: impl Display) -> String {
        self.with(AnsiColor::Yellow.on_default(), text)
    }

    pub(crate) fn bad(self, text: impl Display) -> String {
        self.with(AnsiColor::Red.on_default().bold(), text)
    }

    fn with(self, style: styling::Style, text: impl Display) -> String {
        if self.on { format!("{style}{text}{style:#}") } else { text.to_string() }
    }
}
