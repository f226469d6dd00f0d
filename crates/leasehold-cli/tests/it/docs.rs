//! The console blocks of README and docs are run against the binary.

use std::path::{Path, PathBuf};

#[test]
fn console_blocks_do_what_they_show() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    pages.extend(pages_in(&root.join("docs")));
    for page in pages.iter().filter(|page| page.exists()) {
        check(page);
    }
}

/// Returns all pages of a folder and its subfolders.
fn pages_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let mut pages = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            pages.extend(pages_in(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    pages
}

/// Runs the commands of a page in order. Each page starts with an empty store.
fn check(page: &Path) {
    let temp = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let path = std::env::var("PATH").unwrap_or_default();
    let folder = binary.parent().unwrap().display();
    let at = |name: &str| temp.path().join(name).display().to_string();
    let cases = trycmd::TestCases::new();
    cases
        .register_bin("leasehold", binary)
        .register_bins(["sh", "cat", "true"].map(|name| (name, Path::new("/bin").join(name))))
        .env("PATH", format!("{folder}:{path}"))
        .env("HOME", at("home"))
        .env("XDG_STATE_HOME", at("state"))
        .env("XDG_CONFIG_HOME", at("config"))
        .env("LEASEHOLD_STORE", "")
        .env("LEASEHOLD_CONFIG", "")
        .case(page)
        .run();
}
