//! Subcommands up, down, env and status, and engines for the duration of a run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::environment::{Environment, Tls};
use super::programs::Programs;
use super::state::{Process, State};
use super::{Kind, servers};

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
    /// Skip these engines and leave out their tests
    #[arg(long, value_name = "ENGINE", value_delimiter = ',')]
    skip: Vec<Kind>,
}

impl Skip {
    fn wanted(&self) -> Vec<Kind> {
        Kind::ALL.into_iter().filter(|kind| !self.skip.contains(kind)).collect()
    }

    pub(crate) fn list(&self) -> String {
        self.skip.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the names by which the test runner leaves out the tests of the skipped engines.
    pub(crate) fn tests(&self) -> Vec<&'static str> {
        self.skip.iter().flat_map(|kind| kind.tests()).copied().collect()
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

/// Engines that a run uses: engines that are already running, or new ones. Dropping it stops those that were started for the run.
pub(crate) struct ScopedEngines {
    root: PathBuf,
    /// Environment variables for the processes that use the engines.
    pub(crate) variables: Vec<(String, String)>,
}

impl ScopedEngines {
    /// Uses the engines that are running, or starts them. An engine that the environment names is used
    /// as it is.
    pub(crate) fn new(root: &Path, skip: &Skip) -> Result<Self> {
        let mut wanted = skip.wanted();
        wanted.retain(|kind| std::env::var_os(kind.variable()).is_none());
        let mut engines = Self { root: root.to_owned(), variables: Vec::new() };
        if !wanted.is_empty() {
            engines.start(&wanted, false)?;
        }
        Ok(engines)
    }

    /// Engines for benchmarks, which sync to disk. Starts none if the environment names them.
    pub(crate) fn durable(root: &Path) -> Result<Self> {
        let mut engines = Self { root: root.to_owned(), variables: Vec::new() };
        let mut wanted = vec![Kind::Postgres, Kind::Redis];
        if wanted.iter().all(|kind| std::env::var_os(kind.bench_variable()).is_some()) {
            return Ok(engines);
        }
        match Programs::prepare(&[Kind::Etcd]) {
            Ok(_) => wanted.push(Kind::Etcd),
            Err(error) => eprintln!("etcd's lock is not measured: {error:#}"),
        }
        engines.start(&wanted, true)?;
        let is_exported =
            |kind: &Kind| engines.variables.iter().any(|(name, _)| *name == kind.bench_variable());
        let hint = "the running engines do not sync to disk: run cargo xtask engines down, then try again";
        ensure!(wanted.iter().filter(|kind| **kind != Kind::Etcd).all(is_exported), hint);
        Ok(engines)
    }

    /// The browser alone, without a server. Installs nothing if the environment names it.
    pub(crate) fn browser(root: &Path) -> Result<Self> {
        let mut engines = Self { root: root.to_owned(), variables: Vec::new() };
        if std::env::var_os(Kind::Browser.variable()).is_none() {
            engines.start(&[Kind::Browser], false)?;
        }
        Ok(engines)
    }

    fn start(&mut self, wanted: &[Kind], durable: bool) -> Result<()> {
        stop_on_signal(&self.root)?;
        let owner = Some(Process::this()?);
        let state = up(&self.root, wanted, &StartOptions { durable, owner })?;
        let names: Vec<_> = state.processes.iter().map(|(name, _)| name.as_str()).collect();
        eprintln!("engines: {}", names.join(", "));
        let is_unset = |(name, _): &(String, String)| std::env::var_os(name).is_none();
        self.variables.extend(state.exports.iter().filter(|export| is_unset(export)).cloned());
        Ok(())
    }
}

impl Drop for ScopedEngines {
    fn drop(&mut self) {
        stop_own(&self.root);
    }
}

/// Stops the engines before a signal ends this process.
fn stop_on_signal(root: &Path) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let root = root.to_owned();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            stop_own(&root);
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}

/// Stops the engines of this process, according to the state file, which contains every engine from
/// its start.
fn stop_own(root: &Path) {
    let stopped = match (State::load(root), Process::this()) {
        (Ok(Some(state)), Ok(this)) if state.owner == Some(this) => state.stop(),
        (state, this) => state.and(this.map(drop)),
    };
    if let Err(error) = stopped {
        eprintln!("the engines could not be stopped: {error:#}");
    }
}

struct StartOptions {
    durable: bool,
    /// Process that stops the engines; `None` if a person does.
    owner: Option<Process>,
}

/// Returns the running engines, or starts new ones. If one cannot be started, none is left running.
fn up(root: &Path, wanted: &[Kind], options: &StartOptions) -> Result<State> {
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
                let port = servers::start_postgres(env)?;
                servers::start_pgbouncer(env, port)?;
            }
            Kind::Redis => {
                servers::start_redis(env)?;
                servers::start_cluster(env)?;
                servers::start_sentinel(env)?;
            }
            Kind::Dynamodb => servers::start_dynamodb(env)?,
            Kind::Python | Kind::Github => {
                let programs = &env.programs;
                let path = if *kind == Kind::Python { programs.python()? } else { programs.github()? };
                env.export(&kind.variable(), path.display().to_string());
            }
            Kind::Browser => {
                let (chromium, packages) = env.programs.browser()?;
                env.export("LEASEHOLD_TEST_CHROMIUM", chromium.display().to_string());
                env.export(&kind.variable(), packages.display().to_string());
            }
            Kind::Namespaces => {}
            Kind::Etcd => servers::start_etcd(env)?,
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
