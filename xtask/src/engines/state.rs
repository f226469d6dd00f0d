//! State file of the running engines, so that another command, or one after a crash, can find and stop them.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::process::{self, Process};

/// Engines that were started together.
#[derive(Debug)]
pub(super) struct State {
    file: PathBuf,
    /// Folder of their data.
    pub(super) folder: PathBuf,
    /// Process that stops them; `None` if they run until `engines down`.
    pub(super) owner: Option<Process>,
    /// Whether all of them have started.
    pub(super) ready: bool,
    pub(super) processes: Vec<(String, Process)>,
    /// Environment variables for the tests.
    pub(super) exports: Vec<(String, String)>,
}

impl State {
    /// Creates a folder for new engines.
    pub(super) fn new(root: &Path, owner: Option<Process>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("leasehold-engines-").tempdir()?.keep();
        // PostgreSQL may run as another user, who must be able to enter its folder.
        #[cfg(unix)]
        fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let file = file(root);
        let state = Self { file, folder, owner, ready: false, processes: Vec::new(), exports: Vec::new() };
        state.save()?;
        Ok(state)
    }

    /// Reads the state file, if it exists.
    pub(super) fn load(root: &Path) -> Result<Option<Self>> {
        let file = file(root);
        match fs::read_to_string(&file) {
            Ok(text) => Self::parse(&file, &text).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    pub(super) fn save(&self) -> Result<()> {
        let cannot = || format!("cannot write {}", self.file.display());
        let folder = self.file.parent().expect("the state file has a parent folder");
        fs::create_dir_all(folder).with_context(cannot)?;
        // Replaced atomically: a concurrent reader gets the old file or the new one.
        let new = self.file.with_extension("new");
        fs::write(&new, self.text()).and_then(|()| fs::rename(&new, &self.file)).with_context(cannot)
    }

    /// Whether all engines are running.
    pub(super) fn is_up(&self) -> bool {
        let orphaned = self.owner.is_some_and(|owner| !owner.is_running());
        self.ready && !orphaned && self.processes.iter().all(|(_, process)| process.is_running())
    }

    /// Ends exactly these processes, and forgets them.
    pub(super) fn stop(self) -> Result<()> {
        let processes: Vec<_> = self.processes.iter().map(|(_, process)| *process).collect();
        process::stop(&processes);
        for removed in [fs::remove_dir_all(&self.folder), fs::remove_file(&self.file)] {
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error)
                        .context("the engines are stopped, but their files could not be removed");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the variables in shell syntax.
    pub(super) fn shell(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.exports {
            let value = value.replace('\'', "'\\''");
            writeln!(text, "export {name}='{value}'").expect("writing to a string cannot fail");
        }
        text
    }

    fn text(&self) -> String {
        let mut lines = vec![format!("folder {}", self.folder.display())];
        lines.extend(self.owner.map(|owner| format!("owner {owner}")));
        lines.extend(self.processes.iter().map(|(name, process)| format!("process {name} {process}")));
        lines.extend(self.exports.iter().map(|(name, value)| format!("export {name} {value}")));
        lines.extend(self.ready.then(|| "ready".to_owned()));
        lines.join("\n") + "\n"
    }

    fn parse(file: &Path, text: &str) -> Result<Self> {
        let mut state = Self {
            file: file.to_owned(),
            folder: PathBuf::new(),
            owner: None,
            ready: false,
            processes: Vec::new(),
            exports: Vec::new(),
        };
        for line in text.lines() {
            let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
            let pair = || rest.split_once(' ').with_context(|| format!("'{line}' in {}", file.display()));
            match keyword {
                "folder" => state.folder = PathBuf::from(rest),
                "owner" => state.owner = Some(rest.parse()?),
                "process" => {
                    let (name, process) = pair()?;
                    state.processes.push((name.to_owned(), process.parse()?));
                }
                "export" => {
                    let (name, value) = pair()?;
                    state.exports.push((name.to_owned(), value.to_owned()));
                }
                "ready" => state.ready = true,
                _ => bail!("'{line}' in {} cannot be read: remove the file", file.display()),
            }
        }
        Ok(state)
    }
}

fn file(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    root.join(target).join("engines/state")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_writing_and_reading() {
        let text = "folder /tmp/with space\nowner 1 2\nprocess redis 3 4\nexport A it's x y\nready\n";
        let state = State::parse(Path::new("state"), text).unwrap();
        assert_eq!(state.text(), text);
        assert_eq!(state.shell(), "export A='it'\\''s x y'\n");
        assert!(State::parse(Path::new("state"), "unknown\n").is_err());
    }
}
