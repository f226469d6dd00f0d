//! `cargo xtask screenshots`: pictures of every page of the dashboard, taken by its browser test.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cargo::{cargo, start, wait};
use crate::engines::{ScopedEngines, target};

/// Test that opens every page on a store with a day of history. It writes pictures if `SCREENSHOTS` names a folder.
const TEST: &str = "dashboard::chromium::every_page_is_accessible_in_light_and_dark";
/// Pages of which there must be pictures, each in light, in dark and as a phone shows it.
const PAGES: [&str; 14] = [
    "overview",
    "locks",
    "lock",
    "queues",
    "tasks",
    "task",
    "executions",
    "schedules",
    "workers",
    "audit",
    "health",
    "force-release",
    "deadlock",
    "deadlock-three",
];
const KINDS: [&str; 3] = ["light", "dark", "phone"];
/// Pictures of the documentation, and the pictures that replace them.
const DOCUMENTED: [(&str, &str); 3] = [
    ("overview-light.png", "docs/images/dashboard-overview.png"),
    ("lock-dark.png", "docs/images/dashboard-lock.png"),
    ("deadlock-light.png", "docs/images/dashboard-deadlock.png"),
];

/// Options of `cargo xtask screenshots`.
#[derive(clap::Args)]
pub(crate) struct Screenshots {
    /// Folder for the pictures [default: target/screenshots]
    folder: Option<PathBuf>,
    /// Also replace the pictures of the documentation
    #[arg(long)]
    update: bool,
}

/// Takes the pictures; fails if one is missing.
pub(crate) fn run(root: &Path, args: &Screenshots) -> Result<()> {
    let folder = folder(root, args.folder.as_deref())?;
    let engines = ScopedEngines::browser(root)?;
    let test = ["test", "--quiet", "--package", "leasehold-server", "--all-features", "--test", "it", "--"];
    let mut test = cargo(root, test);
    test.args(["--exact", TEST]).env("SCREENSHOTS", &folder).envs(engines.variables.clone());
    let code = wait(&mut start(&mut test)?)?;
    ensure!(code == 0, "the browser test failed; see its output above");
    let missing: Vec<String> = pictures().filter(|picture| !folder.join(picture).is_file()).collect();
    ensure!(missing.is_empty(), "the browser test wrote no picture {}", missing.join(", "));
    println!("{}", folder.display());
    if args.update {
        for (picture, documented) in DOCUMENTED {
            fs::copy(folder.join(picture), root.join(documented))
                .with_context(|| format!("cannot write {documented}"))?;
            println!("{documented}");
        }
    }
    Ok(())
}

/// Returns the folder for the pictures as an absolute path, because the test has another current folder, and creates it.
fn folder(root: &Path, wanted: Option<&Path>) -> Result<PathBuf> {
    let folder = wanted.map_or_else(|| target(root).join("screenshots"), Path::to_owned);
    let folder = std::path::absolute(folder).context("the folder for the pictures has no path")?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

fn pictures() -> impl Iterator<Item = String> {
    PAGES.into_iter().flat_map(|page| KINDS.map(|kind| format!("{page}-{kind}.png")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_absolute_and_exists() {
        let root = tempfile::tempdir().unwrap();
        let wanted = root.path().join("a/b");
        assert_eq!(folder(root.path(), Some(&wanted)).unwrap(), wanted);
        assert!(wanted.is_dir());
        assert!(folder(root.path(), None).unwrap().ends_with("screenshots"));
        fs::write(root.path().join("file"), "").unwrap();
        let error = folder(root.path(), Some(&root.path().join("file"))).unwrap_err();
        assert!(error.to_string().starts_with("cannot create"), "{error:#}");
    }

    #[test]
    fn the_pictures_of_the_documentation_are_among_those_that_are_taken() {
        let all: Vec<String> = pictures().collect();
        for (picture, documented) in DOCUMENTED {
            assert!(all.iter().any(|known| known == picture), "{picture}");
            assert!(crate::root().unwrap().join(documented).is_file(), "{documented}");
        }
    }
}
