//! Where the engines' programs are: installed, in our cache, or fetched into it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Kind;
use super::apt;
use super::github;
use super::lab::run;
use super::python;

/// The emulator of DynamoDB, and its version: tried against the conformance suite before it changes.
const EMULATOR: &str = "dynoxide-rs";
const EMULATOR_VERSION: &str = "3.2.0";

/// The programs of one machine.
pub(super) struct Programs {
    cache: PathBuf,
}

impl Programs {
    /// Finds what these engines need, and fetches what is not there.
    pub(super) fn prepare(kinds: &[Kind]) -> Result<Self> {
        let programs = Self { cache: cache()? };
        let missing: Vec<_> = kinds.iter().flat_map(|kind| programs.missing(*kind)).collect();
        let emulator = kinds.contains(&Kind::Dynamodb) && programs.dynoxide().is_err();
        let python = kinds.contains(&Kind::Python) && programs.python().is_err();
        let github = kinds.contains(&Kind::Github) && programs.github().is_err();
        if missing.is_empty() && !emulator && !python && !github {
            return Ok(programs);
        }
        fs::create_dir_all(&programs.cache).with_context(|| {
            let cache = programs.cache.display();
            format!("cannot make the cache folder {cache}: name another with LEASEHOLD_ENGINES_CACHE")
        })?;
        // One at a time: two runs that start together would write the same files.
        let lock = File::create(programs.cache.join("lock"))?;
        lock.lock()?;
        if !missing.is_empty() {
            eprintln!("fetching {} into {} (once)", missing.join(", "), programs.cache.display());
            apt::fetch(&missing, &programs.cache).with_context(|| instead(&missing, kinds))?;
        }
        if emulator && programs.dynoxide().is_err() {
            eprintln!("building {EMULATOR} into {} (once; some minutes)", programs.cache.display());
            programs.build_emulator().context(
                "the emulator of DynamoDB cannot be built with cargo install; to go without it: --skip dynamodb",
            )?;
        }
        if python && programs.python().is_err() {
            eprintln!("installing {} into {} (once)", python::WHAT, programs.cache.display());
            python::install(&programs.cache).context(
                "the Python packages of the tests cannot be installed; to go without them: --skip python",
            )?;
        }
        if github && programs.github().is_err() {
            eprintln!("fetching {} into {} (once)", github::WHAT, programs.cache.display());
            github::fetch(&programs.cache).context(
                "the description of GitHub's API cannot be fetched; to go without it: --skip github",
            )?;
        }
        Ok(programs)
    }

    /// The packages that would bring what this engine needs and is not there.
    fn missing(&self, kind: Kind) -> Vec<&'static str> {
        let lacks = |missing: bool, package| missing.then_some(package);
        let packages = match kind {
            Kind::Postgres => {
                [lacks(self.postgres().is_err(), "postgresql"), lacks(self.pgbouncer().is_err(), "pgbouncer")]
            }
            Kind::Redis => [lacks(self.redis().is_err(), "redis-server"), None],
            Kind::Etcd => [lacks(self.etcd().is_err(), "etcd-server"), None],
            Kind::Dynamodb | Kind::Python | Kind::Github => [None, None],
        };
        packages.into_iter().flatten().collect()
    }

    /// The folder with initdb, postgres, `pg_ctl`, psql and pgbench.
    pub(super) fn postgres(&self) -> Result<PathBuf> {
        // What is on the PATH may be a link into the folder where all of them are.
        let on_path = on_path("initdb").and_then(|initdb| initdb.canonicalize().ok());
        let on_path = on_path.and_then(|initdb| initdb.parent().map(Path::to_owned));
        let mut installed: Vec<_> = children(Path::new("/usr/lib/postgresql"));
        installed.sort_by_key(|folder| version(folder));
        let installed = installed.into_iter().rev().map(|folder| folder.join("bin"));
        let places = on_path.into_iter().chain(installed).chain([self.cache.join("bin")]);
        let needed = ["initdb", "postgres", "pg_ctl", "psql", "pgbench"];
        places
            .into_iter()
            .find(|folder| needed.iter().all(|name| folder.join(name).is_file()))
            .context("PostgreSQL is not there")
    }

    pub(super) fn pgbouncer(&self) -> Result<PathBuf> {
        self.find("pgbouncer")
    }

    pub(super) fn redis(&self) -> Result<PathBuf> {
        self.find("redis-server")
    }

    pub(super) fn etcd(&self) -> Result<PathBuf> {
        self.find("etcd")
    }

    pub(super) fn dynoxide(&self) -> Result<PathBuf> {
        let place = self.cache.join(format!("{EMULATOR}-{EMULATOR_VERSION}/bin/dynoxide"));
        if place.is_file() { Ok(place) } else { bail!("{EMULATOR} is not there") }
    }

    /// A Python that has what makes clients.
    pub(super) fn python(&self) -> Result<PathBuf> {
        python::find(&self.cache).with_context(|| format!("{} is not there", python::WHAT))
    }

    /// The description of GitHub's API.
    pub(super) fn github(&self) -> Result<PathBuf> {
        github::find(&self.cache).with_context(|| format!("{} is not there", github::WHAT))
    }

    fn find(&self, name: &str) -> Result<PathBuf> {
        // Debian keeps servers where an ordinary user's PATH does not look.
        let places = [PathBuf::from("/usr/sbin"), self.cache.join("bin")].map(|folder| folder.join(name));
        on_path(name)
            .or_else(|| places.into_iter().find(|place| place.is_file()))
            .with_context(|| format!("{name} is not there"))
    }

    fn build_emulator(&self) -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let place = self.cache.join(format!("{EMULATOR}-{EMULATOR_VERSION}"));
        let build = self.cache.join("build");
        let mut install = Command::new(cargo);
        install.args(["install", "--debug", "--locked", EMULATOR, "--version", EMULATOR_VERSION]);
        install.args(["--no-default-features", "--features", "native-sqlite,http-server,cli"]);
        install.arg("--root").arg(place).arg("--target-dir").arg(&build).current_dir(&self.cache);
        run(&mut install)?;
        fs::remove_dir_all(&build).context("the build is left over")
    }
}

fn instead(missing: &[&str], kinds: &[Kind]) -> String {
    let kinds: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    format!(
        "{} cannot be fetched; install what is missing with: apt-get install {} (or what your system has \
         instead); to go without an engine: --skip {}",
        missing.join(", "),
        missing.join(" "),
        kinds.join(",")
    )
}

/// Root's home is closed to the user that PostgreSQL runs as, so root keeps the cache where the system keeps its own.
fn cache() -> Result<PathBuf> {
    let named = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(cache) = named("LEASEHOLD_ENGINES_CACHE") {
        return Ok(cache);
    }
    let usual = || named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    let cache = if is_root() { Some(PathBuf::from("/var/cache")) } else { usual() };
    let cache = cache.context("there is no HOME: name a folder with LEASEHOLD_ENGINES_CACHE")?;
    Ok(cache.join("leasehold-engines"))
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|place| place.is_file())
}

/// What is in a folder; nothing if there is no such folder.
pub(super) fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(Result::ok).map(|entry| entry.path()).collect()
}

/// `/usr/lib/postgresql/15` is before `/usr/lib/postgresql/9.6` by name only.
fn version(folder: &Path) -> u32 {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
}
