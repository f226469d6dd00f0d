//! A Python with a stock generator that makes a client from the description of the server's API.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::lab::run;

/// What is installed; its version is tried before it changes. What it makes needs the second package.
pub(super) const WHAT: &str = "openapi-python-client";
const PACKAGES: [&str; 2] = ["openapi-python-client==0.29.1", "python-dateutil==2.9.0.post0"];

fn folder(cache: &Path) -> PathBuf {
    cache.join("openapi-python-client-0.29.1")
}

/// The interpreter that has it, if all of it is there: its program is what pip writes last.
pub(super) fn find(cache: &Path) -> Option<PathBuf> {
    let programs = folder(cache).join("bin");
    programs.join(WHAT).is_file().then(|| programs.join("python"))
}

/// Makes an environment of its own.
pub(super) fn install(cache: &Path) -> Result<()> {
    let folder = folder(cache);
    if folder.exists() {
        fs::remove_dir_all(&folder).context("what is left of an earlier try cannot be removed")?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .context("python3 makes no environment: apt-get install python3-venv")?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run(Command::new(folder.join("bin/python")).args(pip).args(PACKAGES)).map(drop)
}
