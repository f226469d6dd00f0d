//! Finds the programs of the engines: installed, in the cache, or fetched into it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Kind;
use super::browser;
use super::fetch::{self, children, run};

/// Emulator of DynamoDB. Run the conformance suite against a new version before changing it.
const EMULATOR: &str = "dynoxide-rs";
const EMULATOR_VERSION: &str = "3.2.0";

pub(super) struct Programs {
    cache: PathBuf,
}

impl Programs {
    /// Finds the programs of these engines, and fetches missing ones.
    pub(super) fn prepare(kinds: &[Kind]) -> Result<Self> {
        let programs = Self { cache: cache()? };
        let missing: Vec<_> = kinds.iter().flat_map(|kind| programs.missing(*kind)).collect();
        let emulator = kinds.contains(&Kind::Dynamodb) && programs.dynoxide().is_err();
        let python = kinds.contains(&Kind::Python) && programs.python().is_err();
        let browser = kinds.contains(&Kind::Browser) && programs.browser().is_err();
        let github = kinds.contains(&Kind::Github) && programs.github().is_err();
        if missing.is_empty() && !emulator && !python && !browser && !github {
            return Ok(programs);
        }
        fs::create_dir_all(&programs.cache).with_context(|| {
            let cache = programs.cache.display();
            format!("cannot create the cache folder {cache}: set LEASEHOLD_ENGINES_CACHE to another folder")
        })?;
        // One at a time: two runs that start together would write the same files.
        let lock = File::create(programs.cache.join("lock"))?;
        lock.lock()?;
        if !missing.is_empty() {
            eprintln!("fetching {} into {} (once)", missing.join(", "), programs.cache.display());
            fetch::fetch_debian(&missing, &programs.cache).with_context(|| install_hint(&missing, kinds))?;
        }
        if emulator && programs.dynoxide().is_err() {
            eprintln!("building {EMULATOR} into {} (once; takes minutes)", programs.cache.display());
            programs.build_emulator().context(
                "the emulator of DynamoDB cannot be built with cargo install; to skip it: --skip dynamodb",
            )?;
        }
        if python && programs.python().is_err() {
            eprintln!("installing {} into {} (once)", fetch::PYTHON_PACKAGES, programs.cache.display());
            fetch::install_python(&programs.cache).context(
                "the Python packages of the tests cannot be installed; to skip them: --skip python",
            )?;
        }
        if browser && programs.browser().is_err() {
            browser::install(&programs.cache)
                .context("the browser of the tests cannot be installed; to skip it: --skip browser")?;
        }
        if github && programs.github().is_err() {
            eprintln!("fetching {} into {} (once)", fetch::GITHUB_PACKAGE, programs.cache.display());
            fetch::fetch_description(&programs.cache)
                .context("the description of GitHub's API cannot be fetched; to skip it: --skip github")?;
        }
        Ok(programs)
    }

