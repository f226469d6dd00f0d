//! Database file: created with restricted permissions, and rejected where it would be unsafe.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result, StoreErrorKind, StoreRemedy};
use crate::store::BootInstant;

/// Files of a store: their canonical paths and their identities at the time of opening.
pub(super) struct StoreFile {
    path: PathBuf,
    identity: Option<Identity>,
    /// Log and shared memory of the database.
    side_files: Vec<(PathBuf, Option<Identity>)>,
    /// Time of the next check that all files are in place, in microseconds of the boot clock.
    checked_until: AtomicU64,
    /// Set once the file was missing. The file may have reappeared, but other processes may have
    /// used another one meanwhile.
    lost: OnceLock<Error>,
}

/// Device and inode of a file.
type Identity = (u64, u64);

/// Validity of a successful check before a write. After a write the database is checked in any
/// case.
const CHECK_VALIDITY: Duration = Duration::from_millis(1);

impl StoreFile {
    /// Ensures that a usable file exists at `path`.
    pub(super) fn prepare(path: &Path) -> Result<Self> {
        let path = prepare(path)?;
        Ok(Self {
            identity: identity(&path),
            path,
            side_files: Vec::new(),
            checked_until: AtomicU64::new(0),
            lost: OnceLock::new(),
        })
    }

    /// Records the files that SQLite has created beside the database. From now on all of them must
    /// stay in place.
    pub(super) fn record_side_files(&mut self) -> Result<Presence> {
        self.check_unchanged()?;
        let presence = Presence::new(&self.path).map_err(|error| open_error(&self.path, &error))?;
        for suffix in SIDE_FILES {
            let path = side_file(&self.path, suffix);
            reject_shared(&path)?;
            let identity = identity(&path);
            self.side_files.push((path, identity));
        }
        Ok(presence)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if one of the files has been removed, moved or replaced since. Processes that open the
    /// path now get another file: a process that continues with the old one would hold locks that
    /// they do not see.
    pub(super) fn check_in_place(&self, now: BootInstant) -> Result<()> {
        if let Some(error) = self.lost.get() {
            return Err(error.clone());
        }
        if now.as_micros() < self.checked_until.load(Ordering::Relaxed) {
            return Ok(());
        }
        for (path, known) in &self.side_files {
            if identity(path) != *known {
                return Err(self.mark_lost(path));
            }
        }
        self.check_unchanged()?;
        self.checked_until.store(now.plus(CHECK_VALIDITY).as_micros(), Ordering::Relaxed);
        Ok(())
    }

    /// Fails if the database has been removed, moved or replaced before or during the last write:
    /// no other process will see that write.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        if let Some(error) = self.lost.get() {
            return Err(error.clone());
        }
        if identity(&self.path) == self.identity { Ok(()) } else { Err(self.mark_lost(&self.path)) }
    }

    fn mark_lost(&self, path: &Path) -> Error {
        let message =
            format!("the store {} was removed, moved or replaced while it was open", path.display());
        let hint = "restore the file, then restart every program that uses it";
        self.lost.get_or_init(|| Error::store(StoreErrorKind::Broken, message, hint)).clone()
    }
}

/// Marks this process as one that has written to the file and has it open, by a shared lock on the
/// log, which SQLite itself locks by another mechanism. Only a process that may write takes or
/// queries this lock.
pub(super) struct Presence(File);

impl Presence {
    fn new(database: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).open(wal_path(database)).map(Self)
    }

    /// Whether no other process that has written has the file open. The caller must call
    /// [`Presence::join`] afterwards.
    pub(super) fn is_alone(&self) -> bool {
        self.0.try_lock().is_ok()
    }

    /// Takes the shared lock. Does not block: the lock is held exclusively only under the write
    /// lock of the database.
    pub(super) fn join(&self) -> io::Result<()> {
        self.0.lock_shared()
    }

    pub(super) fn leave(&self) {
        let _ = self.0.unlock(); // Closing the file releases it at the latest.
    }

    /// Returns the size of the log in bytes; zero if it cannot be determined.
    pub(super) fn log_size(&self) -> u64 {
        self.0.metadata().map_or(0, |found| found.len())
    }
}

/// Suffixes of the files that SQLite creates beside a database. SQLite finds them by the name of
/// the database, so each process must open the database by the same name.
const SIDE_FILES: [&str; 2] = ["-wal", "-shm"];

pub(super) fn wal_path(database: &Path) -> PathBuf {
    side_file(database, "-wal")
}

