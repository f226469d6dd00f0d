//! Commands in hints: the command line that makes this program use the same store.

use std::borrow::Cow;
use std::sync::OnceLock;

use clap::CommandFactory;

use crate::cli::Cli;

/// Prefix of a command in a hint: `leasehold`, with `--store` if the store is not the default one.
static PROGRAM: OnceLock<String> = OnceLock::new();

const NAME: &str = "leasehold";

/// Sets the prefix for hints. Only the first call has an effect: a process has one store.
pub(crate) fn set_program(program: String) {
    let _ = PROGRAM.set(program);
}

/// Returns a command of this program for a hint, with the store of this process.
pub(crate) fn command(rest: &str) -> String {
    format!("{} {rest}", PROGRAM.get().map_or(NAME, String::as_str))
}

/// Inserts the store into each `leasehold COMMAND` of the text. Without the store, such a command
/// would use the default store.
pub(super) fn with_store(text: &str) -> Cow<'_, str> {
    match PROGRAM.get() {
        Some(program) if program != NAME => Cow::Owned(replaced(text, program)),
        _ => Cow::Borrowed(text),
    }
}

fn replaced(text: &str, program: &str) -> String {
    let cli = Cli::command();
    let is_command = |word: &str| cli.get_subcommands().any(|command| command.get_name() == word);
    let mut written = String::with_capacity(text.len() + program.len());
    let mut rest = text;
    while let Some(at) = rest.find("leasehold ") {
        let (before, found) = rest.split_at(at);
        let after = &found[NAME.len()..];
        let word = after.trim_start().split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        let starts = !before.ends_with(|c: char| c.is_alphanumeric() || "-_./".contains(c));
        written += before;
        written += if starts && is_command(word) { program } else { NAME };
        rest = after;
    }
    written + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_given_the_store_and_other_words_are_left_alone() {
        let program = "leasehold --store sqlite:x.db";
        let same = |text: &str| assert_eq!(replaced(text, program), text);
        assert_eq!(
            replaced("wait, or see why with: leasehold locks why a", program),
            "wait, or see why with: leasehold --store sqlite:x.db locks why a"
        );
        assert_eq!(replaced("leasehold doctor; leasehold sweep", program).matches("--store").count(), 2);
        same("leasehold: listening");
        same("a leasehold server is running there");
        same("see it with: leasehold --store sqlite:y.db locks list");
        same("/opt/leasehold locks");
        same("");
    }
}
