//! `cargo xtask dist`: builds the binary with every engine, and packs it; the program in `dist/` packs and
//! checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cargo::{cargo, metadata, start, wait};
use crate::engines::target;

const STATIC: &str = "x86_64-unknown-linux-musl";

/// Options of `cargo xtask dist`.
#[derive(clap::Args)]
pub(crate) struct Dist {
    /// Install each package into an empty folder, and run the first command of the README there
    #[arg(long)]
    check: bool,
    /// Target to build for [default: x86_64-unknown-linux-musl if it can be built here, else this machine]
    #[arg(long)]
    target: Option<String>,
    /// Pack this binary instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Packages that are not checked, because their installer is missing: wheel, npm, image
    #[arg(long, value_delimiter = ',')]
    skip: Vec<String>,
}

/// Part of the output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
}

pub(crate) fn run(root: &Path, args: &Dist) -> Result<ExitCode> {
    let triple = match (&args.target, &args.binary) {
        (Some(triple), _) => triple.clone(),
        (None, Some(_)) => host()?,
        (None, None) if can_build_static() => STATIC.to_owned(),
        (None, None) => {
            println!(
                "not static: for a static binary, run `rustup target add {STATIC}` and install musl-gcc"
            );
            host()?
        }
    };
    let binary = match &args.binary {
        Some(binary) => fs::canonicalize(binary).with_context(|| format!("no file {}", binary.display()))?,
        None => build(root, &triple)?,
    };
    let packages = metadata::<Metadata>(root, "--no-deps")?.packages;
    let package = packages.into_iter().find(|package| package.name == "leasehold-cli");
    let version = package.context("the workspace has no leasehold-cli")?.version;
    let manifest = root.join("dist/Cargo.toml");
    let mut pack = cargo(root, ["run", "--quiet", "--locked", "--manifest-path"]);
    pack.arg(manifest).arg("--target-dir").arg(target(root).join("dist-tool")).arg("--");
    pack.arg("--root").arg(root).arg("--binary").arg(binary).arg("--out").arg(target(root).join("dist"));
    pack.args(["--target", &triple, "--release", &version, "--time", &commit_time(root)]);
    if args.check {
        pack.arg("--check");
    }
    if !args.skip.is_empty() {
        pack.args(["--skip", &args.skip.join(",")]);
    }
    wait(&mut start(&mut pack)?).map(ExitCode::from)
}

/// Builds the binary as it is released; returns its path.
fn build(root: &Path, triple: &str) -> Result<PathBuf> {
    println!("building for {triple}");
    let options = ["build", "--release", "--locked", "--package", "leasehold-cli", "--features", "full"];
    let mut build = cargo(root, options);
    build.args(["--target", triple]);
    if triple.ends_with("-musl") {
        // Links the program to a fixed address, as `build.rs` of the program does for other targets.
        let flags = format!(r#"target.{triple}.rustflags=["-C", "relocation-model=static"]"#);
        build.args(["--config", &flags]);
    }
    ensure!(wait(&mut start(&mut build)?)? == 0, "leasehold-cli does not build for {triple}");
    Ok(target(root).join(triple).join("release/leasehold"))
}

/// Whether the standard library of the static target and a C compiler for it are installed.
fn can_build_static() -> bool {
    let library = printed("rustc", &["--print", "target-libdir", "--target", STATIC]);
    library.is_ok_and(|folder| Path::new(&folder).is_dir()) && printed("musl-gcc", &["--version"]).is_ok()
}

/// Returns the target of this machine.
fn host() -> Result<String> {
    let text = printed("rustc", &["-vV"])?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not name its host")
}

/// Returns the time of the newest commit, so that a checkout always makes the same packages; 0 without git.
fn commit_time(root: &Path) -> String {
    let root = root.display().to_string();
    let time = printed("git", &["-C", &root, "log", "-1", "--format=%ct"]).unwrap_or_default();
    if time.parse::<u32>().is_ok() { time } else { "0".to_owned() }
}

fn printed(program: &str, args: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(args).output().with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program} failed");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_and_the_time_of_the_commit_are_known() {
        assert!(host().unwrap().contains('-'));
        assert_eq!(commit_time(Path::new("/nonexistent")), "0");
    }
}
