//! Packs the binary into packages, and checks them: `cargo xtask dist` builds the binary and calls this
//! program.

mod archive;
mod check;
mod contents;
mod deb;
mod digest;
mod image;
mod npm;
mod red_hat;
mod wheel;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use sha2::{Digest, Sha256};

use contents::Release;
use digest::hex;

#[derive(Parser)]
#[command(name = "leasehold-dist", about = "Packs the leasehold binary into packages")]
struct Cli {
    /// Root of the repository
    #[arg(long)]
    root: PathBuf,
    /// Binary to pack
    #[arg(long)]
    binary: PathBuf,
    /// Target that the binary was built for, such as x86_64-unknown-linux-musl
    #[arg(long)]
    target: String,
    /// Version of the release
    #[arg(long)]
    release: String,
    /// Time of all files, in seconds since 1970
    #[arg(long, default_value_t = 0)]
    time: u32,
    /// Folder for the packages; it is replaced
    #[arg(long)]
    out: PathBuf,
    /// Install each package into an empty folder, and run the first command of the README there
    #[arg(long)]
    check: bool,
    /// Packages that are not checked, because their installer is missing: wheel, npm, image
    #[arg(long, value_delimiter = ',')]
    skip: Vec<String>,
}

/// Writes one package; returns its file name.
type Pack = fn(&Release, &Path) -> Result<String>;

const PACKS: [(&str, Pack); 6] = [
    ("tar", archive::pack),
    ("deb", deb::pack),
    ("rpm", red_hat::pack),
    ("wheel", wheel::pack),
    ("npm", npm::pack),
    ("image", image::pack),
];

fn main() -> Result<()> {
    let cli = Cli::parse();
    let release = Release::read(&cli.root, &cli.binary, &cli.target, &cli.release, cli.time)?;
    if cli.out.exists() {
        fs::remove_dir_all(&cli.out).with_context(|| format!("cannot remove {}", cli.out.display()))?;
    }
    fs::create_dir_all(&cli.out).with_context(|| format!("cannot create {}", cli.out.display()))?;
    let mut packages = Vec::new();
    for (name, pack) in PACKS {
        if let Some(reason) = missing(name, &release) {
            println!("{name:<9} not packed: {reason}");
            continue;
        }
        let file = pack(&release, &cli.out).with_context(|| format!("cannot pack {name}"))?;
        let size = fs::metadata(cli.out.join(&file))?.len();
        println!("{name:<9} {file} ({:.1} MB)", f64::from(u32::try_from(size)?) / 1e6);
        packages.push((name, file));
    }
    write_checksums(&cli.out, packages.iter().map(|(_, file)| file.as_str()))?;
    if let Some(name) = cli.skip.iter().find(|skipped| PACKS.iter().all(|(name, _)| name != skipped)) {
        bail!("there is no package {name}");
    }
    if !cli.check {
        return Ok(());
    }
    let mut failed = Vec::new();
    for (name, file) in packages.iter().filter(|(name, _)| !cli.skip.iter().any(|skipped| skipped == name)) {
        match check::check(name, &cli.out.join(file), &release) {
            Ok(text) => println!("{name:<9} {text}"),
            Err(error) => {
                println!("{name:<9} FAILED: {error:#}");
                failed.push(*name);
            }
        }
    }
    ensure!(failed.is_empty(), "not usable: {}", failed.join(", "));
    Ok(())
}

/// Returns why there is no package of this kind for the target; `None` if there is one.
fn missing(name: &str, release: &Release) -> Option<&'static str> {
    match name {
        "deb" | "rpm" if release.is_apple() => Some("it is for Linux"),
        "image" if !release.is_static() => {
            Some("the only file in the image would need a C library; build for musl")
        }
        _ => None,
    }
}

/// Writes the file that `sha256sum -c` reads.
fn write_checksums<'a>(out: &Path, files: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut text = String::new();
    for file in files {
        let sum = hex(&Sha256::digest(fs::read(out.join(file))?));
        let _ = writeln!(text, "{sum}  {file}");
    }
    fs::write(out.join("SHA256SUMS"), text).context("cannot write SHA256SUMS")
}
