//! Benchmarks of locks, tasks and the server, each next to the raw engine in the same run. Started by
//! `cargo xtask bench`.

mod chart;
mod child;
mod cli;
mod clients;
mod dashboard;
mod handover;
mod http;
mod load;
mod locks;
mod measure;
mod pgbench;
mod plan;
mod report;
mod rounds;
mod run_command;
mod sandbox;
mod tasks;

use anyhow::Result;
use clap::Parser;

fn main() -> Result<()> {
    match cli::Cli::parse().bench {
        cli::Bench::Locks(options) => locks::run(&options),
        cli::Bench::Tasks(options) => tasks::run(&options),
        cli::Bench::Http(options) => http::run(&options),
        cli::Bench::Dashboard(options) => dashboard::run(&options),
        cli::Bench::HttpServer { kind } => http::serve(serde_json::from_str(&kind)?),
        cli::Bench::ClientProcess { load } => load::serve(&serde_json::from_str(&load)?),
        cli::Bench::TaskWorker { sandbox } => tasks::serve(&serde_json::from_str(&sandbox)?),
    }
}
