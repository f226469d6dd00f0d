//! System calls that have no safe wrapper. All `unsafe` of this program is in this file.
#![expect(
    unsafe_code,
    reason = "fork and clone3, waitpid, signal dispositions, priorities, capabilities, a shared page, _exit and a watched descriptor have no safe wrapper"
)]

use std::num::NonZeroUsize;
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::BootInstant;
use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{ForkResult, Pid};
#[cfg(target_os = "linux")]
use tokio::io::{Interest, unix::AsyncFd};

#[cfg(target_os = "linux")]
use super::timer::Timer;

/// Forks this process. Must be called only while the process has a single thread: then everything
/// is as usable in the child as in the parent (with more threads, a lock that another thread held
/// would stay locked forever).
pub(super) fn fork() -> Result<ForkResult, Errno> {
    refuse_with_threads()?;
    // SAFETY: The process has one thread, as checked above, so the child may do whatever the parent may.
    unsafe { nix::unistd::fork() }
}

/// Polls the children of this process once, without waiting. Returns the pid and the raw status of a child that
/// has ended or was stopped, or pid 0. The `waitpid` of nix reaps a child that a real-time signal killed, and then
/// fails because it has no name for the signal.
pub(super) fn poll_children() -> Result<(Pid, libc::c_int), Errno> {
    let mut status = 0;
    // SAFETY: The pointer is valid for the time of the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
    Ok((Pid::from_raw(Errno::result(pid)?), status))
}

/// Forks with the child in this cgroup from its first instruction on. Writing the pid to
/// `cgroup.procs` has the same effect, but takes a lock for which the kernel waits many
/// milliseconds.
#[cfg(target_os = "linux")]
pub(super) fn fork_into_cgroup(cgroup: BorrowedFd<'_>) -> Result<ForkResult, Errno> {
    let cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    clone3(CLONE_INTO_CGROUP, libc::SIGCHLD.cast_unsigned().into(), cgroup)
}

/// Forks a sibling: the parent of this process becomes the parent of the child.
#[cfg(target_os = "linux")]
pub(super) fn fork_sibling() -> Result<ForkResult, Errno> {
    clone3(libc::CLONE_PARENT.cast_unsigned().into(), 0, 0)
}

/// Flag of `clone3`; not defined in all versions of libc.
#[cfg(target_os = "linux")]
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks by the bare system call. The C library does not notice: its list of threads is right, as
/// there is one, but it takes the child's thread for the parent's. The child should therefore do
/// little before it calls exec.
#[cfg(target_os = "linux")]
fn clone3(flags: u64, exit_signal: u64, cgroup: u64) -> Result<ForkResult, Errno> {
    refuse_with_threads()?;
    // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup
    let arguments: [u64; 11] = [flags, 0, 0, 0, exit_signal, 0, 0, 0, 0, 0, cgroup];
    // SAFETY: Without CLONE_VM and without a stack, the call is a fork in a process with one thread, as
    // checked above. The structure has the size that is passed with it, and contains no pointers.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments)) };
    match i32::try_from(Errno::result(child)?).map_err(|_| Errno::EOVERFLOW)? {
        0 => Ok(ForkResult::Child),
        child => Ok(ForkResult::Parent { child: Pid::from_raw(child) }),
    }
}

/// Drops the capabilities that the creator of a user namespace has in it, and makes this process
/// inspectable again by processes of the same user.
#[cfg(target_os = "linux")]
pub(super) fn drop_capabilities() -> Result<(), Errno> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    // Effective, permitted and inheritable sets, in two halves.
    let none = [0_u32; 6];
    // SAFETY: Both have the layout that this version of the call reads.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const none) };
    Errno::result(done)?;
    nix::sys::prctl::set_dumpable(true)
}

/// Raises an inherited low priority as far as permitted: the processes that must end a command in
/// time must not wait for a CPU behind all other processes.
pub(super) fn undo_low_priority() {
    // SAFETY: These calls take numbers, and a structure that is only read.
    unsafe {
        #[cfg(target_os = "linux")]
        if libc::sched_getscheduler(0) == libc::SCHED_IDLE {
            let default: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const default);
        }
        if libc::getpriority(libc::PRIO_PROCESS, 0) > 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        }
    }
}

/// Refuses to fork if there are several threads. Also in release builds: a child that hangs on a
/// lock forever is worse than a command that does not start.
fn refuse_with_threads() -> Result<(), Errno> {
    // Linux adds the number of threads to the two links of the folder. Counting the entries takes
    // longer, and is for kernels that do not.
    let folder = std::path::Path::new("/proc/self/task");
    let single = folder.metadata().is_ok_and(|folder| folder.nlink() == 3)
        || folder.read_dir().map_or(true, |tasks| tasks.count() == 1);
    debug_assert!(single, "fork in a process with several threads");
    if single { Ok(()) } else { Err(Errno::EDEADLK) }
}

/// Exits immediately: a forked child must not run the exit handlers of its parent.
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit is always sound.
    unsafe { libc::_exit(code) }
}

