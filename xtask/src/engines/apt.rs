//! Debian packages, unpacked into a folder: nothing is installed, and root is not required.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::environment::run;
use super::programs::children;

/// Fetches the packages and their missing dependencies, and puts their programs into `bin/`.
pub(super) fn fetch(packages: &[&str], cache: &Path) -> Result<()> {
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
