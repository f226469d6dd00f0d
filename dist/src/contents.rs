//! What a release contains: the binary, and the files that go beside it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

pub(crate) const NAME: &str = "leasehold";
pub(crate) const SUMMARY: &str = "Locks with fencing tokens, task queues and once-per-event workflows";
pub(crate) const DESCRIPTION: &str = "leasehold makes sure that a piece of work runs in one place at a time, and that a worker that has lost \
     its lease can do no harm: for commands, programs and services, on SQLite, PostgreSQL, Redis, DynamoDB or \
     GitHub.";
pub(crate) const LICENSE: &str = "MIT OR Apache-2.0";
pub(crate) const HOMEPAGE: &str = "https://github.com/leasehold/leasehold";
pub(crate) const MAINTAINER: &str = "The leasehold developers <leasehold@users.noreply.github.com>";

/// File of a package: its path without a leading `/`, its mode and its content.
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
}

/// Release of the binary for one target.
pub(crate) struct Release {
    pub(crate) version: String,
    pub(crate) target: String,
    /// Time of all files, so that the same binary makes the same packages.
    pub(crate) time: u32,
    pub(crate) binary: Vec<u8>,
    pub(crate) readme: String,
    /// Files of a system package.
    pub(crate) system_files: Vec<Entry>,
    pub(crate) licenses: Vec<Entry>,
}

impl Release {
    /// Reads the files of a release; manual page and completions come from the binary itself.
    pub(crate) fn read(root: &Path, binary: &Path, target: &str, version: &str, time: u32) -> Result<Self> {
        let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let print = |words: &[&str]| -> Result<Vec<u8>> {
            let output = Command::new(binary).args(words).output();
            let output = output.with_context(|| format!("cannot run {}", binary.display()))?;
            ensure!(output.status.success(), "{} {words:?} failed", binary.display());
            Ok(output.stdout)
        };
        let shown = String::from_utf8(print(&["--version"])?).context("the version is not UTF-8")?;
        ensure!(shown.trim() == format!("{NAME} {version}"), "the binary is {}, not {version}", shown.trim());
        let entry = |path: &str, content: Vec<u8>| Entry { path: path.to_owned(), mode: 0o644, content };
        let unit = String::from_utf8(read(&root.join("deploy/systemd/leasehold.service"))?)?;
        let unit = unit.replace("/usr/local/bin/", "/usr/bin/").into_bytes();
        let zsh = print(&["completions", "zsh"])?;
        let system_files = vec![
            Entry { path: "usr/bin/leasehold".to_owned(), mode: 0o755, content: read(binary)? },
            entry("usr/share/man/man1/leasehold.1", print(&["man"])?),
            entry("usr/share/bash-completion/completions/leasehold", print(&["completions", "bash"])?),
            entry("usr/share/zsh/site-functions/_leasehold", zsh.clone()),
            // The zsh of Debian does not read `site-functions`.
            entry("usr/share/zsh/vendor-completions/_leasehold", zsh),
            entry("usr/share/fish/vendor_completions.d/leasehold.fish", print(&["completions", "fish"])?),
            entry("usr/lib/systemd/system/leasehold.service", unit),
            entry("usr/share/doc/leasehold/leasehold.toml", read(&root.join("deploy/leasehold.toml"))?),
        ];
        let mut licenses = Vec::new();
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            licenses.push(entry(name, read(&root.join(name))?));
        }
        let readme = fs::read_to_string(root.join("README.md")).context("cannot read README.md")?;
        let (version, target) = (version.to_owned(), target.to_owned());
        Ok(Self { version, target, time, binary: read(binary)?, readme, system_files, licenses })
    }

    /// Whether the binary is for macOS.
    pub(crate) fn is_apple(&self) -> bool {
        self.target.contains("apple")
    }

    /// Whether the binary needs no library of the machine.
    pub(crate) fn is_static(&self) -> bool {
        self.target.contains("musl")
    }

    /// Returns the files of a system package with the licences.
    pub(crate) fn installed(&self) -> impl Iterator<Item = (String, u32, &[u8])> {
        let files = self.system_files.iter().map(|file| (file.path.clone(), file));
        let license = |name: &str| format!("usr/share/doc/leasehold/{name}");
        let licenses = self.licenses.iter().map(move |file| (license(&file.path), file));
        files.chain(licenses).map(|(path, file)| (path, file.mode, file.content.as_slice()))
    }

    /// Returns the name of the processor in the words of a kind of package.
    pub(crate) fn arch<'a>(&self, x86_64: &'a str, aarch64: &'a str) -> Result<&'a str> {
        match self.target.split('-').next() {
            Some("x86_64") => Ok(x86_64),
            Some("aarch64") => Ok(aarch64),
            _ => anyhow::bail!("the target {} has no packages", self.target),
        }
    }
}
