//! Commands in hints: the command line that makes this program use the same store.

use std::borrow::Cow;
use std::sync::OnceLock;

static PROGRAM: OnceLock<Program> = OnceLock::new();

struct Program {
    /// Prefix of a command: `leasehold`, with `--store` if the store is not the default one.
    prefix: String,
    /// Whether the store is a server.
    is_remote: bool,
    is_command: fn(&str) -> bool,
}

const NAME: &str = "leasehold";

/// Sets the prefix of commands in hints, and how a command is recognized. Only the first call has an
/// effect: a process has one store.
pub(crate) fn set_program(prefix: String, is_remote: bool, is_command: fn(&str) -> bool) {
    let _ = PROGRAM.set(Program { prefix, is_remote, is_command });
}

/// Returns a command of this program for a hint, with the store of this process.
pub(crate) fn command(rest: &str) -> String {
    format!("{} {rest}", PROGRAM.get().map_or(NAME, |program| program.prefix.as_str()))
}

/// Inserts the store into each `leasehold COMMAND` of the text. Without the store, such a command
/// would use the default store.
pub(super) fn with_store(text: &str) -> Cow<'_, str> {
    match PROGRAM.get() {
        Some(program) if program.prefix != NAME => Cow::Owned(replaced(text, program)),
        _ => Cow::Borrowed(text),
    }
}

fn replaced(text: &str, program: &Program) -> String {
    let mut written = String::with_capacity(text.len() + program.prefix.len());
    let mut rest = text;
    while let Some(at) = rest.find("leasehold ") {
        let (before, found) = rest.split_at(at);
        let after = &found[NAME.len()..];
        let word = after.trim_start().split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        let starts = !before.ends_with(|c: char| c.is_alphanumeric() || "-_./".contains(c));
        written += before;
        // Tokens are managed in the store of a server, not through the server.
        let applies = (program.is_command)(word) && !(word == "token" && program.is_remote);
        written += if starts && applies { program.prefix.as_str() } else { NAME };
        rest = after;
    }
    written + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_given_the_store_and_other_words_are_left_alone() {
        let prefix = "leasehold --store sqlite:x.db".to_owned();
        let program = Program { prefix, is_remote: false, is_command: crate::cli::is_command };
        let replaced = |text: &str| replaced(text, &program);
        let same = |text: &str| assert_eq!(replaced(text), text);
        assert_eq!(
            replaced("wait, or see why with: leasehold locks why a"),
            "wait, or see why with: leasehold --store sqlite:x.db locks why a"
        );
        assert_eq!(replaced("leasehold doctor; leasehold sweep").matches("--store").count(), 2);
        same("leasehold: listening");
        same("a leasehold server is running there");
        same("see it with: leasehold --store sqlite:y.db locks list");
        same("/opt/leasehold locks");
        same("");
    }

    #[test]
    fn a_command_that_makes_a_token_is_not_given_the_url_of_the_server() {
        let prefix = "leasehold --store http://127.0.0.1:7420".to_owned();
        let program = Program { prefix, is_remote: true, is_command: crate::cli::is_command };
        let hint = "leasehold token new --name ci; see leasehold doctor";
        let expected = "leasehold token new --name ci; see leasehold --store http://127.0.0.1:7420 doctor";
        assert_eq!(replaced(hint, &program), expected);
    }
}
