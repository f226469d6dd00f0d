//! Browser of the tests: Chromium of the system, and the npm packages that control it and check pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::fetch::run;

/// Packages that control a browser, and that find pages which are hard to use for some people. Run the tests with new
/// versions before changing them.
pub(super) const PACKAGES: [&str; 2] = ["playwright-core@1.65.1", "axe-core@4.14.0"];

fn folder(cache: &Path) -> PathBuf {
    cache.join(PACKAGES.join("-").replace('@', "-"))
}

/// Returns the folder of the packages, if it is complete. A complete folder is renamed to this path.
pub(super) fn find_packages(cache: &Path) -> Option<PathBuf> {
    Some(folder(cache)).filter(|folder| folder.join("node_modules").is_dir())
}

/// Installs what is missing: the packages into the cache, and Chromium with apt, which needs root.
pub(super) fn install(cache: &Path) -> Result<()> {
    if find_packages(cache).is_none() {
        eprintln!("installing {} into {} (once)", PACKAGES.join(", "), cache.display());
        install_packages(cache)?;
    }
    let found = Command::new("chromium").arg("--version").output();
    if found.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    ensure!(
        rustix::process::geteuid().is_root(),
        "Chromium is not installed; install it with: apt-get install chromium (or the package of your system)"
    );
    eprintln!("installing chromium with apt-get (once)");
    let install = ["install", "-y", "-q", "--no-install-recommends", "chromium"];
    run(Command::new("apt-get").args(["update", "-q"])).context("the package lists cannot be fetched")?;
    run(Command::new("apt-get").args(install).env("DEBIAN_FRONTEND", "noninteractive"))
        .context("install Chromium with: apt-get install chromium (or the package of your system)")?;
    Ok(())
}

fn install_packages(cache: &Path) -> Result<()> {
    let temporary = tempfile::Builder::new().prefix("browser-").tempdir_in(cache)?;
    fs::write(temporary.path().join("package.json"), "{ \"private\": true }")?;
    let options = ["install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"];
    run(Command::new("npm").args(options).args(PACKAGES).current_dir(temporary.path()))
        .context("npm install failed; to install npm: apt-get install npm")?;
    fs::rename(temporary.keep(), folder(cache)).context("the packages cannot be moved into the cache")
}
