//! Which file a command is, before anything is locked or forked for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::exit;

/// A command that cannot be run: what to say, and with which code to end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotRunnable {
    pub(super) message: String,
    pub(super) code: i32,
}

/// Where the system looks when there is no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Finds the command as a shell would: a name with a slash is a path, any other is looked for in `PATH`.
pub(super) fn look_up(command: &OsStr, path: Option<OsString>) -> Result<PathBuf, NotRunnable> {
    if command.as_bytes().contains(&b'/') {
        let file = Path::new(command);
        return match judge(file) {
            Verdict::Runnable => Ok(file.to_owned()),
            verdict => Err(refusal(command, &verdict)),
        };
    }
    let mut found = Verdict::Missing;
    if !command.is_empty() {
        for folder in std::env::split_paths(&path.unwrap_or_else(|| DEFAULT_PATH.into())) {
            // An empty entry means the current folder.
            let file = if folder.as_os_str().is_empty() {
                Path::new(".").join(command)
            } else {
                folder.join(command)
            };
            match judge(&file) {
                Verdict::Runnable => return Ok(file),
                Verdict::Missing => {}
                verdict => found = verdict,
            }
        }
    }
    Err(refusal(command, &found))
}

enum Verdict {
    Runnable,
    Missing,
    Folder,
    Forbidden,
}

fn judge(file: &Path) -> Verdict {
    match file.metadata() {
        Ok(facts) if facts.is_dir() => Verdict::Folder,
        Ok(_) if access(file, AccessFlags::X_OK).is_ok() => Verdict::Runnable,
        Err(error) if error.kind() != std::io::ErrorKind::PermissionDenied => Verdict::Missing,
        _ => Verdict::Forbidden,
    }
}

fn refusal(command: &OsStr, verdict: &Verdict) -> NotRunnable {
    let command = command.display();
    let (message, code) = match verdict {
        Verdict::Missing => (format!("command '{command}' not found"), exit::NOT_FOUND),
        Verdict::Folder => (format!("command '{command}' is a directory"), exit::NOT_RUNNABLE),
        Verdict::Runnable | Verdict::Forbidden => (
            format!("command '{command}' cannot be run: permission denied; is it executable?"),
            exit::NOT_RUNNABLE,
        ),
    };
    NotRunnable { message, code }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn put(file: &Path, mode: u32) {
        std::fs::write(file, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_first_runnable_file_in_path_is_it() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        put(&one.path().join("tool"), 0o644);
        put(&two.path().join("tool"), 0o755);
        let path = std::env::join_paths([one.path(), two.path()]).unwrap();
        assert_eq!(look_up(OsStr::new("tool"), Some(path)).unwrap(), two.path().join("tool"));
        let refused = look_up(OsStr::new("tool"), Some(one.path().into())).unwrap_err();
        assert_eq!(refused.code, exit::NOT_RUNNABLE);
    }

    #[test]
    fn what_is_not_there_and_what_cannot_run_are_told_apart() {
        let code =
            |command: &str| look_up(OsStr::new(command), Some("/usr/bin:/bin".into())).unwrap_err().code;
        assert_eq!(code("no-such-command-anywhere"), exit::NOT_FOUND);
        assert_eq!(code("/no/such/command"), exit::NOT_FOUND);
        assert_eq!(code(""), exit::NOT_FOUND);
        assert_eq!(code("/"), exit::NOT_RUNNABLE);
        assert_eq!(code("/etc/passwd"), exit::NOT_RUNNABLE);
        assert!(look_up(OsStr::new("sh"), None).is_ok());
    }
}
