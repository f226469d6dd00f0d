//! Official API description of GitHub, against which the fake GitHub of the tests is validated.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::environment::run;

/// Package to fetch. Run the tests with a new version before changing it.
pub(super) const PACKAGES: &str = "@octokit/openapi@23.0.2";
/// File of the package that is kept.
const DESCRIPTION: &str = "package/generated/api.github.com.json";

fn file(cache: &Path) -> PathBuf {
    cache.join("octokit-openapi-23.0.2.json")
}

/// Returns the description, if it is cached. A complete download is renamed to this path.
pub(super) fn find(cache: &Path) -> Option<PathBuf> {
    Some(file(cache)).filter(|file| file.is_file())
}

/// Fetches the package, and keeps only the description.
pub(super) fn fetch(cache: &Path) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("octokit-").tempdir_in(cache)?;
    run(Command::new("npm").args(["pack", "--silent", PACKAGES]).current_dir(folder.path()))
        .context("npm pack failed; to install npm: apt-get install npm")?;
    let packed = super::programs::children(folder.path());
    let packed = packed.first().context("npm pack created no file")?;
    run(Command::new("tar").arg("-xzf").arg(packed).arg(DESCRIPTION).current_dir(folder.path()))?;
    fs::rename(folder.path().join(DESCRIPTION), file(cache))
        .context("the description cannot be moved into the cache")
}
