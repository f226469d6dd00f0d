//! The package for npm, with the binary.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::archive::Tar;
use crate::contents::{HOMEPAGE, LICENSE, NAME, Release, SUMMARY};

pub(crate) fn pack(release: &Release, out: &Path) -> Result<String> {
    let os = if release.is_apple() { "darwin" } else { "linux" };
    let cpu = release.arch("x64", "arm64")?;
    let manifest = json!({
        "name": NAME,
        "version": release.version,
        "description": SUMMARY,
        "license": format!("({LICENSE})"),
        "repository": { "type": "git", "url": format!("git+{HOMEPAGE}.git") },
        "bin": { NAME: format!("bin/{NAME}") },
        "files": ["bin"],
        "os": [os],
        "cpu": [cpu],
    });
    let mut tar = Tar::new(release.time);
    tar.file("package/package.json", 0o644, format!("{manifest:#}\n").as_bytes())?;
    tar.file(&format!("package/bin/{NAME}"), 0o755, &release.binary)?;
    tar.file("package/README.md", 0o644, release.readme.as_bytes())?;
    for license in &release.licenses {
        tar.file(&format!("package/{}", license.path), license.mode, &license.content)?;
    }
    let name = format!("{NAME}-{}-{os}-{cpu}.tgz", release.version);
    std::fs::write(out.join(&name), tar.finish_compressed()?)?;
    Ok(name)
}
