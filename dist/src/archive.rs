//! Tar archives, and the plain archive of a release.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};

use crate::contents::{NAME, Release};

/// Tar archive in memory whose files belong to root and have one time.
pub(crate) struct Tar {
    builder: tar::Builder<Vec<u8>>,
    time: u32,
}

impl Tar {
    pub(crate) fn new(time: u32) -> Self {
        Self { builder: tar::Builder::new(Vec::new()), time }
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let mut header = self.header(mode, tar::EntryType::Regular);
        header.set_size(content.len() as u64);
        self.builder.append_data(&mut header, path, content).with_context(|| format!("cannot add {path}"))
    }

    /// Adds a folder that belongs to a user with this id.
    pub(crate) fn folder(&mut self, path: &str, mode: u32, owner: u64) -> Result<()> {
        let mut header = self.header(mode, tar::EntryType::Directory);
        header.set_uid(owner);
        header.set_gid(owner);
        self.builder
            .append_data(&mut header, path, std::io::empty())
            .with_context(|| format!("cannot add {path}"))
    }

    /// Adds the folders above these files, each once.
    pub(crate) fn folders_of<'a>(
        &mut self,
        paths: impl Iterator<Item = &'a str>,
        prefix: &str,
    ) -> Result<()> {
        let mut folders: Vec<&str> =
            paths.flat_map(|path| path.match_indices('/').map(move |(at, _)| &path[..at])).collect();
        folders.sort_unstable();
        folders.dedup();
        for folder in folders {
            self.folder(&format!("{prefix}{folder}/"), 0o755, 0)?;
        }
        Ok(())
    }

    fn header(&self, mode: u32, kind: tar::EntryType) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(u64::from(self.time));
        header.set_size(0);
        header
    }

    pub(crate) fn finish(self) -> Result<Vec<u8>> {
        self.builder.into_inner().context("cannot finish an archive")
    }

    pub(crate) fn finish_compressed(self) -> Result<Vec<u8>> {
        gzip(&self.finish()?)
    }
}

/// Compresses without a time or a name in the header.
pub(crate) fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(content).context("cannot compress")?;
    encoder.finish().context("cannot compress")
}

/// Writes the archive with the binary, its licences and the README.
pub(crate) fn pack(release: &Release, out: &Path) -> Result<String> {
    let folder = format!("{NAME}-{}-{}", release.version, release.target);
    let mut tar = Tar::new(release.time);
    tar.folder(&format!("{folder}/"), 0o755, 0)?;
    tar.file(&format!("{folder}/{NAME}"), 0o755, &release.binary)?;
    tar.file(&format!("{folder}/README.md"), 0o644, release.readme.as_bytes())?;
    for file in &release.licenses {
        tar.file(&format!("{folder}/{}", file.path), file.mode, &file.content)?;
    }
    let name = format!("{folder}.tar.gz");
    std::fs::write(out.join(&name), tar.finish_compressed()?)?;
    Ok(name)
}
