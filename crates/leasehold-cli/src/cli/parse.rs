//! Parsing of the command line, and its error messages.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, Parser};
use clap_complete::CompleteEnv;
use leasehold::model::ValidationError;

use super::locks::RunArgs;
use super::root::{Cli, Global};
use super::values::OutputFormat;
use crate::exit;
use crate::output::Failure;

/// Parses the command line. On failure prints the error and returns the exit code.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, i32> {
    let arguments = &normalize(arguments);
    if let Some(failure) = missing_value(arguments) {
        failure.print(wants_json(arguments));
        return Err(exit::USAGE);
    }
    if let Some(cli) = parse_run(arguments) {
        return Ok(cli);
    }
    let parsed = Cli::try_parse_from(arguments).map(|mut cli| {
        cli.global.json |= cli.command.list_view().output == Some(OutputFormat::Json);
        cli
    });
    parsed.map_err(|error| {
        // If the output is closed there is no other place to report the error.
        let _ = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                let _ = error.print();
                return exit::SUCCESS;
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.print(),
            _ => {
                to_failure(&error, arguments).print(wants_json(arguments));
                Ok(())
            }
        };
        exit::USAGE
    })
}

/// Parses `leasehold run …` without the definitions of all other commands, which take longer than the rest of a
/// start. Returns `None` for any other command line, and for one with an error.
fn parse_run(arguments: &[OsString]) -> Option<Cli> {
    #[derive(Parser)]
    #[command(name = "leasehold", disable_help_subcommand = true)]
    struct RunCli {
        #[command(flatten)]
        global: Global,
        #[command(subcommand)]
        command: RunCommand,
    }

    #[derive(clap::Subcommand)]
    enum RunCommand {
        Run(Box<RunArgs>),
    }

    if arguments.get(1)? != "run" {
        return None;
    }
    let RunCli { global, command: RunCommand::Run(args) } = RunCli::try_parse_from(arguments).ok()?;
    Some(Cli { global, command: super::root::Command::Run(args) })
}

/// Variable that a shell sets when it requests completions.
pub(crate) const COMPLETE: &str = "LEASEHOLD_COMPLETE";

/// Prints the completions that a shell requests, and exits; returns if no shell does.
pub(crate) fn complete_and_exit() {
    CompleteEnv::with_factory(Cli::command).var(COMPLETE).bin("leasehold").complete();
}

/// Whether `--json` or `-o json` is among the arguments: used when the options cannot be parsed.
fn wants_json(arguments: &[OsString]) -> bool {
    let own: Vec<_> = own_arguments(arguments).filter_map(|argument| argument.to_str()).collect();
    own.iter().any(|argument| ["--json", "-ojson", "-o=json", "--output=json"].contains(argument))
        || own.windows(2).any(|pair| matches!(pair, ["-o" | "--output", "json"]))
}

/// Returns the arguments before `--`, without those of the command to run.
fn own_arguments(arguments: &[OsString]) -> impl Iterator<Item = &OsString> {
    arguments.iter().take_while(|argument| *argument != "--")
}

