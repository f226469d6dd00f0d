//! `cargo xtask picture`: runs the binary and draws what it prints as the picture of the README.

mod svg;

use std::fs;
use std::io::{Read, pipe};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo::{cargo, start, wait};
use crate::engines::target;
use svg::Window;

const FILE: &str = "docs/images/waiter.svg";
/// Time within which each step of the scene must have happened.
const LIMIT: Duration = Duration::from_mins(1);
/// How long the waiter of the picture waits before it is shown.
const SHOWN: Duration = Duration::from_secs(4);
/// Names in the picture instead of those of the machine that draws it.
const USER: &str = "ci";
const HOST: &str = "runner-2";

/// Options of `cargo xtask picture`.
#[derive(clap::Args)]
pub(crate) struct Picture {
    /// Binary to run; without it, one is built
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Draws the picture and writes its file.
pub(crate) fn run(root: &Path, args: &Picture) -> Result<()> {
    let binary = match &args.binary {
        Some(binary) => fs::canonicalize(binary).with_context(|| format!("no file {}", binary.display()))?,
        None => build(root)?,
    };
    let windows = Scene::new(&binary)?.play()?;
    let file = root.join(FILE);
    fs::write(&file, svg::draw(&windows)).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{FILE}");
    Ok(())
}

/// Builds the binary with its default features; returns its path.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let code = wait(&mut start(&mut cargo(root, ["build", "--quiet", "--package", "leasehold-cli"]))?)?;
    ensure!(code == 0, "leasehold-cli does not build");
    Ok(target(root).join("debug/leasehold"))
}

/// Holder of a lock and a waiter for it, in a store of their own.
struct Scene {
    binary: PathBuf,
    home: tempfile::TempDir,
}

impl Scene {
    fn new(binary: &Path) -> Result<Self> {
        let home = tempfile::tempdir().context("cannot create a temporary folder")?;
        Ok(Self { binary: binary.to_owned(), home })
    }

    fn play(&self) -> Result<[Window; 2]> {
        // The holder's command ends with its stdin.
        let script = self.home.path().join("migrate");
        fs::write(&script, "#!/bin/sh\nexec cat\n").context("cannot write the holder's command")?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let mut holder = self
            .command([
                "run",
                "deploy/prod",
                "--holder",
                "ada@laptop",
                "--reason",
                "schema change",
                "--",
                "./migrate",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the binary")?;
        let result = self.play_waiter(&mut holder);
        end(&mut holder)?;
        result
    }

    fn play_waiter(&self, holder: &mut Child) -> Result<[Window; 2]> {
        self.until(|lock| lock["isLocked"] == true)?;
        let (mut output, writer) = pipe().context("cannot create a pipe")?;
        let typed = "leasehold run deploy/prod --wait 10m -- echo 'version 2 is deployed'";
        let words = ["run", "deploy/prod", "--wait", "10m", "--", "echo", "version 2 is deployed"];
        let mut waiter = self
            .command(words)
            .stdout(writer.try_clone().context("cannot share a pipe")?)
            .stderr(writer)
            .spawn()
            .context("cannot start the binary")?;
        let explained = self.until(|lock| lock["waiters"].as_array().is_some_and(|all| !all.is_empty()));
        let explained = explained.and_then(|()| {
            // The picture shows seconds, and the message of a waiter, which does not come at once.
            std::thread::sleep(SHOWN);
            let output = self.command(["locks", "why", "deploy/prod"]).output()?;
            Ok(String::from_utf8(output.stdout)?)
        });
        drop(holder.stdin.take());
        end(&mut waiter)?;
        let mut printed = String::new();
        output.read_to_string(&mut printed).context("cannot read the output of the waiter")?;
        Ok([
            Window::new("a CI job, while ada migrates the database", typed, &anonymous(&printed)?),
            Window::new("another terminal", "leasehold locks why deploy/prod", &anonymous(&explained?)?),
        ])
    }

    /// Returns the binary with these arguments, without settings of the user.
    fn command<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(words).stdin(Stdio::null()).current_dir(self.home.path());
        let ours = |name: &str| name.starts_with("LEASEHOLD_") || name.starts_with("XDG_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| ours(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command.env("HOME", self.home.path()).env("NO_COLOR", "1").env("COLUMNS", svg::COLUMNS.to_string());
        command
    }

    /// Waits until the lock is as wanted.
    fn until(&self, wanted: impl Fn(&Value) -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            let output = self.command(["--json", "locks", "status", "deploy/prod"]).output()?;
            if serde_json::from_slice(&output.stdout).is_ok_and(|lock| wanted(&lock)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the lock did not get into the wanted state within {LIMIT:?}")
    }
}

/// Waits for the end of a process; kills it if it takes too long.
fn end(child: &mut Child) -> Result<()> {
    drop(child.stdin.take());
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if child.try_wait().context("cannot wait for a process")?.is_some() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().context("cannot kill a process")?;
    child.wait().context("cannot wait for a process")?;
    bail!("a process did not end within {LIMIT:?}")
}

/// Replaces the names of the user and of the machine.
fn anonymous(text: &str) -> Result<String> {
    let name = |program: &str, option: &str| -> Result<String> {
        let output =
            Command::new(program).arg(option).output().with_context(|| format!("cannot run {program}"))?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let text = replace_word(text, &name("uname", "-n")?, HOST);
    Ok(replace_word(&text, &name("id", "-un")?, USER))
}

/// Replaces a word where it is not a part of a longer one.
fn replace_word(text: &str, word: &str, by: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '/' || c == '-';
    let mut replaced = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(word).filter(|_| !word.is_empty()) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        replaced += before;
        let joined = replaced.ends_with(is_part) || after.starts_with(is_part);
        replaced += if joined { word } else { by };
        rest = after;
    }
    replaced + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_replaced_only_where_it_is_a_word() {
        let text = "held by root@vm:17 on vm, process vmstat in /root/vm";
        let text = replace_word(&replace_word(text, "vm", HOST), "root", USER);
        assert_eq!(text, "held by ci@runner-2:17 on runner-2, process vmstat in /root/vm");
        assert_eq!(replace_word("a", "", "b"), "a");
    }
}
