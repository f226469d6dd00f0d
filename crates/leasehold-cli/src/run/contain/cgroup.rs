//! Cgroup (version 2) for a command: it contains every process that the command starts, and one
//! write kills all of them, whichever user they run as.
//!
//! The name of the cgroup contains the process that created it, so that any process that finds the
//! cgroup can check whether its owner has exited. No command is meant to outlive the process that
//! started it: processes found in a cgroup without a living owner are killed.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::BootInstant;
use leasehold::model::{Member, Process};
use leasehold::store::{is_dead, this_process};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{AccessFlags, ForkResult, access};

use crate::exit;
use crate::run::sys;

#[derive(Debug)]
pub(in crate::run) struct Cgroup {
    path: PathBuf,
    folder: File,
    kill: File,
}

/// Prefix of the names of cgroups.
const PREFIX: &str = "leasehold-";
/// Maximum wait for the death of the processes in a cgroup that was killed.
const DEATH_TIMEOUT: Duration = Duration::from_secs(2);

impl Cgroup {
    /// Creates a cgroup below our own. This process is its owner.
    pub(in crate::run) fn create() -> io::Result<Self> {
        let me = this_process().ok_or_else(|| io::Error::other("/proc does not show this process"))?;
        let base = own_cgroup()?;
        // The kernel requires this permission to start a process of ours in a cgroup below.
        access(&base.join("cgroup.procs"), AccessFlags::W_OK)?;
        let path = base.join(name(&me).ok_or(io::ErrorKind::Unsupported)?);
        match DirBuilder::new().mode(0o755).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Self::open(path.clone()).inspect_err(|_| drop(std::fs::remove_dir(&path)))
    }

    fn open(path: PathBuf) -> io::Result<Self> {
        let folder = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(&path)?;
        let kill = File::options().write(true).open(path.join("cgroup.kill"))?;
        Ok(Self { path, folder, kill })
    }

    /// Forks a process into the cgroup. The child has to wait for its parent before it does anything else.
    pub(in crate::run) fn fork(&self) -> Result<ForkResult, Errno> {
        match sys::fork_into_cgroup(self.folder.as_fd()) {
            Err(Errno::ENOSYS) => self.fork_and_move(),
            forked => forked,
        }
    }

    /// Slow path: forks, then moves the child. System call filters cannot read the flags of
    /// `clone3` and deny it as a whole: those of containers, and of services with
    /// `RestrictNamespaces=`.
    fn fork_and_move(&self) -> Result<ForkResult, Errno> {
        let forked = sys::fork()?;
        if let ForkResult::Parent { child } = forked
            && let Err(error) = std::fs::write(self.path.join("cgroup.procs"), child.to_string())
        {
            let _ = kill(child, Signal::SIGKILL);
            let _ = waitpid(child, None);
            return Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw));
        }
        Ok(forked)
    }

    /// Kills everything in the cgroup and below it. No fork escapes.
    pub(in crate::run) fn kill(&self) {
        // Fails if the cgroup has been removed; then there is no process in it.
        let _ = (&self.kill).write_all(b"1");
    }

    /// Kills the processes in sibling cgroups whose owners have exited, and removes those cgroups.
    pub(in crate::run) fn end_abandoned(&self) {
        if let Some(base) = self.path.parent() {
            Self::end_abandoned_in(base);
        }
    }

    /// Does the same as [`Self::end_abandoned`] in a process that owns no cgroup: kills what is in the cgroups below its
    /// own whose owners have exited. May wait for the death of these processes.
    pub(in crate::run) fn end_abandoned_below_own() {
        if let Ok(base) = own_cgroup() {
            Self::end_abandoned_in(&base);
        }
    }

    fn end_abandoned_in(base: &Path) {
        let Some(me) = this_process() else { return };
        for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
            let abandoned = entry.file_name().to_str().and_then(|name| owner(name, &me));
            if abandoned.is_some_and(|owner| is_dead(&owner))
                && let Ok(cgroup) = Self::open(entry.path())
            {
                cgroup.kill();
                cgroup.wait_until_empty();
                cgroup.remove();
            }
        }
    }

    fn wait_until_empty(&self) {
        let give_up = BootInstant::now().plus(DEATH_TIMEOUT);
        let populated = || {
            let events = std::fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
            events.lines().any(|line| line == "populated 1")
        };
        while populated() && BootInstant::now() < give_up {
            std::thread::sleep(Duration::from_millis(1));
            self.kill();
        }
    }

    /// Removes the cgroup, if no process in it is alive.
    pub(in crate::run) fn remove(&self) {
        remove(&self.path);
    }

    /// Creates and removes a cgroup as a test. Returns the parent below which cgroups can be
    /// created and used.
    pub(super) fn probe() -> io::Result<PathBuf> {
        let cgroup = Self::create()?;
        let (mut wait, go) = io::pipe()?;
        let used = match cgroup.fork() {
            Ok(ForkResult::Child) => {
                drop(go);
                let _ = wait.read(&mut [0]);
                sys::exit_now(exit::SUCCESS)
            }
            Ok(ForkResult::Parent { child }) => {
                drop(go);
                waitpid(child, None).map(|_| ())
            }
            Err(errno) => Err(errno),
        };
        cgroup.remove();
        used?;
        Ok(cgroup.path.parent().unwrap_or(&cgroup.path).to_owned())
    }
}

