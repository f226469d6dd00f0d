//! The file itself: made with care, and refused where it could not be safe.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result, Trouble};
use crate::store::Moment;

/// The file of a store: where it really is, and which one it was when it was opened.
pub(super) struct StoreFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    /// When to look again whether it is there, in microseconds of the boot clock.
    believed_until: AtomicU64,
}

/// A file that was there is believed to be there for so long: looking costs a tenth of a transaction.
const BELIEVED: Duration = Duration::from_millis(1);

impl StoreFile {
    /// Makes sure that there is a file of ours to be opened.
    pub(super) fn prepare(path: &Path) -> Result<Self> {
        let path = prepare(path)?;
        Ok(Self { identity: identity(&path), path, believed_until: AtomicU64::new(0) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if the file has been removed or exchanged since. Those who open it now get another one: whoever goes on with
    /// the old one would hold locks that nobody else sees.
    pub(super) fn is_still_there(&self, now: Moment) -> Result<()> {
        if now.as_micros() < self.believed_until.load(Ordering::Relaxed) {
            return Ok(());
        }
        if identity(&self.path) == self.identity {
            self.believed_until.store(now.plus(BELIEVED).as_micros(), Ordering::Relaxed);
            return Ok(());
        }
        let message = format!("the store {} was removed or exchanged while it was open", self.path.display());
        Err(Error::store(
            Trouble::Broken,
            message,
            "start again whatever uses it, with the file in its place",
        ))
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.exists().then_some((0, 0))
}

fn prepare(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        refuse(path, "is no file name", "name a file: sqlite:/var/lib/leasehold/leasehold.db")
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_folder(parent)?;
    let parent = parent.canonicalize().map_err(|error| failed(parent, &error))?;
    let path = parent.join(name);
    refuse_network(&parent)?;
    match fs::symlink_metadata(&path) {
        Ok(found) if found.file_type().is_symlink() => Err(refuse(
            &path,
            "is a symbolic link, and whoever can change it could exchange the store",
            "name the file that it points to",
        )),
        Ok(found) if !found.is_file() => Err(refuse(&path, "is not a file", "name a file of its own")),
        Ok(_) => Ok(path),
        Err(error) if error.kind() == ErrorKind::NotFound => create(&path).map(|()| path),
        Err(error) => Err(failed(&path, &error)),
    }
}

/// An empty file that only its owner may read or write. SQLite gives its side files the same mode.
fn create(path: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()), // Somebody else starts at the same time.
        Err(error) => Err(failed(path, &error)),
    }
}

fn make_folder(folder: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| failed(folder, &error))
}

/// File systems on which locks and shared memory do not reach every process that opens the file. FUSE is among them:
/// it may be anything, and most often it is a remote one.
#[cfg(target_os = "linux")]
fn refuse_network(folder: &Path) -> Result<()> {
    const REMOTE: [(u64, &str); 13] = [
        (0x6969, "NFS"),
        (0x517B, "SMB"),
        (0xFF53_4D42, "CIFS"),
        (0xFE53_4D42, "SMB2"),
        (0x5346_414F, "AFS"),
        (0x00C3_6400, "Ceph"),
        (0x7375_7245, "Coda"),
        (0x0102_1997, "9P"),
        (0x6573_5546, "FUSE"),
        (0x0BD0_0BD0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x7461_636F, "OCFS2"),
        (0x0116_1970, "GFS2"),
    ];
    let Ok(found) = rustix::fs::statfs(folder) else {
        return Ok(());
    };
    let magic = u64::try_from(found.f_type).unwrap_or(0) & 0xFFFF_FFFF;
    match REMOTE.iter().find(|(remote, _)| *remote == magic) {
        Some((_, name)) => Err(refuse(
            folder,
            &format!("is on a network file system ({name}), where SQLite's locks do not hold"),
            "use a local disk, or a store that is made for many machines",
        )),
        None => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_folder: &Path) -> Result<()> {
    Ok(())
}

fn refuse(path: &Path, what: &str, hint: &str) -> Error {
    Error::store(Trouble::Misconfigured, format!("the store {} {what}", path.display()), hint)
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    let at = path.display();
    let (trouble, hint) = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => (
            Trouble::NotPermitted,
            "let this user write there, or name another file with --store sqlite:PATH",
        ),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (Trouble::Unavailable, "make room on that disk"),
        _ => (Trouble::Misconfigured, "name another file with --store sqlite:PATH"),
    };
    Error::store(trouble, format!("the store {at} cannot be opened: {error}"), hint)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_file_and_its_folder_are_the_owners_alone() {
        let temp = tempfile::tempdir().unwrap();
        let path = prepare(&temp.path().join("a/b/locks.db")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
    }

    #[test]
    fn a_link_a_folder_and_a_file_in_the_way_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let link = temp.path().join("link.db");
        std::os::unix::fs::symlink(temp.path().join("elsewhere.db"), &link).unwrap();
        assert!(prepare(&link).unwrap_err().to_string().contains("symbolic link"));
        assert!(!temp.path().join("elsewhere.db").exists());
        assert!(prepare(temp.path()).unwrap_err().to_string().contains("not a file"));
        let file = temp.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(prepare(&file.join("x.db")).is_err());
        assert!(prepare(Path::new("/")).is_err());
        assert!(prepare(Path::new("")).is_err());
    }
}
