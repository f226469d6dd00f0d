//! The `leasehold` binary: parse, call the library, print.

mod cli;
mod commands;
mod config;
mod exit;
mod identity;
mod output;
mod run;
mod serve;
mod work;

use std::ffi::OsString;

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = run::keep(&arguments) {
        std::process::exit(code)
    }
    log_if_asked(&arguments);
    let code = match cli::parse(&arguments) {
        Ok(cli) => commands::dispatch(cli),
        Err(code) => code,
    };
    std::process::exit(code)
}

/// `LEASEHOLD_LOG=debug` shows what the library does. A server that was not asked tells what it warns of.
fn log_if_asked(arguments: &[OsString]) {
    use tracing_subscriber::filter::EnvFilter;
    let asked = std::env::var_os("LEASEHOLD_LOG").is_some_and(|wanted| !wanted.is_empty());
    let serves =
        arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "serve");
    if asked || serves {
        let filter = if asked { EnvFilter::from_env("LEASEHOLD_LOG") } else { EnvFilter::new("warn") };
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
}
