//! Fetches what a machine lacks into the cache: Debian packages, Python packages, and the description of
//! GitHub's API.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Python packages to install: a client generator, and schemathesis, which sends the server valid and
/// invalid requests. Run the tests with new versions before changing them.
pub(super) const PYTHON_PACKAGES: &str = "openapi-python-client and schemathesis";
const REQUIREMENTS: &str = include_str!("../../requirements.txt");
/// Marker file of a complete Python environment, written last.
const COMPLETE: &str = "complete";

/// Package with the official API description of GitHub, against which the fake GitHub of the tests is
/// validated. Run the tests with a new version before changing it.
pub(super) const GITHUB_PACKAGE: &str = "@octokit/openapi@23.0.2";
/// File of the package that is kept.
const DESCRIPTION: &str = "package/generated/api.github.com.json";

/// Fetches Debian packages and their missing dependencies, unpacks them into a folder, and puts their
/// programs into `bin/`: nothing is installed, and root is not required.
pub(super) fn fetch_debian(packages: &[&str], cache: &Path) -> Result<()> {
    let lists = cache.join("apt");
    let downloads = lists.join("downloads");
    for folder in [lists.join("lists/partial"), lists.join("archives/partial"), downloads.clone()] {
        fs::create_dir_all(&folder)?;
    }
    // The machine's own lists may be outdated and name packages that no longer exist.
    run(apt(&lists).arg("update")).context("the package lists cannot be fetched")?;
    let plan = run(apt(&lists).args(["install", "--simulate", "--no-install-recommends"]).args(packages))?;
    let needed: Vec<_> = to_install(&plan).filter(|name| is_needed(name, packages)).collect();
    ensure!(!needed.is_empty(), "apt-get has nothing to fetch for {}:\n{plan}", packages.join(", "));
    run(apt(&lists).arg("download").args(&needed).current_dir(&downloads))?;
    let root = cache.join("root");
    for package in children(&downloads) {
        run(Command::new("dpkg-deb").arg("-x").args([&package, &root]))?;
    }
    fs::remove_dir_all(&lists).context("the package lists cannot be removed")?;
    write_wrappers(&root, &cache.join("bin"))
}

fn apt(folder: &Path) -> Command {
    let mut apt = Command::new("apt-get");
    let state = format!("Dir::State::lists={}", folder.join("lists").display());
    let cache = format!("Dir::Cache={}", folder.display());
    let settings = ["APT::Sandbox::User=root", "Acquire::http::Timeout=20", "Acquire::Retries=2"];
    apt.arg("-q").args(["-o", &state, "-o", &cache]).args(settings.iter().flat_map(|set| ["-o", set]));
    apt
}

/// Returns the packages of a plan with lines such as
/// `Inst redis-server (5:7.0.15-1 Debian:12/stable [amd64])`.
fn to_install(plan: &str) -> impl Iterator<Item = &str> {
    plan.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next())
}

/// Whether the package is needed to run an engine: libraries and the engines themselves, without
/// installation tools. LLVM is not needed, because the JIT of PostgreSQL is off. The C library must
/// match the installed loader.
fn is_needed(name: &str, packages: &[&str]) -> bool {
    let unused = ["libllvm", "libz3"].iter().any(|start| name.starts_with(start));
    let library = name.starts_with("lib") && !unused && !name.ends_with("-perl") && name != "libc6";
    let engine = packages.iter().any(|package| name.starts_with(package.trim_end_matches("-server")));
    library || (engine && !name.ends_with("-common"))
}

