//! From the arguments to a command, or to a message that says what is wrong.

use std::error::Error as _;
use std::ffi::OsString;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use leasehold::model::Invalid;

use super::root::Cli;
use crate::exit;
use crate::output::Failure;

/// What was typed; else the exit code, when everything has been said already.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, i32> {
    Cli::try_parse_from(arguments).map_err(|error| {
        // Nobody is there to be told that help could not be written.
        let _ = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                let _ = error.print();
                return exit::SUCCESS;
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.print(),
            _ => {
                explain(&error).print(wants_json(arguments));
                Ok(())
            }
        };
        exit::USAGE
    })
}

/// The options could not be read, so this one is looked for by hand.
fn wants_json(arguments: &[OsString]) -> bool {
    let ours = arguments.iter().take_while(|argument| *argument != "--");
    ours.into_iter().any(|argument| argument == "--json")
}

fn explain(error: &clap::Error) -> Failure {
    match (error.kind(), error.source(), error.get(ContextKind::InvalidArg)) {
        // Our own parsers quote the value where it helps, and with its control characters made visible.
        (ErrorKind::ValueValidation, Some(wrong), Some(ContextValue::String(argument))) => {
            Failure::from(Invalid(format!("{argument}: {wrong}")))
        }
        _ => from_text(&error.render().to_string()),
    }
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
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_is_wanted_only_before_the_command() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&words("leasehold run --json x --ttl 0 -- y")));
        assert!(!wants_json(&words("leasehold run x --ttl 0 -- y --json")));
    }
}
