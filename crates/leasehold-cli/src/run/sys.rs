//! The few system calls that have no safe wrapper. All `unsafe` of this program is in this file.
#![expect(
    unsafe_code,
    reason = "fork, signal dispositions, a shared page, _exit and a watched descriptor have no safe wrapper"
)]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::Moment;
use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::ForkResult;
#[cfg(target_os = "linux")]
use tokio::io::{Interest, unix::AsyncFd};

#[cfg(target_os = "linux")]
use super::alarm::Alarm;

/// Makes a copy of this process. To be called only while it has a single thread: everything is then as usable in the
/// child as in the parent (with more threads, a lock that one of them held would stay locked for ever).
pub(super) fn fork() -> Result<ForkResult, Errno> {
    debug_assert!(has_one_thread(), "fork with threads around");
    // SAFETY: There is one thread, see above, so the child may do whatever the parent may.
    unsafe { nix::unistd::fork() }
}

fn has_one_thread() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(true, |tasks| tasks.count() == 1)
}

/// Ends this process at once: a forked child must not run what its parent has planned for the end.
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit is always sound.
    unsafe { libc::_exit(code) }
}

/// Whether the signal is ignored, as `nohup` and shells arrange for their children.
pub(super) fn is_ignored(signal: Signal) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: With no new action this only writes the current one, to a place that is large enough.
    let asked = unsafe { libc::sigaction(signal as libc::c_int, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: All zeroes are a valid `sigaction`, and the call wrote nothing else.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// From now on the signal does nothing.
pub(super) fn ignore(signal: Signal) {
    set(signal, SigHandler::SigIgn);
}

/// From now on the signal does what it does by default.
pub(super) fn reset(signal: Signal) {
    set(signal, SigHandler::SigDfl);
}

/// Does `act` while the signal does what it does by default.
pub(super) fn with_default<T>(signal: Signal, act: impl FnOnce() -> T) -> T {
    let before = set(signal, SigHandler::SigDfl);
    let done = act();
    if let Some(before) = before {
        // SAFETY: Puts a disposition back that was in force a moment ago.
        let _ = unsafe { sigaction(signal, &before) };
    }
    done
}

fn set(signal: Signal, handler: SigHandler) -> Option<SigAction> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: Neither "ignore" nor "default" runs code of ours.
    unsafe { sigaction(signal, &action) }.ok()
}

/// Lets the runtime tell when the alarm rings.
#[cfg(target_os = "linux")]
pub(super) fn watch(alarm: Alarm) -> std::io::Result<AsyncFd<Alarm>> {
    // SAFETY: The alarm owns its descriptor, which is open and the same as long as the alarm lives.
    unsafe { AsyncFd::register_with_interest(alarm, Interest::READABLE) }.map_err(Into::into)
}

/// Shows this process under another command line, to `ps` and to `pkill -f`. Not vital: where it does not work, it does
/// not happen. After it, `std::env::args` would tell nonsense.
#[cfg(target_os = "linux")]
pub(super) fn show_as(title: &str) -> Option<()> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let begin: u64 = fields.nth(45)?.parse().ok()?;
    let end: u64 = fields.next()?.parse().ok()?;
    let mut line = title.as_bytes().to_vec();
    line.resize(usize::try_from(end.checked_sub(begin)?).ok()?, 0);
    *line.last_mut()? = 0;
    // The arguments lie on the stack below everything that our language knows of. They are only read to copy them.
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").ok()?;
    std::os::unix::fs::FileExt::write_all_at(&memory, &line, begin).ok()
}

/// Until when the lease is valid: one number in a page that forked processes share. FRONT reads what KEEPER wrote, at
/// any time, whichever of them was stopped in between.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValidUntil(&'static AtomicU64);

impl ValidUntil {
    /// No lease yet.
    pub(super) fn new() -> Result<Self, Errno> {
        let size = NonZeroUsize::new(size_of::<AtomicU64>()).expect("it is not empty");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping overlaps nothing.
        let page = unsafe { mmap_anonymous(None, size, access, MapFlags::MAP_SHARED) }?;
        // SAFETY: The page is aligned, all zeroes (a valid number), never unmapped, and only used as an atomic.
        Ok(Self(unsafe { page.cast::<AtomicU64>().as_ref() }))
    }

    pub(super) fn set(self, moment: Moment) {
        self.0.store(moment.as_micros(), Ordering::SeqCst);
    }

    /// None before the first grant.
    pub(super) fn get(self) -> Option<Moment> {
        match self.0.load(Ordering::SeqCst) {
            0 => None,
            micros => Some(Moment::from_micros(micros)),
        }
    }
}
