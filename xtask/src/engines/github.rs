//! No engine, but the official description of GitHub's API: the tests' own GitHub is held to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::lab::run;

/// What is fetched; its version is tried before it changes.
pub(super) const WHAT: &str = "@octokit/openapi@23.0.2";
/// What is kept of it.
const DESCRIPTION: &str = "package/generated/api.github.com.json";

fn file(cache: &Path) -> PathBuf {
    cache.join("octokit-openapi-23.0.2.json")
}

/// The description, if it is there: it gets its name when it is whole.
pub(super) fn find(cache: &Path) -> Option<PathBuf> {
    Some(file(cache)).filter(|file| file.is_file())
}

/// Fetches the package, and keeps the description alone.
pub(super) fn fetch(cache: &Path) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("octokit-").tempdir_in(cache)?;
    run(Command::new("npm").args(["pack", "--silent", WHAT]).current_dir(folder.path()))
        .context("npm does not fetch it: apt-get install npm")?;
    let packed = super::programs::children(folder.path());
    let packed = packed.first().context("npm has left nothing")?;
    run(Command::new("tar").arg("-xzf").arg(packed).arg(DESCRIPTION).current_dir(folder.path()))?;
    fs::rename(folder.path().join(DESCRIPTION), file(cache)).context("the description cannot be kept")
}
