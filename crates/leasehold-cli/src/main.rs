//! The `leasehold` binary: parse, call the library, print.

mod cli;
mod commands;
mod config;
mod exit;
mod identity;
mod output;
mod run;
mod serve;
mod telemetry;
mod work;

use std::ffi::OsString;

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = run::keep(&arguments) {
        std::process::exit(code)
    }
    let telemetry = telemetry::start(&arguments);
    let code = match cli::parse(&arguments) {
        Ok(cli) => commands::dispatch(cli),
        Err(code) => code,
    };
    telemetry.finish();
    std::process::exit(code)
}