fn side_file(database: &Path, suffix: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<Identity> {
    path.exists().then_some((0, 0))
}

fn prepare(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        rejected(path, "is not a file name", "name a file: sqlite:/var/lib/leasehold/leasehold.db")
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_folder(parent)?;
    let parent = parent.canonicalize().map_err(|error| open_error(parent, &error))?;
    let path = parent.join(name);
    reject_network(&parent)?;
    match fs::symlink_metadata(&path) {
        Ok(found) if found.file_type().is_symlink() => Err(rejected(
            &path,
            "is a symbolic link: a user who can change the link could replace the store",
            "name the file that it points to",
        )),
        Ok(found) if !found.is_file() => Err(rejected(&path, "is not a file", "name a file")),
        Ok(_) => reject_shared(&path).map(|()| path),
        Err(error) if error.kind() == ErrorKind::NotFound => create(&path).map(|()| path),
        Err(error) => Err(open_error(&path, &error)),
    }
}

/// Rejects a file that has another name, in this mount namespace or in another: a process that
/// opens the file by that name uses another log beside it and sees none of the locks.
#[cfg(unix)]
fn reject_shared(path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;

    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if found.nlink() > 1 {
        let what = format!("has {} hard links: under another name its log would not be found", found.nlink());
        return Err(rejected(path, &what, "remove the other names, or copy the file"));
    }
    if is_mount_point(path) {
        return Err(rejected(
            path,
            "is a mount of the file alone: its log would not be shared",
            "mount the folder of the file, not the file",
        ));
    }
    Ok(())
}

#[cfg(not(unix))]
fn reject_shared(_path: &Path) -> Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn is_mount_point(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

    const ROOT: StatxAttributes = StatxAttributes::MOUNT_ROOT;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match statx(CWD, path, flags, StatxFlags::empty()) {
        Ok(found) if found.stx_attributes_mask.contains(ROOT) => found.stx_attributes.contains(ROOT),
        // Linux before 5.8.
        _ => fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| is_listed(&mounts, path)),
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn is_mount_point(_path: &Path) -> bool {
    false
}

/// Whether `mounts` contains a mount at the path. Blanks and similar characters are written in
/// octal.
#[cfg(target_os = "linux")]
fn is_listed(mounts: &str, path: &Path) -> bool {
    let escape = |text: &str| {
        let codes = [('\\', "\\134"), (' ', "\\040"), ('\t', "\\011"), ('\n', "\\012")];
        codes.iter().fold(text.to_owned(), |text, (blank, code)| text.replace(*blank, code))
    };
    let path = escape(&path.to_string_lossy());
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(path.as_str()))
}

/// Creates an empty file that only its owner may read or write. SQLite gives its side files the
/// same mode.
fn create(path: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()), // Another process created it.
        Err(error) => Err(open_error(path, &error)),
    }
}

fn create_folder(folder: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| open_error(folder, &error))
}

/// Rejects file systems on which locks and shared memory do not reach every process that opens the
/// file, with the magic numbers of the kernel (`linux/magic.h`, `fs/vboxsf`, `fs/orangefs`) and of
/// GNU coreutils (`stat.c`). FUSE is among them because it may be anything and most often is
/// remote; so are the folders that a virtual machine shares with its host.
#[cfg(target_os = "linux")]
fn reject_network(folder: &Path) -> Result<()> {
    const REMOTE: [(u64, &str); 23] = [
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
        (0x6B41_4653, "kAFS"),
        (0x564C, "NCP"),
        (0xAAD7_AAEA, "PanFS"),
        (0x0131_11A8, "IBRIX"),
        (0xBEEF_DEAD, "SNFS"),
        (0x1983_0326, "BeeGFS"),
        (0x2003_0528, "OrangeFS"),
        (0x786F_4256, "vboxsf"),
        (0xBACB_ACBC, "vmhgfs"),
        (0x7C7C_6673, "prl_fs"),
    ];
    let Ok(found) = rustix::fs::statfs(folder) else {
        return Ok(());
    };
    let magic = u64::try_from(found.f_type).unwrap_or(0) & 0xFFFF_FFFF;
    match REMOTE.iter().find(|(remote, _)| *remote == magic) {
        Some((_, name)) => Err(rejected(
            folder,
            &format!("is on a network file system ({name}), where SQLite's locks do not work"),
            "use a local disk, or an engine for several machines",
        )),
        None => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn reject_network(_folder: &Path) -> Result<()> {
    Ok(())
}

fn rejected(path: &Path, what: &str, hint: &str) -> Error {
    Error::store(StoreErrorKind::Misconfigured, format!("the store {} {what}", path.display()), hint)
}

fn open_error(path: &Path, error: &std::io::Error) -> Error {
    let at = path.display();
    let (kind, hint) = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            (StoreErrorKind::NotPermitted, "grant this user write permission there, or name another file")
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            (StoreErrorKind::Unavailable, "free space on that disk")
        }
        _ => (StoreErrorKind::Misconfigured, "name another file"),
    };
    let opened = Error::store(kind, format!("the store {at} cannot be opened: {error}"), hint);
    if kind == StoreErrorKind::Unavailable { opened } else { opened.with_remedy(StoreRemedy::OtherFile) }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_file_and_its_folder_are_private_to_the_owner() {
        let temp = tempfile::tempdir().unwrap();
        let path = prepare(&temp.path().join("a/b/locks.db")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
    }

    #[test]
    fn links_folders_and_paths_below_a_file_are_rejected() {
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

    #[test]
    fn a_file_with_another_hard_link_is_rejected() {
        let temp = tempfile::tempdir().unwrap();
        let path = prepare(&temp.path().join("a.db")).unwrap();
        fs::hard_link(&path, temp.path().join("b.db")).unwrap();
        for name in ["a.db", "b.db"] {
            let error = prepare(&temp.path().join(name)).unwrap_err();
            assert!(error.to_string().contains("has 2 hard links"), "{error}");
            assert_eq!(error.code(), "STORE_MISCONFIGURED");
        }
        fs::remove_file(temp.path().join("b.db")).unwrap();
        prepare(&path).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_mount_point_is_found_in_the_list_of_mounts() {
        let mounts = "36 35 98:0 / / rw - ext3 /dev/root rw\n\
            37 36 98:0 /x /srv/my\\040locks.db rw,noatime master:1 - ext3 /dev/root rw\n";
        assert!(is_listed(mounts, Path::new("/srv/my locks.db")));
        assert!(!is_listed(mounts, Path::new("/srv")));
        assert!(is_mount_point(Path::new("/")));
        assert!(!is_mount_point(tempfile::tempdir().unwrap().path()));
    }
}
