//! What locks cost, beside the bare engine in the same run. Started by `cargo xtask bench locks`.

mod cli;
mod clients;
mod command;
mod handover;
mod load;
mod locks;
mod measure;
mod plan;
mod probe;
mod report;
mod rounds;
mod stats;
mod workers;

use anyhow::Result;
use clap::Parser;

fn main() -> Result<()> {
    match cli::Cli::parse().bench {
        cli::Bench::Locks(options) => locks::run(&options),
        cli::Bench::Worker(options) => workers::serve(&options),
    }
}
