//! API token that a server and its clients on one machine share when no other token exists: a file in
//! the user's state folder, which only that user can read.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Name of the file in the state folder.
const NAME: &str = "local-token";
/// Maximum length of a token.
const LONGEST: u64 = 1024;

/// Returns the folder for the state of this user's programs: `$XDG_STATE_HOME/leasehold`, or
/// `~/.local/state/leasehold`.
pub(crate) fn state_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("leasehold"))
}

/// Returns the path of the file; `None` if this user has no state folder.
pub fn local_token_path() -> Option<PathBuf> {
    state_folder().map(|folder| folder.join(NAME))
}

/// Reads the token in this file; `None` if the file does not exist. Refuses a file that another user
/// owns or can read.
pub fn read_local_token(path: &Path) -> io::Result<Option<String>> {
    let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(no_link).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let about = file.metadata()?;
    let is_ours = about.uid() == rustix::process::geteuid().as_raw();
    let is_private = about.is_file() && is_ours && matches!(about.mode() & 0o777, 0o600 | 0o400);
    if !is_private {
        let wrong = "it is not a file that only its user can read (mode 0600)";
        return Err(io::Error::new(ErrorKind::PermissionDenied, wrong));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()))
}

/// Reads the token in this file, or writes a new one into it. Of several processes that write at the
/// same time one succeeds, and all return its token.
pub fn local_token_or(path: &Path, new: impl FnOnce() -> String) -> io::Result<String> {
    if let Some(token) = read_local_token(path)? {
        return Ok(token);
    }
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Written completely under another name first, so that no process reads a partial token.
    let draft = folder.join(format!("{NAME}.{}", std::process::id()));
    let written = write(&draft, &new()).and_then(|()| match std::fs::hard_link(&draft, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    let _ = std::fs::remove_file(&draft);
    written?;
    read_local_token(path)?.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it is empty; remove it"))
}

fn write(path: &Path, token: &str) -> io::Result<()> {
    let _ = std::fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{token}")?;
    file.sync_all()
}

/// Returns the local token for a server that listens on this port of this machine. `None` if no token
/// exists, or if a process of another user listens on the port: that process must not learn the
/// token.
#[cfg(feature = "http")]
pub(crate) fn local_token_for(port: u16) -> Option<String> {
    let path = local_token_path()?;
    match read_local_token(&path) {
        Ok(token) => token.filter(|_| only_this_user_listens(port)),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the local token is not used");
            None
        }
    }
}

/// Whether all sockets that listen on this port belong to this user or to root. `true` if the system
/// does not list them.
#[cfg(feature = "http")]
fn only_this_user_listens(port: u16) -> bool {
    let us = rustix::process::geteuid().as_raw();
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let read = |table: &str| std::fs::read_to_string(table).unwrap_or_default();
    tables.iter().all(|table| listeners(&read(table), port).all(|user| user == us || user == 0))
}

/// Returns the users whose sockets listen on this port, from a socket table in the format of Linux.
#[cfg(feature = "http")]
fn listeners(table: &str, port: u16) -> impl Iterator<Item = u32> + '_ {
    const LISTEN: &str = "0A";
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_whitespace().skip(1);
        let (_, local) = fields.next()?.rsplit_once(':')?;
        let state = fields.nth(1)?;
        let is_here = state == LISTEN && u16::from_str_radix(local, 16).is_ok_and(|local| local == port);
        is_here.then(|| fields.nth(3)).flatten()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_makes_it_and_all_others_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/local-token");
        assert_eq!(read_local_token(&path).unwrap(), None);
        let texts: Vec<String> = std::thread::scope(|scope| {
            let one = |number: usize| {
                let path = path.clone();
                move || local_token_or(&path, || format!("lh_{number}")).unwrap()
            };
            // The calls share one process and thus the name of the draft, so they run one after the
            // other.
            (0..4).map(|number| scope.spawn(one(number)).join().unwrap()).collect()
        });
        assert_eq!(texts, ["lh_0"; 4]);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_of_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("local-token");
        std::fs::write(&path, "lh_x").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert_eq!(read_local_token(&path).unwrap_err().kind(), ErrorKind::PermissionDenied);
        let link = folder.path().join("link");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(read_local_token(&link).is_err());
        assert_eq!(read_local_token(&path).unwrap().as_deref(), Some("lh_x"));
    }

    #[cfg(feature = "http")]
    #[test]
    fn the_users_that_listen_on_a_port_are_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1CFC 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0\n   \
            1: 0100007F:1CFC 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1001        0 1 1 0 100 0 0 10 0\n   \
            2: 00000000:1CFC 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 1 1 0 100 0 0 10 0\n";
        assert_eq!(listeners(table, 7420).collect::<Vec<_>>(), [1000, 1002]);
        assert_eq!(listeners(table, 80).count(), 0);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(only_this_user_listens(listener.local_addr().unwrap().port()));
    }
}
