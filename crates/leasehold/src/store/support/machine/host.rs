//! Processes of this machine: the identity of this process, and whether another process has exited.

use std::sync::Mutex;

use rustix::process::{Pid, test_kill_process, test_kill_process_group};

use super::clock::boot_id;
use super::namespaces::{boottime_offset, pid_namespace};
use crate::model::{Member, Process};
use crate::store::support::mutex::lock;

/// Returns this process as a lease identifies it. `None` if the system does not provide enough to
/// recognise the process later: without a `/proc` of its own PID namespace, or in a time namespace
/// whose offset cannot be corrected.
pub fn this_process() -> Option<Process> {
    with_this_process(Clone::clone)
}

fn with_this_process<T>(read: impl FnOnce(&Option<Process>) -> T) -> T {
    static KNOWN: Mutex<(Option<u32>, Option<Process>)> = Mutex::new((None, None));
    let pid = std::process::id();
    let mut known = lock(&KNOWN);
    // A forked child has another PID than the process that filled the cache.
    if known.0 != Some(pid) {
        *known = (Some(pid), read_process(pid));
    }
    read(&known.1)
}

/// Returns the host name of this machine.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().trim().replace(char::is_control, "");
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// Returns one process of this machine as a member of [`Process`].
pub fn process_identity(pid: u32) -> Option<Member> {
    Some(Member { pid, started: stat(pid)?.started, group: false })
}

/// Whether every process behind a lease has certainly exited. Returns `false` when in doubt (another
/// boot, another namespace, a `/proc` that hides processes): the lease then ends by its TTL.
pub fn is_dead(process: &Process) -> bool {
    let may_be_dead = |me: &Process| {
        process.boot == me.boot
            && process.pid_namespace == me.pid_namespace
            && !process.members.iter().any(|member| me.members.contains(member))
    };
    with_this_process(|me| me.as_ref().is_some_and(may_be_dead)) && process.members.iter().all(member_is_dead)
}

fn member_is_dead(member: &Member) -> bool {
    let Some(pid) = i32::try_from(member.pid).ok().and_then(Pid::from_raw) else { return false };
    let gone = Err(rustix::io::Errno::SRCH);
    if member.group && test_kill_process_group(pid) != gone {
        return false;
    }
    if test_kill_process(pid) == gone {
        return true;
    }
    // The kernel may have reused the PID for another process since.
    stat(member.pid).is_some_and(|stat| stat.started != member.started || stat.is_zombie)
}

fn read_process(pid: u32) -> Option<Process> {
    let boot = boot_id()?;
    let pid_namespace = pid_namespace()?;
    Some(Process { boot, pid_namespace, members: vec![process_identity(pid)?] })
}

/// Nanoseconds in a tick of `/proc/PID/stat`.
const TICK: i64 = 10_000_000;

struct Stat {
    /// Start time in ticks of the kernel's boot clock: the same in every time namespace.
    started: u64,
    /// Whether the process is a zombie: dead, but not yet reaped by its parent.
    is_zombie: bool,
}

/// Reads `/proc/PID/stat`. The second field is the program's name in parentheses and may contain any
/// character, so fields are counted from the last closing parenthesis.
fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let (state, threads, started) = (fields.first()?, fields.get(17)?, fields.get(19)?);
    // A thread group leader that has exited while its other threads still run is also shown as a
    // zombie.
    let is_zombie = *state == "X" || (*state == "Z" && threads.parse::<u32>().ok()? <= 1);
    Some(Stat { started: from_boot(started.parse().ok()?, boottime_offset()?)?, is_zombie })
}

/// Subtracts the offset of the time namespace from a start time. The kernel adds the offset of the
/// reader's namespace and then rounds, so only an offset of whole ticks can be subtracted again.
fn from_boot(started: u64, offset: i64) -> Option<u64> {
    (offset % TICK == 0).then(|| started.checked_add_signed(-(offset / TICK)))?
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::model::BootId;

    #[test]
    fn this_process_is_not_dead() {
        let me = this_process().unwrap();
        assert_eq!(me.members[0].pid, std::process::id());
        assert!(!is_dead(&me));
    }

    #[test]
    fn a_process_is_dead_once_it_has_exited_even_before_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process =
            Process { members: vec![process_identity(child.id()).unwrap()], ..this_process().unwrap() };
        assert!(!is_dead(&process));
        child.kill().unwrap();
        while !is_dead(&process) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_dead(&process));
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut found = process_identity(child.id()).unwrap();
        found.started -= 1;
        let process = Process { members: vec![found], ..this_process().unwrap() };
        assert!(is_dead(&process));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_start_of_a_process_does_not_depend_on_the_time_namespace() {
        assert_eq!(from_boot(5_000, 0), Some(5_000));
        assert_eq!(from_boot(105_000, 1_000_000_000_000), Some(5_000));
        assert_eq!(from_boot(4_000, -10_000_000_000), Some(5_000));
        assert_eq!(from_boot(5_001, 5_000_000), None, "it cannot be known which tick it was");
    }

    #[test]
    fn a_process_that_cannot_be_seen_counts_as_alive() {
        let me = this_process().unwrap();
        let no_process = Member { pid: 1 << 30, started: 1, group: false };
        let elsewhere = Process { pid_namespace: 1, members: vec![no_process], ..me.clone() };
        assert!(!is_dead(&elsewhere));
        let another_boot = BootId(uuid::Uuid::from_u128(1));
        let in_a_container = Process { boot: another_boot, members: vec![no_process], ..me.clone() };
        assert!(!is_dead(&in_a_container), "one kernel may show several boot ids");
        let one_of_two = Process { members: vec![no_process, me.members[0]], ..me };
        assert!(!is_dead(&one_of_two));
    }
}