/// Writes a wrapper script for each program, which sets the library path and executes the program in the
/// same process.
fn write_wrappers(root: &Path, bin: &Path) -> Result<()> {
    fs::create_dir_all(bin)?;
    let libraries: Vec<_> = ["usr/lib", "lib"]
        .iter()
        .flat_map(|folder| children(&root.join(folder)))
        .filter(|folder| folder.to_string_lossy().contains("-linux-"))
        .map(|folder| folder.display().to_string())
        .collect();
    for program in programs(root) {
        let name = program.file_name().context("a program without a file name")?;
        let wrapper = bin.join(name);
        let libraries = quoted(&libraries.join(":"));
        let program = quoted(&program.display().to_string());
        fs::write(&wrapper, format!("#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {program} \"$@\"\n"))?;
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn programs(root: &Path) -> Vec<PathBuf> {
    let servers = ["usr/bin/redis-server", "usr/sbin/pgbouncer", "usr/bin/etcd"].map(|path| root.join(path));
    let servers = servers.into_iter().filter(|path| path.is_file());
    let postgres = children(&root.join("usr/lib/postgresql"));
    let postgres = postgres.iter().flat_map(|version| children(&version.join("bin")));
    servers.chain(postgres).collect()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Returns the folder of the Python environment; each list of versions has its own.
fn python_folder(cache: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    REQUIREMENTS.hash(&mut hasher);
    cache.join(format!("python-{:016x}", hasher.finish()))
}

/// Returns the interpreter, if the environment is complete.
pub(super) fn find_python(cache: &Path) -> Option<PathBuf> {
    let folder = python_folder(cache);
    folder.join(COMPLETE).is_file().then(|| folder.join("bin/python"))
}

pub(super) fn install_python(cache: &Path) -> Result<()> {
    let folder = python_folder(cache);
    if folder.exists() {
        fs::remove_dir_all(&folder).context("the remains of an earlier attempt cannot be removed")?;
    }
    let mut pip = create_environment(&folder)
        .context("python3 cannot create an environment; to install venv: apt-get install python3-venv")?;
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--requirement"]);
    run(pip.arg(&requirements))?;
    fs::write(folder.join(COMPLETE), "").context("the environment cannot be marked as complete")
}

/// Creates a Python environment; returns the command that installs packages into it. Debian's python3
/// cannot install pip into an environment unless python3-venv is installed; then an installed pip is used.
fn create_environment(folder: &Path) -> Result<Command> {
    let python = folder.join("bin/python");
    let Err(error) = run(Command::new("python3").args(["-m", "venv"]).arg(folder)) else {
        let mut pip = Command::new(python);
        pip.args(["-m", "pip"]);
        return Ok(pip);
    };
    let without_pip = ["-m", "venv", "--clear", "--without-pip"];
    run(Command::new("python3").args(without_pip).arg(folder)).map_err(|_| error)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--python"]).arg(python);
    run(Command::new("python3").args(["-m", "pip", "--version"]))?;
    Ok(pip)
}

fn description(cache: &Path) -> PathBuf {
    cache.join("octokit-openapi-23.0.2.json")
}

/// Returns the description, if it is cached. A complete download is renamed to this path.
pub(super) fn find_description(cache: &Path) -> Option<PathBuf> {
    Some(description(cache)).filter(|file| file.is_file())
}

/// Fetches the package, and keeps only the description.
pub(super) fn fetch_description(cache: &Path) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("octokit-").tempdir_in(cache)?;
    run(Command::new("npm").args(["pack", "--silent", GITHUB_PACKAGE]).current_dir(folder.path()))
        .context("npm pack failed; to install npm: apt-get install npm")?;
    let packed = children(folder.path());
    let packed = packed.first().context("npm pack created no file")?;
    run(Command::new("tar").arg("-xzf").arg(packed).arg(DESCRIPTION).current_dir(folder.path()))?;
    fs::rename(folder.path().join(DESCRIPTION), description(cache))
        .context("the description cannot be moved into the cache")
}

/// Runs a command to completion; returns its output. If it fails, the error contains its output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed:\n{}", last_lines(&format!("{stdout}{stderr}")));
    Ok(stdout)
}

pub(super) fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// Returns the entries of a folder; none if the folder does not exist.
pub(super) fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(Result::ok).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_engine_needs_to_run_is_fetched() {
        let plan = "NOTE: This is only a simulation!\nInst libc6 [1] (2)\nInst libllvm14 (1)\nInst libjson-perl (1)\nInst libpq5 (1)\n\
                    Inst postgresql-common (1)\nInst postgresql-15 (15.1 Debian:12/stable [amd64])\nInst redis-tools (5)\n\
                    Inst redis-server (5)\nInst ssl-cert (1)\nConf redis-server (5)\n";
        let packages = ["postgresql", "redis-server"];
        let needed: Vec<_> = to_install(plan).filter(|name| is_needed(name, &packages)).collect();
        assert_eq!(needed, ["libpq5", "postgresql-15", "redis-tools", "redis-server"]);
    }
}