/// Rewrites `leasehold help run` to `leasehold run --help`, `leasehold locks help why` to
/// `leasehold locks why --help`, and `leasehold version` to `leasehold --version`.
fn normalize(arguments: &[OsString]) -> Vec<OsString> {
    // The definitions of all commands are built only for a command line that may need them.
    if !own_arguments(arguments).any(|word| word == "help" || word == "version") {
        return arguments.to_vec();
    }
    let cli = Cli::command();
    let (mut command, mut at) = (&cli, 1);
    while let Some(word) = arguments.get(at) {
        match word.to_str() {
            Some("help") if command.has_subcommands() => {
                let mut normalize = arguments.to_vec();
                normalize.remove(at);
                normalize.push("--help".into());
                return normalize;
            }
            Some("version") if arguments.len() == 2 => {
                return vec![arguments[0].clone(), "--version".into()];
            }
            // Global options may precede the command.
            Some("--json" | "-q" | "--quiet" | "--utc") => {}
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

/// Returns the command that the arguments name, or its longest prefix that exists.
fn find_command<'a>(cli: &'a Command, arguments: &[OsString]) -> &'a Command {
    own_arguments(arguments).skip(1).fold(cli, |command, word| {
        word.to_str().and_then(|name| command.find_subcommand(name)).unwrap_or(command)
    })
}

/// Returns the failure for an option without a value before `--`. An option whose value may begin
/// with a hyphen would take `--` as its value, and the error would be about the remaining arguments
/// instead of the missing value.
fn missing_value(arguments: &[OsString]) -> Option<Failure> {
    let end = arguments.iter().position(|argument| argument == "--")?;
    let before = arguments.get(end.checked_sub(1)?)?.to_str().filter(|word| word.starts_with('-'))?;
    let mut cli = Cli::command();
    cli.build();
    let command = find_command(&cli, arguments);
    let is_named = |arg: &&Arg| match (before.strip_prefix("--"), before.strip_prefix('-')) {
        (Some(long), _) => arg.get_long() == Some(long),
        (None, Some(short)) => arg.get_short().is_some_and(|letter| short == letter.to_string()),
        (None, None) => false,
    };
    let option = command.get_arguments().find(is_named)?;
    if !option.is_allow_hyphen_values_set() || !option.get_action().takes_values() {
        return None;
    }
    let message = format!("a value is required for '{option}' but none was supplied");
    Some(Failure::usage(message).hint(format!("write the value between {before} and --")))
}

fn to_failure(error: &clap::Error, arguments: &[OsString]) -> Failure {
    let failure = match (error.kind(), error.source(), error.get(ContextKind::InvalidArg)) {
        // Our own parsers quote the value where that helps, with its control characters escaped.
        (ErrorKind::ValueValidation, Some(error), Some(ContextValue::String(argument))) => {
            Failure::from(ValidationError::other(format!("{argument}: {error}")))
        }
        _ => from_clap_text(&error.render().to_string()),
    };
    let is_about_arguments =
        matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument);
    if !is_about_arguments || arguments.iter().any(|argument| argument == "--") {
        return failure;
    }
    let mut cli = Cli::command();
    cli.build();
    let command = find_command(&cli, arguments);
    if command.get_positionals().any(|arg| arg.is_last_set() || arg.is_trailing_var_arg_set()) {
        let name = command.get_bin_name().unwrap_or_default();
        return failure.hint(format!("write the command after --: {name} … -- COMMAND"));
    }
    failure
}

/// Converts the paragraphs of a clap error (message, optional tip, usage) to a failure.
fn from_clap_text(text: &str) -> Failure {
    let mut paragraphs = text.split("\n\n").map(|paragraph| {
        let words: Vec<_> = paragraph.split_whitespace().collect();
        words.join(" ")
    });
    let message = paragraphs.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    let hints = paragraphs.filter_map(|paragraph| {
        let tip = paragraph.strip_prefix("tip: ").map(str::to_owned);
        tip.or_else(|| paragraph.starts_with("Usage: ").then(|| paragraph.replacen('U', "u", 1)))
    });
    hints.fold(Failure::usage(message), Failure::hint)
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
        for list in ["-o json", "-ojson", "--output json", "--output=json"] {
            assert!(wants_json(&words(&format!("leasehold tasks list {list} --limit x"))), "{list}");
        }
        assert!(!wants_json(&words("leasehold tasks list -o name json")));
    }

    #[test]
    fn help_and_version_are_commands_too() {
        let same =
            |text: &str, expected: &str| assert_eq!(normalize(&words(text)), words(expected), "{text}");
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
    fn run_is_parsed_alike_with_and_without_the_other_commands() {
        for line in [
            "leasehold run a -- echo",
            "leasehold run a echo --json",
            "leasehold run --json --store memory: --wait 1s a -- echo -- x",
            "leasehold run -q a --utc --with b --shared -- echo",
        ] {
            let quick = parse_run(&words(line)).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(format!("{quick:?}"), format!("{:?}", Cli::parse_from(words(line))), "{line}");
        }
        for line in ["leasehold run", "leasehold run a --wait x -- echo", "leasehold --json run a -- echo"] {
            assert!(parse_run(&words(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn an_option_does_not_take_the_separator_for_its_value() {
        let error = |text: &str| missing_value(&words(text)).map(|failure| failure.message().to_owned());
        let message = "a value is required for '--wait <DURATION>' but none was supplied";
        assert_eq!(error("leasehold run a --wait -- echo hi").as_deref(), Some(message));
        assert!(error("leasehold run a -E -- echo hi").is_some());
        for good in [
            "leasehold run a --wait 1s -- echo hi",
            "leasehold run a --shared -- echo --wait --",
            "leasehold run a -- echo",
            "leasehold -- run",
            "leasehold",
        ] {
            assert_eq!(error(good), None, "{good}");
        }
    }
}
