//! The package for Debian, Ubuntu and their derivatives.

use std::fmt::Write;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use md5::{Digest, Md5};

use crate::archive::Tar;
use crate::contents::{DESCRIPTION, HOMEPAGE, MAINTAINER, NAME, Release, SUMMARY};
use crate::digest::hex;

pub(crate) fn pack(release: &Release, out: &Path) -> Result<String> {
    let arch = release.arch("amd64", "arm64")?;
    let files: Vec<_> = release.installed().collect();
    let mut data = Tar::new(release.time);
    data.folders_of(files.iter().map(|(path, _, _)| path.as_str()), "./")?;
    let mut sums = String::new();
    for (path, mode, content) in &files {
        data.file(&format!("./{path}"), *mode, content)?;
        let _ = writeln!(sums, "{}  {path}", hex(&Md5::digest(content)));
    }
    let kilobytes = files.iter().map(|(_, _, content)| content.len().div_ceil(1024)).sum::<usize>();
    let mut control = Tar::new(release.time);
    control.file("./control", 0o644, description(release, arch, kilobytes).as_bytes())?;
    control.file("./md5sums", 0o644, sums.as_bytes())?;
    let name = format!("{NAME}_{}_{arch}.deb", release.version);
    let mut archive = ar::Builder::new(File::create(out.join(&name)).context("cannot create the file")?);
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", control.finish_compressed()?),
        ("data.tar.gz", data.finish_compressed()?),
    ];
    for (member, content) in members {
        let mut header = ar::Header::new(member.as_bytes().to_vec(), content.len() as u64);
        header.set_mode(0o100_644);
        header.set_mtime(u64::from(release.time));
        archive.append(&header, content.as_slice()).with_context(|| format!("cannot add {member}"))?;
    }
    Ok(name)
}

/// Returns the file `control`.
fn description(release: &Release, arch: &str, kilobytes: usize) -> String {
    let depends = if release.is_static() { "" } else { "Depends: libc6\n" };
    format!(
        "Package: {NAME}\nVersion: {}\nArchitecture: {arch}\nMaintainer: {MAINTAINER}\nInstalled-Size: {kilobytes}\n\
         {depends}Section: utils\nPriority: optional\nHomepage: {HOMEPAGE}\nDescription: {SUMMARY}\n {DESCRIPTION}\n",
        release.version,
    )
}