/// Whether the signal is ignored, as `nohup` and shells arrange for their children.
pub(super) fn is_ignored(signal: Signal) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: With no new action the call only writes the current one, to a buffer that is large enough.
    let status = unsafe { libc::sigaction(signal as libc::c_int, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: All zeroes are a valid `sigaction`, and the call wrote nothing else.
    status == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

pub(super) fn ignore(signal: Signal) {
    set(signal, SigHandler::SigIgn);
}

pub(super) fn reset(signal: Signal) {
    set(signal, SigHandler::SigDfl);
}

/// Runs `act` while the signal has its default action.
pub(super) fn with_default<T>(signal: Signal, act: impl FnOnce() -> T) -> T {
    let before = set(signal, SigHandler::SigDfl);
    let result = act();
    if let Some(before) = before {
        // SAFETY: Restores a disposition that was in force before.
        let _ = unsafe { sigaction(signal, &before) };
    }
    result
}

fn set(signal: Signal, handler: SigHandler) -> Option<SigAction> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: Neither "ignore" nor "default" runs code of this program.
    unsafe { sigaction(signal, &action) }.ok()
}

#[cfg(target_os = "linux")]
pub(super) fn register_timer(timer: Timer) -> std::io::Result<AsyncFd<Timer>> {
    // SAFETY: The timer owns its descriptor, which stays open and unchanged as long as the timer lives.
    unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }.map_err(Into::into)
}

/// Replaces the command line of this process as shown by `ps` and matched by `pkill -f`. Best effort: without
/// support the command line stays as it is. Afterwards `std::env::args` returns garbage.
#[cfg(target_os = "linux")]
pub(super) fn set_process_title(title: &str) -> Option<()> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let begin: u64 = fields.nth(45)?.parse().ok()?;
    let end: u64 = fields.next()?.parse().ok()?;
    let mut line = title.as_bytes().to_vec();
    line.resize(usize::try_from(end.checked_sub(begin)?).ok()?, 0);
    *line.last_mut()? = 0;
    // The arguments lie on the stack, below all memory that Rust manages. They are only read to copy them.
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").ok()?;
    std::os::unix::fs::FileExt::write_all_at(&memory, &line, begin).ok()
}

/// State shared by the processes of one command: a memory page inherited from the process that created it.
/// Each process reads the values of the others at any time, even if one of them was stopped in between.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared(&'static Page);

#[derive(Debug)]
#[repr(C)]
struct Page {
    /// Expiry time of the lease, in microseconds of the boot clock. Zero before the first grant.
    valid_until: AtomicU64,
    /// Pid of MONITOR. Zero before it is forked.
    monitor: AtomicU64,
    /// Recent delay of timers, in microseconds.
    delay: AtomicU64,
    /// Nonzero once WATCHDOG has killed the command because its lease was about to end.
    out_of_time: AtomicU64,
}

impl Shared {
    pub(super) fn new() -> Result<Self, Errno> {
        let size = NonZeroUsize::new(size_of::<Page>()).expect("the page has a size");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping overlaps nothing.
        let page = unsafe { mmap_anonymous(None, size, access, MapFlags::MAP_SHARED) }?;
        // SAFETY: The page is aligned, all zeroes (valid numbers), never unmapped, and only used as atomics.
        Ok(Self(unsafe { page.cast::<Page>().as_ref() }))
    }

    pub(super) fn set_valid_until(self, moment: BootInstant) {
        self.0.valid_until.store(moment.as_micros(), Ordering::SeqCst);
    }

    pub(super) fn valid_until(self) -> Option<BootInstant> {
        match self.0.valid_until.load(Ordering::SeqCst) {
            0 => None,
            micros => Some(BootInstant::from_micros(micros)),
        }
    }

    pub(super) fn set_monitor(self, monitor: Pid) {
        self.0.monitor.store(u64::try_from(monitor.as_raw()).unwrap_or(0), Ordering::SeqCst);
    }

    pub(super) fn monitor(self) -> Option<Pid> {
        i32::try_from(self.0.monitor.load(Ordering::SeqCst)).ok().filter(|pid| *pid > 0).map(Pid::from_raw)
    }

    /// Records that WATCHDOG is about to kill the command because its lease ends.
    pub(super) fn set_out_of_time(self) {
        self.0.out_of_time.store(1, Ordering::SeqCst);
    }

    pub(super) fn was_out_of_time(self) -> bool {
        self.0.out_of_time.load(Ordering::SeqCst) != 0
    }

    /// Records that a timer fired this late. An old observation decays by an eighth with each new one.
    pub(super) fn observe_delay(self, late: Duration) {
        let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        let before = self.0.delay.load(Ordering::SeqCst);
        self.0.delay.store(late.max(before - before / 8), Ordering::SeqCst);
    }

    pub(super) fn delay(self) -> Duration {
        Duration::from_micros(self.0.delay.load(Ordering::SeqCst))
    }
}
