//! The `leasehold` binary: parse, call the library, print.

mod cli;
mod commands;
mod config;
mod exit;
mod identity;
mod output;
mod run;
mod work;

use std::ffi::OsString;

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = run::keep(&arguments) {
        std::process::exit(code)
    }
    log_if_asked();
    let code = match cli::parse(&arguments) {
        Ok(cli) => commands::dispatch(cli),
        Err(code) => code,
    };
    std::process::exit(code)
}

/// `LEASEHOLD_LOG=debug` shows what the library does.
fn log_if_asked() {
    use tracing_subscriber::filter::EnvFilter;
    if std::env::var_os("LEASEHOLD_LOG").is_some_and(|wanted| !wanted.is_empty()) {
        let filter = EnvFilter::from_env("LEASEHOLD_LOG");
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
}
