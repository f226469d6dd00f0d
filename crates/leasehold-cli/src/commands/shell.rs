//! `completions` and `man`.

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_complete::env::Shells;
use clap_mangen::Man;

use super::context::CommandResult;
use crate::cli::{COMPLETE, Cli};
use crate::output::{Failure, Printer};

pub(super) fn completions(shell: Shell, printer: Printer) -> CommandResult {
    let (shells, mut script) = (Shells::builtins(), Vec::new());
    let shell = shells.completer(&shell.to_string()).ok_or_else(|| Failure::usage("unknown shell"))?;
    shell
        .write_registration(COMPLETE, "leasehold", "leasehold", "leasehold", &mut script)
        .map_err(Failure::internal)?;
    printer.write(&script)
}

/// Prints one manual page: `leasehold` itself, then each command as a section.
pub(super) fn man(printer: Printer) -> CommandResult {
    let mut command = Cli::command();
    command.build();
    let page = rendered(|page| Man::new(command.clone()).render(page))?;
    // All commands are on one page, so references to other pages are removed. The text after the
    // options is preformatted.
    let page = page
        .replace("leasehold\\-", "leasehold ")
        .replace("(1)\n", "\n")
        .replace(".SH EXTRA\n", ".SH \"STORES AND EXIT CODES\"\n.nf\n")
        .replace(".SH VERSION\n", ".fi\n.SH VERSION\n");
    let sections: Result<String, _> = command.get_subcommands().map(section).collect();
    printer.write((page + &sections?).as_bytes())
}

fn section(command: &Command) -> Result<String, Failure> {
    if command.has_subcommands() {
        return command.get_subcommands().map(section).collect();
    }
    let name = command.get_bin_name().unwrap_or_default().to_uppercase();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
    let man = Man::new(command.clone());
    let text = rendered(|text| {
        man.render_description_section(text)?;
        man.render_options_section(text)
    })?;
    let text = text.replace(".SH DESCRIPTION\n", "").replace(".SH ", ".SS ");
    let own = text.split(".SS \"GLOBAL OPTIONS\"").next().unwrap_or_default();
    Ok(format!(".SH \"{name}\"\n.B {usage}\n.PP\n{own}"))
}

fn rendered(render: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> Result<String, Failure> {
    let mut text = Vec::new();
    render(&mut text).map_err(Failure::internal)?;
    String::from_utf8(text).map_err(Failure::internal)
}
