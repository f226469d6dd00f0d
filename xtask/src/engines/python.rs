//! A Python with what tests the description of the server's API: a stock generator that makes a client from it, and a
//! program that sends the server what the description allows and what it does not.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::lab::run;

/// What is installed; the versions of all packages are tried before they change.
pub(super) const WHAT: &str = "openapi-python-client and schemathesis";
const REQUIREMENTS: &str = include_str!("../../requirements.txt");
/// Written last: what has it is complete.
const COMPLETE: &str = "complete";

/// Each list of versions has an environment of its own.
fn folder(cache: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    REQUIREMENTS.hash(&mut hasher);
    cache.join(format!("python-{:016x}", hasher.finish()))
}

/// The interpreter that has it, if all of it is there.
pub(super) fn find(cache: &Path) -> Option<PathBuf> {
    let folder = folder(cache);
    folder.join(COMPLETE).is_file().then(|| folder.join("bin/python"))
}

/// Makes an environment of its own.
pub(super) fn install(cache: &Path) -> Result<()> {
    let folder = folder(cache);
    if folder.exists() {
        fs::remove_dir_all(&folder).context("what is left of an earlier try cannot be removed")?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .context("python3 makes no environment: apt-get install python3-venv")?;
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    run(Command::new(folder.join("bin/python")).args(pip).arg(&requirements))?;
    fs::write(folder.join(COMPLETE), "").context("the environment cannot be marked as complete")
}
