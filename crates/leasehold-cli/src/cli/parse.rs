//! From the arguments to a command, or to a message that says what is wrong.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, Parser};
use leasehold::model::ValidationError;

use super::root::Cli;
use crate::exit;
use crate::output::Failure;

/// What was typed; else the exit code, when everything has been said already.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, i32> {
    let arguments = &plain(arguments);
    if let Some(failure) = value_missing(arguments) {
        failure.print(wants_json(arguments));
        return Err(exit::USAGE);
    }
    Cli::try_parse_from(arguments).map_err(|error| {
        // Nobody is there to be told that help could not be written.
        let _ = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                let _ = error.print();
                return exit::SUCCESS;
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.print(),
            _ => {
                explain(&error, arguments).print(wants_json(arguments));
                Ok(())
            }
        };
        exit::USAGE
    })
}

/// The options could not be read, so this one is looked for by hand.
fn wants_json(arguments: &[OsString]) -> bool {
    ours(arguments).any(|argument| argument == "--json")
}

/// The arguments before those of the command that is to be run.
fn ours(arguments: &[OsString]) -> impl Iterator<Item = &OsString> {
    arguments.iter().take_while(|argument| *argument != "--")
}

/// `leasehold help run` and `leasehold locks help why` as `leasehold run --help` and `leasehold locks why --help`, and
/// `leasehold version` as `leasehold --version`.
fn plain(arguments: &[OsString]) -> Vec<OsString> {
    let cli = Cli::command();
    let (mut command, mut at) = (&cli, 1);
    while let Some(word) = arguments.get(at) {
        match word.to_str() {
            Some("help") if command.has_subcommands() => {
                let mut plain = arguments.to_vec();
                plain.remove(at);
                plain.push("--help".into());
                return plain;
            }
            Some("version") if arguments.len() == 2 => {
                return vec![arguments[0].clone(), "--version".into()];
            }
            // The options of all commands may stand before it.
            Some("--json" | "-q" | "--quiet") => {}
            Some("--store") => at += 1,
            Some(name) => match command.find_subcommand(name) {
                Some(found) => command = found,
                None => break,
            },
            None => break,
        }
        at += 1;
    }
    arguments.to_vec()
}

/// The command that the arguments name, as far as they name one.
fn named<'a>(cli: &'a Command, arguments: &[OsString]) -> &'a Command {
    ours(arguments).skip(1).fold(cli, |command, word| {
        word.to_str().and_then(|name| command.find_subcommand(name)).unwrap_or(command)
    })
}

/// An option whose value may begin with a hyphen takes the `--` before a command for its value; then what is wrong with the
/// rest would be reported, and not that the value is missing.
fn value_missing(arguments: &[OsString]) -> Option<Failure> {
    let end = arguments.iter().position(|argument| argument == "--")?;
    let before = arguments.get(end.checked_sub(1)?)?.to_str()?;
    let mut cli = Cli::command();
    cli.build();
    let command = named(&cli, arguments);
    let is_named = |arg: &&Arg| match (before.strip_prefix("--"), before.strip_prefix('-')) {
        (Some(long), _) => arg.get_long() == Some(long),
        (None, Some(short)) => arg.get_short().is_some_and(|letter| short == letter.to_string()),
        (None, None) => false,
    };
    let option = command.get_arguments().find(is_named)?;
    if !option.is_allow_hyphen_values_set() || !option.get_action().takes_values() {
        return None;
    }
    let wrong = format!("a value is required for '{option}' but none was supplied");
    Some(Failure::usage(wrong).hint(format!("write the value between {before} and --")))
}

fn explain(error: &clap::Error, arguments: &[OsString]) -> Failure {
    let failure = match (error.kind(), error.source(), error.get(ContextKind::InvalidArg)) {
        // Our own parsers quote the value where it helps, and with its control characters made visible.
        (ErrorKind::ValueValidation, Some(wrong), Some(ContextValue::String(argument))) => {
            Failure::from(ValidationError(format!("{argument}: {wrong}")))
        }
        _ => from_text(&error.render().to_string()),
    };
    let is_about_arguments =
        matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument);
    if !is_about_arguments || arguments.iter().any(|argument| argument == "--") {
        return failure;
    }
    let mut cli = Cli::command();
    cli.build();
    let command = named(&cli, arguments);
    if command.get_positionals().any(Arg::is_last_set) {
        let name = command.get_bin_name().unwrap_or_default();
        return failure.hint(format!("write the command after --: {name} … -- COMMAND"));
    }
    failure
}

/// Clap's own paragraphs: what is wrong, perhaps a tip, the usage.
fn from_text(text: &str) -> Failure {
    let mut paragraphs = text.split("\n\n").map(|paragraph| {
        let words: Vec<_> = paragraph.split_whitespace().collect();
        words.join(" ")
    });
    let wrong = paragraphs.next().unwrap_or_default();
    let wrong = wrong.strip_prefix("error: ").unwrap_or(&wrong).to_owned();
    let hints = paragraphs.filter_map(|paragraph| {
        let tip = paragraph.strip_prefix("tip: ").map(str::to_owned);
        tip.or_else(|| paragraph.starts_with("Usage: ").then(|| paragraph.replacen('U', "u", 1)))
    });
    hints.fold(Failure::usage(wrong), Failure::hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_is_wanted_only_before_the_command() {
        assert!(wants_json(&words("leasehold run --json x --ttl 0 -- y")));
        assert!(!wants_json(&words("leasehold run x --ttl 0 -- y --json")));
    }

    #[test]
    fn help_and_version_are_commands_too() {
        let same = |text: &str, expected: &str| assert_eq!(plain(&words(text)), words(expected), "{text}");
        same("leasehold help", "leasehold --help");
        same("leasehold help run", "leasehold run --help");
        same("leasehold help locks why", "leasehold locks why --help");
        same("leasehold locks help why", "leasehold locks why --help");
        same("leasehold --json --store x help run", "leasehold --json --store x run --help");
        same("leasehold version", "leasehold --version");
        for other in ["leasehold run help", "leasehold run version -- help", "leasehold locks why help"] {
            same(other, other);
        }
    }

    #[test]
    fn an_option_does_not_take_the_separator_for_its_value() {
        let wrong = |text: &str| value_missing(&words(text)).map(|failure| failure.message().to_owned());
        let message = "a value is required for '--wait <DURATION>' but none was supplied";
        assert_eq!(wrong("leasehold run a --wait -- echo hi").as_deref(), Some(message));
        assert!(wrong("leasehold run a -E -- echo hi").is_some());
        for good in [
            "leasehold run a --wait 1s -- echo hi",
            "leasehold run a --shared -- echo --wait --",
            "leasehold run a -- echo",
            "leasehold -- run",
            "leasehold",
        ] {
            assert_eq!(wrong(good), None, "{good}");
        }
    }
}
