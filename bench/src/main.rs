//! What locks, tasks and the server cost, beside the bare engine in the same run. Started by `cargo xtask bench`.

mod cli;
mod clients;
mod command;
mod handover;
mod http;
mod load;
mod locks;
mod measure;
mod pgbench;
mod place;
mod plan;
mod probe;
mod report;
mod rounds;
mod stats;
mod tasks;
mod workers;

use anyhow::Result;
use clap::Parser;

fn main() -> Result<()> {
    match cli::Cli::parse().bench {
        cli::Bench::Locks(options) => locks::run(&options),
        cli::Bench::Tasks(options) => tasks::run(&options),
        cli::Bench::Http(options) => http::run(&options),
        cli::Bench::HttpServer(options) => http::serve(&options),
        cli::Bench::Worker(options) => workers::serve(&options),
        cli::Bench::Crew(options) => tasks::serve(&options),
    }
}
