//! Subcommands up, down, env and status.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use super::environment::Environment;
use super::process::Process;
use super::programs::Programs;
use super::state::State;
use super::tls::Tls;
use super::{Kind, cluster, dynamodb, etcd, pgbouncer, postgres, redis, sentinel};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start the engines and print their variables: eval "$(cargo xtask engines up)"
    Up {
        #[command(flatten)]
        skip: Skip,
        /// PostgreSQL syncs to disk, which benchmarks need
        #[arg(long)]
        durable: bool,
    },
    /// Stop the engines and remove their data
    Down,
    /// Print the variables of the running engines
    Env,
    /// List the engines and their state
    Status,
}

/// Engines to skip.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Skip {
    #[arg(long, value_name = "ENGINE", value_delimiter = ',')]
    #[arg(help = "Skip these engines; their tests do nothing [env: LEASEHOLD_TEST_SKIP]")]
    skip: Vec<Kind>,
}

impl Skip {
    /// Returns the engines that are not skipped.
    pub(super) fn wanted(&self) -> Vec<Kind> {
        Kind::ALL.into_iter().filter(|kind| !self.names(*kind)).collect()
    }

    /// Returns the skipped engines, as the tests read them.
    pub(super) fn list(&self) -> String {
        let skipped = Kind::ALL.into_iter().filter(|kind| self.names(*kind));
        skipped.map(Kind::name).collect::<Vec<_>>().join(",")
    }

    fn names(&self, kind: Kind) -> bool {
        let variable = std::env::var("LEASEHOLD_TEST_SKIP").unwrap_or_default();
        self.skip.contains(&kind) || variable.split(',').any(|name| name.trim() == kind.name())
    }
}

pub(crate) fn run(root: &Path, command: &Command) -> Result<ExitCode> {
    let none = "no engines are running: start them with cargo xtask engines up";
    match command {
        Command::Up { skip, durable } => {
            let state = up(root, &skip.wanted(), &StartOptions { durable: *durable, owner: None })?;
            print!("{}", state.shell());
        }
        Command::Down => match State::load(root)? {
            Some(state) => state.stop()?,
            None => eprintln!("no engines are running"),
        },
        Command::Env => print!("{}", State::load(root)?.filter(State::is_up).context(none)?.shell()),
        Command::Status => {
            let state = State::load(root)?.context(none)?;
            for (name, process) in &state.processes {
                let status = if process.is_running() { "running" } else { "not running" };
                println!("{name:<18} {:>7}  {status}", process.pid);
            }
            println!("{}", state.folder.display());
            return Ok(if state.is_up() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Options for the start of engines.
pub(super) struct StartOptions {
    /// Whether PostgreSQL syncs to disk.
    pub(super) durable: bool,
    /// Process that stops the engines; `None` if a person does.
    pub(super) owner: Option<Process>,
}

/// Returns the running engines, or starts new ones. If one cannot be started, none is left running.
pub(super) fn up(root: &Path, wanted: &[Kind], options: &StartOptions) -> Result<State> {
    if let Some(state) = State::load(root)? {
        if state.is_up() {
            let has = |kind: &Kind| state.exports.iter().any(|(name, _)| *name == kind.variable());
            // etcd is optional: benchmarks report its absence themselves.
            if let Some(kind) = wanted.iter().find(|kind| **kind != Kind::Etcd && !has(kind)) {
                bail!(
                    "the running engines do not include {}: run cargo xtask engines down, then try again",
                    kind.name()
                );
            }
            return Ok(state);
        }
        state.stop()?;
    }
    let programs = Programs::prepare(wanted)?;
    let state = State::new(root, options.owner)?;
    let tls = Tls::create(&state.folder.join("tls"))?;
    let mut env = Environment { state, programs, tls, durable: options.durable };
    match start(&mut env, wanted) {
        Ok(()) => Ok(env.state),
        Err(error) => {
            env.state.stop()?;
            Err(error)
        }
    }
}

fn start(env: &mut Environment, wanted: &[Kind]) -> Result<()> {
    let [authority, other] =
        [&env.tls.authority, &env.tls.other_authority].map(|file| file.display().to_string());
    env.export("LEASEHOLD_TEST_CA", authority);
    env.export("LEASEHOLD_TEST_OTHER_CA", other);
    for kind in wanted {
        match kind {
            Kind::Postgres => {
                let port = postgres::start(env)?;
                pgbouncer::start(env, port)?;
            }
            Kind::Redis => {
                redis::start(env)?;
                cluster::start(env)?;
                sentinel::start(env)?;
            }
            Kind::Dynamodb => dynamodb::start(env)?,
            Kind::Python => {
                let python = env.programs.python()?;
                env.export(&kind.variable(), python.display().to_string());
            }
            Kind::Github => {
                let description = env.programs.github()?;
                env.export(&kind.variable(), description.display().to_string());
            }
            Kind::Etcd => etcd::start(env)?,
        }
    }
    if env.durable {
        for kind in wanted {
            let url = env.state.exports.iter().find(|(name, _)| *name == kind.variable()).cloned();
            if let Some((_, url)) = url {
                env.export(&kind.bench_variable(), url);
            }
        }
    }
    env.state.ready = true;
    env.state.save()
}
