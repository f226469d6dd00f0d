//! `cargo xtask engines`: the real engines that the tests need, private, in the background, on free ports of this
//! machine's loopback.
//!
//! | file | idea |
//! |---|---|
//! | `command.rs` | up, down, env, status |
//! | `borrowed.rs` | engines for the length of a test run |
//! | `programs.rs`, `apt.rs` | where the programs are, and how to get those that are missing |
//! | `lab.rs` | what every engine needs to be started: folder, ports, log, patience |
//! | `process.rs`, `state.rs` | what is running, so that exactly that can be ended |
//! | `tls.rs` | certificates that live as long as the engines |
//! | `github.rs` | no engine, but the official description that the tests' own GitHub is held to |
//! | `python.rs` | no engine, but what makes a client from the description of the server, and tests the server against it |
//! | `postgres.rs`, `pgbouncer.rs`, `redis.rs`, `cluster.rs`, `sentinel.rs`, `dynamodb.rs` | the engines |
//! | `etcd.rs` | no engine of ours: its lock is measured beside them |

mod apt;
mod borrowed;
mod cluster;
mod command;
mod dynamodb;
mod etcd;
mod github;
mod lab;
mod pgbouncer;
mod postgres;
mod process;
mod programs;
mod python;
mod redis;
mod sentinel;
mod state;
mod tls;

pub(crate) use borrowed::Borrowed;
pub(crate) use command::{Command, Skip, run};

/// The engines that are not built into the library itself, and what else the tests need from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Postgres,
    Redis,
    Dynamodb,
    /// Makes a client from the description of the server's API.
    Python,
    /// The description of GitHub's API.
    Github,
    /// Another project's locks, to be measured beside ours. No test needs it.
    #[value(skip)]
    Etcd,
}

impl Kind {
    /// What the tests need.
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

    /// What tells the tests where it is.
    fn variable(self) -> String {
        match self {
            Self::Github => "LEASEHOLD_TEST_GITHUB_OPENAPI".to_owned(),
            _ => format!("LEASEHOLD_TEST_{}", self.name().to_uppercase()),
        }
    }

    /// What tells the benchmarks where one is that waits for the disk.
    fn bench_variable(self) -> String {
        format!("LEASEHOLD_BENCH_{}", self.name().to_uppercase())
    }
}
