//! Python environment for the tests of the server's API description: a client generator, and
//! schemathesis, which sends the server valid and invalid requests.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::environment::run;

/// Packages to install. Run the tests with new versions before changing them.
pub(super) const PACKAGES: &str = "openapi-python-client and schemathesis";
const REQUIREMENTS: &str = include_str!("../../requirements.txt");
/// Marker file of a complete environment, written last.
const COMPLETE: &str = "complete";

/// Returns the folder of the environment; each list of versions has its own.
fn folder(cache: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    REQUIREMENTS.hash(&mut hasher);
    cache.join(format!("python-{:016x}", hasher.finish()))
}

/// Returns the interpreter, if the environment is complete.
pub(super) fn find(cache: &Path) -> Option<PathBuf> {
    let folder = folder(cache);
    folder.join(COMPLETE).is_file().then(|| folder.join("bin/python"))
}

/// Creates the environment.
pub(super) fn install(cache: &Path) -> Result<()> {
    let folder = folder(cache);
    if folder.exists() {
        fs::remove_dir_all(&folder).context("the remains of an earlier attempt cannot be removed")?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .context("python3 cannot create an environment; to install venv: apt-get install python3-venv")?;
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    run(Command::new(folder.join("bin/python")).args(pip).arg(&requirements))?;
    fs::write(folder.join(COMPLETE), "").context("the environment cannot be marked as complete")
}
