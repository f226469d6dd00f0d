//! The `leasehold` binary: parses the command line, calls the client library and prints the result.

#![cfg_attr(
    not(feature = "serve"),
    expect(
        dead_code,
        unused_imports,
        reason = "what only the server uses stays in the module it belongs to"
    )
)]

mod cli;
mod commands;
mod complete;
mod config;
mod connect;
mod exit;
mod identity;
mod output;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod telemetry;
mod wait;
mod work;

use std::ffi::OsString;

/// Allocator of this program: that of musl takes the memory of each large block from the kernel, and a lock
/// for every block.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    cli::complete_and_exit();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = run::run_attempt_monitor(&arguments) {
        std::process::exit(code)
    }
    let code = match cli::parse(&arguments) {
        Ok(cli) => {
            let exporter = telemetry::start(telemetry::LogMode::of(&cli), cli.global.json);
            let code = commands::dispatch(cli);
            if let Some(exporter) = exporter {
                exporter.finish();
            }
            code
        }
        Err(code) => code,
    };
    std::process::exit(code)
}
