//! Resolves the file of a command before anything is locked or forked for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::exit;
use crate::output::Failure;

/// Search path of the system if `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Finds the command as a shell does: a name with a slash is a path, any other name is searched in
/// `PATH`.
pub(super) fn look_up(command: &OsStr, path: Option<OsString>) -> Result<PathBuf, Failure> {
    if command.as_bytes().contains(&b'/') {
        let file = Path::new(command);
        return match inspect(file) {
            Lookup::Runnable => Ok(file.to_owned()),
            other => Err(not_runnable(command, &other)),
        };
    }
    let mut found = Lookup::Missing;
    if !command.is_empty() {
        for folder in std::env::split_paths(&path.unwrap_or_else(|| DEFAULT_PATH.into())) {
            // An empty entry means the current folder.
            let file = if folder.as_os_str().is_empty() {
                Path::new(".").join(command)
            } else {
                folder.join(command)
            };
            match inspect(&file) {
                Lookup::Runnable => return Ok(file),
                Lookup::Missing => {}
                other => found = other,
            }
        }
    }
    Err(not_runnable(command, &found))
}

enum Lookup {
    Runnable,
    Missing,
    Folder,
    Forbidden,
}

fn inspect(file: &Path) -> Lookup {
    match file.metadata() {
        Ok(metadata) if metadata.is_dir() => Lookup::Folder,
        Ok(_) if access(file, AccessFlags::X_OK).is_ok() => Lookup::Runnable,
        Err(error) if error.kind() != std::io::ErrorKind::PermissionDenied => Lookup::Missing,
        _ => Lookup::Forbidden,
    }
}

fn not_runnable(command: &OsStr, found: &Lookup) -> Failure {
    let command = command.display();
    let (message, code) = match found {
        Lookup::Missing => (format!("command '{command}' not found"), exit::NOT_FOUND),
        Lookup::Folder => (format!("command '{command}' is a directory"), exit::NOT_RUNNABLE),
        Lookup::Runnable | Lookup::Forbidden => (
            format!("command '{command}' cannot be run: permission denied; is it executable?"),
            exit::NOT_RUNNABLE,
        ),
    };
    Failure::command(code, message)
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
    fn the_first_runnable_file_in_path_is_used() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        put(&one.path().join("tool"), 0o644);
        put(&two.path().join("tool"), 0o755);
        let path = std::env::join_paths([one.path(), two.path()]).unwrap();
        assert_eq!(look_up(OsStr::new("tool"), Some(path)).unwrap(), two.path().join("tool"));
        let refused = look_up(OsStr::new("tool"), Some(one.path().into())).unwrap_err();
        assert_eq!(refused.exit, exit::NOT_RUNNABLE);
    }

    #[test]
    fn missing_and_unrunnable_commands_have_different_codes() {
        let code =
            |command: &str| look_up(OsStr::new(command), Some("/usr/bin:/bin".into())).unwrap_err().exit;
        assert_eq!(code("no-such-command-anywhere"), exit::NOT_FOUND);
        assert_eq!(code("/no/such/command"), exit::NOT_FOUND);
        assert_eq!(code(""), exit::NOT_FOUND);
        assert_eq!(code("/"), exit::NOT_RUNNABLE);
        assert_eq!(code("/etc/passwd"), exit::NOT_RUNNABLE);
        assert!(look_up(OsStr::new("sh"), None).is_ok());
    }
}
