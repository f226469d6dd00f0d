//! `cargo xtask engines`: starts the engines that the tests need, in the background, on free loopback ports.

mod apt;
mod cluster;
mod command;
mod dynamodb;
mod environment;
mod etcd;
mod github;
mod lifetime;
mod pgbouncer;
mod postgres;
mod process;
mod programs;
mod python;
mod redis;
mod sentinel;
mod state;
mod tls;

pub(crate) use command::{Command, Skip, run};
pub(crate) use lifetime::ScopedEngines;

/// Engines that are not built into the library, and the other external programs of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Postgres,
    Redis,
    Dynamodb,
    /// Python packages that test the description of the server's API.
    Python,
    /// API description of GitHub's API.
    Github,
    /// etcd, whose lock is benchmarked for comparison. No test needs it.
    #[value(skip)]
    Etcd,
}

impl Kind {
    /// Everything that the tests need.
    const ALL: [Self; 5] = [Self::Postgres, Self::Redis, Self::Dynamodb, Self::Python, Self::Github];

    fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Dynamodb => "dynamodb",
            Self::Python => "python",
            Self::Github => "github",
            Self::Etcd => "etcd",
        }
    }

    /// Returns the variable with its address, for the tests.
    fn variable(self) -> String {
        match self {
            Self::Github => "LEASEHOLD_TEST_GITHUB_OPENAPI".to_owned(),
            _ => format!("LEASEHOLD_TEST_{}", self.name().to_uppercase()),
        }
    }

    /// Returns the variable with the address of an instance that syncs to disk, for the benchmarks.
    fn bench_variable(self) -> String {
        format!("LEASEHOLD_BENCH_{}", self.name().to_uppercase())
    }
}
