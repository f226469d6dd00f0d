//! up, down, env and status.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use super::lab::Lab;
use super::process::Process;
use super::programs::Programs;
use super::state::State;
use super::tls::Tls;
use super::{Kind, cluster, dynamodb, etcd, pgbouncer, postgres, redis, sentinel};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start them and print what to export: eval "$(cargo xtask engines up)"
    Up {
        #[command(flatten)]
        skip: Skip,
        /// PostgreSQL waits for the disk, as it must where it is measured
        #[arg(long)]
        durable: bool,
    },
    /// Stop them and remove what they wrote
    Down,
    /// Print what to export for those that run
    Env,
    /// Say which run
    Status,
}

/// What to go without.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Skip {
    #[arg(long, value_name = "ENGINE", value_delimiter = ',')]
    #[arg(help = "Go without these engines; their tests do nothing [env: LEASEHOLD_TEST_SKIP]")]
    skip: Vec<Kind>,
}

impl Skip {
    /// Those that the tests are to be made with.
    pub(super) fn wanted(&self) -> Vec<Kind> {
        Kind::ALL.into_iter().filter(|kind| !self.names(*kind)).collect()
    }

    /// The others, as the tests read it.
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
            let state = up(root, &skip.wanted(), &Manner { durable: *durable, owner: None })?;
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
                let how = if process.is_running() { "running" } else { "gone" };
                println!("{name:<18} {:>7}  {how}", process.pid);
            }
            println!("{}", state.folder.display());
            return Ok(if state.is_up() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How engines are started.
pub(super) struct Manner {
    /// PostgreSQL waits for the disk.
    pub(super) durable: bool,
    /// Who ends them, if it is not a person.
    pub(super) owner: Option<Process>,
}

/// Those that run already, or new ones. If one cannot be started, none is left running.
pub(super) fn up(root: &Path, wanted: &[Kind], manner: &Manner) -> Result<State> {
    if let Some(state) = State::load(root)? {
        if state.is_up() {
            let has = |kind: &Kind| state.exports.iter().any(|(name, _)| *name == kind.variable());
            // etcd is only measured beside the others: whoever measures says that it is not there.
            if let Some(kind) = wanted.iter().find(|kind| **kind != Kind::Etcd && !has(kind)) {
                bail!("the engines that run lack {}: cargo xtask engines down, then once more", kind.name());
            }
            return Ok(state);
        }
        state.stop()?;
    }
    let programs = Programs::prepare(wanted)?;
    let state = State::new(root, manner.owner)?;
    let tls = Tls::make(&state.folder.join("tls"))?;
    let mut lab = Lab { state, programs, tls, durable: manner.durable };
    match start(&mut lab, wanted) {
        Ok(()) => Ok(lab.state),
        Err(error) => {
            lab.state.stop()?;
            Err(error)
        }
    }
}

fn start(lab: &mut Lab, wanted: &[Kind]) -> Result<()> {
    let [authority, other] =
        [&lab.tls.authority, &lab.tls.other_authority].map(|file| file.display().to_string());
    lab.export("LEASEHOLD_TEST_CA", authority);
    lab.export("LEASEHOLD_TEST_OTHER_CA", other);
    for kind in wanted {
        match kind {
            Kind::Postgres => {
                let port = postgres::start(lab)?;
                pgbouncer::start(lab, port)?;
            }
            Kind::Redis => {
                redis::start(lab)?;
                cluster::start(lab)?;
                sentinel::start(lab)?;
            }
            Kind::Dynamodb => dynamodb::start(lab)?,
            Kind::Python => {
                let python = lab.programs.python()?;
                lab.export(&kind.variable(), python.display().to_string());
            }
            Kind::Github => {
                let description = lab.programs.github()?;
                lab.export(&kind.variable(), description.display().to_string());
            }
            Kind::Etcd => etcd::start(lab)?,
        }
    }
    if lab.durable {
        for kind in wanted {
            let url = lab.state.exports.iter().find(|(name, _)| *name == kind.variable()).cloned();
            if let Some((_, url)) = url {
                lab.export(&kind.bench_variable(), url);
            }
        }
    }
    lab.state.ready = true;
    lab.state.save()
}