/// Removes a cgroup with all cgroups that commands may have created below it.
fn remove(path: &Path) {
    if std::fs::remove_dir(path).is_ok() {
        return;
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(path);
}

/// Returns the name of a cgroup that this process owns.
fn name(owner: &Process) -> Option<String> {
    let Member { pid, started, .. } = owner.members.first()?;
    Some(format!("{PREFIX}{}-{pid}-{started}", owner.pid_namespace))
}

/// Returns the owner of the cgroup with this name. The boot is the current one: no cgroup outlives a reboot.
fn owner(name: &str, me: &Process) -> Option<Process> {
    let mut numbers = name.strip_prefix(PREFIX)?.split('-').map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let (pid_namespace, pid, started) = (next()?, u32::try_from(next()?).ok()?, next()?);
    let members = vec![Member { pid, started, group: false }];
    Some(Process { boot: me.boot, pid_namespace, members })
}

/// Returns the folder of the cgroup that this process is in.
fn own_cgroup() -> io::Result<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup")?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    locate(&groups, &mounts).ok_or_else(|| io::Error::other("no cgroup of version 2 is mounted"))
}

/// Locates our cgroup from the contents of `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn locate(groups: &str, mounts: &str) -> Option<PathBuf> {
    let ours = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if !kind.starts_with("cgroup2 ") {
            return None;
        }
        // Fields: id, parent, device, the mounted cgroup, the mount point; blanks in names are
        // written as octal escapes.
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?.replace("\\040", " "));
        let below = Path::new(ours).strip_prefix(root).ok()?;
        let inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        inside.then(|| Path::new(&at).join(below).components().collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "24 30 0:22 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn a_cgroup_is_found_below_its_mount() {
        let at = |groups: &str, mounts: &str| locate(groups, mounts).map(|path| path.display().to_string());
        let slice = "0::/user.slice/a b\n";
        assert_eq!(at(slice, UNIFIED).unwrap(), "/sys/fs/cgroup/user.slice/a b");
        let hybrid = "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let beside = "32 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        assert_eq!(at("5:cpu:/x\n0::/\n", &format!("{beside}{hybrid}")).unwrap(), "/sys/fs/cgroup/unified");
        let part = "24 30 0:22 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup ro\n";
        assert_eq!(at("0::/docker/1/x\n", part).unwrap(), "/sys/fs/cgroup/x");
        assert_eq!(at("0::/elsewhere\n", part), None);
        assert_eq!(at("0::/../other\n", UNIFIED), None, "outside of our cgroup namespace");
        assert_eq!(at("5:cpu:/x\n", UNIFIED), None, "version 1 only");
        assert_eq!(at(slice, beside), None);
    }

    #[test]
    fn a_cgroup_name_contains_its_owner() {
        let me = this_process().unwrap();
        let found = owner(&name(&me).unwrap(), &me).unwrap();
        assert_eq!(found, me);
        for other in ["leasehold-1-2", "leasehold-a-1-2", "leasehold", "system.slice", "leasehold-1--2-3"] {
            assert_eq!(owner(other, &me), None, "{other}");
        }
    }
}
