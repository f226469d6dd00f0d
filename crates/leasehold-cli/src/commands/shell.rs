//! `completions` and `man`.

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::dispatch::Done;
use crate::cli::Cli;
use crate::exit;
use crate::output::{Failure, Printer};

pub(super) fn completions(shell: Shell, printer: Printer) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leasehold", &mut script);
    printer.write(&script)?;
    Ok(exit::SUCCESS)
}

/// One page: `leasehold` itself, then each command as a section.
pub(super) fn man(printer: Printer) -> Done {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).map_err(Failure::internal)?;
    let mut page = String::from_utf8(page).map_err(Failure::internal)?;
    for command in command.get_subcommands() {
        page += &sections(command)?;
    }
    printer.write(page.as_bytes())?;
    Ok(exit::SUCCESS)
}

fn sections(command: &Command) -> Result<String, Failure> {
    if command.has_subcommands() {
        return command.get_subcommands().map(sections).collect();
    }
    let man = Man::new(command.clone());
    let mut text = Vec::new();
    man.render_synopsis_section(&mut text).map_err(Failure::internal)?;
    man.render_description_section(&mut text).map_err(Failure::internal)?;
    man.render_options_section(&mut text).map_err(Failure::internal)?;
    let text = String::from_utf8(text).map_err(Failure::internal)?;
    let name = command.get_bin_name().unwrap_or_default().to_uppercase();
    Ok(format!(".SH \"{name}\"\n{}", text.replace(".SH ", ".SS ")))
}