    /// Returns the packages of the missing programs of this engine.
    fn missing(&self, kind: Kind) -> Vec<&'static str> {
        let packages = match kind {
            Kind::Postgres => vec![("postgresql", self.postgres()), ("pgbouncer", self.find("pgbouncer"))],
            Kind::Redis => vec![("redis-server", self.find("redis-server"))],
            Kind::Etcd => vec![("etcd-server", self.find("etcd"))],
            Kind::Dynamodb | Kind::Python | Kind::Browser | Kind::Github | Kind::Namespaces => Vec::new(),
        };
        packages.into_iter().filter(|(_, program)| program.is_err()).map(|(package, _)| package).collect()
    }

    /// Returns the folder with initdb, postgres, `pg_ctl`, `pg_basebackup`, psql and pgbench.
    pub(super) fn postgres(&self) -> Result<PathBuf> {
        // A program on the PATH may be a link into the folder with all of them.
        let on_path = on_path("initdb").and_then(|initdb| initdb.canonicalize().ok());
        let on_path = on_path.and_then(|initdb| initdb.parent().map(Path::to_owned));
        let mut installed: Vec<_> = children(Path::new("/usr/lib/postgresql"));
        installed.sort_by_key(|folder| version(folder));
        let installed = installed.into_iter().rev().map(|folder| folder.join("bin"));
        let candidates = on_path.into_iter().chain(installed).chain([self.cache.join("bin")]);
        let needed = ["initdb", "postgres", "pg_ctl", "pg_basebackup", "psql", "pgbench"];
        candidates
            .into_iter()
            .find(|folder| needed.iter().all(|name| folder.join(name).is_file()))
            .context("PostgreSQL is not installed")
    }

    pub(super) fn dynoxide(&self) -> Result<PathBuf> {
        let path = self.cache.join(format!("{EMULATOR}-{EMULATOR_VERSION}/bin/dynoxide"));
        if path.is_file() { Ok(path) } else { bail!("{EMULATOR} is not installed") }
    }

    /// Returns a Python interpreter with the packages of the tests.
    pub(super) fn python(&self) -> Result<PathBuf> {
        fetch::find_python(&self.cache)
            .with_context(|| format!("{} is not installed", fetch::PYTHON_PACKAGES))
    }

    /// Returns Chromium, and the folder with the npm packages that control it.
    pub(super) fn browser(&self) -> Result<(PathBuf, PathBuf)> {
        let packages = browser::find_packages(&self.cache)
            .with_context(|| format!("{} are not installed", browser::PACKAGES.join(" and ")))?;
        Ok((self.find("chromium")?, packages))
    }

    pub(super) fn github(&self) -> Result<PathBuf> {
        fetch::find_description(&self.cache)
            .with_context(|| format!("{} is not installed", fetch::GITHUB_PACKAGE))
    }

    /// Returns a program that needs no others.
    pub(super) fn find(&self, name: &str) -> Result<PathBuf> {
        // Debian installs servers in a folder that is not on the PATH of ordinary users.
        let candidates = [PathBuf::from("/usr/sbin"), self.cache.join("bin")].map(|folder| folder.join(name));
        on_path(name)
            .or_else(|| candidates.into_iter().find(|path| path.is_file()))
            .with_context(|| format!("{name} is not installed"))
    }

    fn build_emulator(&self) -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let path = self.cache.join(format!("{EMULATOR}-{EMULATOR_VERSION}"));
        let build = self.cache.join("build");
        let mut install = Command::new(cargo);
        install.args(["install", "--debug", "--locked", EMULATOR, "--version", EMULATOR_VERSION]);
        install.args(["--no-default-features", "--features", "native-sqlite,http-server,cli"]);
        install.arg("--root").arg(path).arg("--target-dir").arg(&build).current_dir(&self.cache);
        run(&mut install)?;
        fs::remove_dir_all(&build).context("the build folder cannot be removed")
    }
}

fn install_hint(missing: &[&str], kinds: &[Kind]) -> String {
    let kinds: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    format!(
        "{} cannot be fetched; install them with: apt-get install {} (or the packages of your \
         system); to skip an engine: --skip {}",
        missing.join(", "),
        missing.join(" "),
        kinds.join(",")
    )
}

/// Returns the cache folder. For root it is in `/var/cache`, because the user that PostgreSQL runs as
/// cannot enter root's home.
fn cache() -> Result<PathBuf> {
    let named = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(cache) = named("LEASEHOLD_ENGINES_CACHE") {
        return Ok(cache);
    }
    let user_cache = || named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    let cache = if is_root() { Some(PathBuf::from("/var/cache")) } else { user_cache() };
    let cache = cache.context("HOME is not set: set LEASEHOLD_ENGINES_CACHE to a folder")?;
    Ok(cache.join("leasehold-engines"))
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns the major version: by name, `/usr/lib/postgresql/15` would sort before
/// `/usr/lib/postgresql/9.6`.
fn version(folder: &Path) -> u32 {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
}
