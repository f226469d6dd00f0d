//! `cargo xtask engines`: starts the engines that the tests need, in the background, on free loopback ports.

mod browser;
mod command;
mod environment;
mod fetch;
mod programs;
mod servers;
mod state;

pub(crate) use command::{Command, ScopedEngines, Skip, run};
pub(crate) use state::target;

/// Engines that are not built into the library, and the other external programs of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Postgres,
    Redis,
    Dynamodb,
    /// Python packages that test the description of the server's API.
    Python,
    /// Chromium, and the npm packages that control it and check the accessibility of pages.
    Browser,
    /// API description of GitHub's API.
    Github,
    /// Namespaces of the kernel, which need root or user namespaces. Nothing is started for them.
    Namespaces,
    /// etcd, whose lock is benchmarked for comparison. No test needs it.
    #[value(skip)]
    Etcd,
}

impl Kind {
    /// Everything that the tests need.
    const ALL: [Self; 6] =
        [Self::Postgres, Self::Redis, Self::Dynamodb, Self::Python, Self::Browser, Self::Github];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Returns parts of the names of the tests that need it, and of no others.
    fn tests(self) -> &'static [&'static str] {
        match self {
            Self::Postgres => &["engines::postgres::", "::on_postgres"],
            Self::Redis => &["engines::redis::", "::on_redis"],
            Self::Dynamodb => &["engines::dynamodb::"],
            Self::Python => &["openapi::a_generated_client_works", "contract::"],
            Self::Browser => &["dashboard::chromium::"],
            Self::Github => &["engines::github::"],
            // The tests of the binary; the unit tests of the library are in `namespaces::tests`.
            Self::Namespaces => &["namespaces::a", "namespaces::boot_ids"],
            Self::Etcd => &[],
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
