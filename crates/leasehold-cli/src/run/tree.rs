//! Finding and ending every process of a tree, regardless of how often its members fork or change
//! their session.
//!
//! A subreaper inherits the orphans below it, so every process that the command ever started has a
//! chain of living parents up to the subreaper. One pass cannot be complete, because processes fork
//! during the pass; passes are repeated until no process is left.

use std::collections::HashSet;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::contain::Cgroup;
use super::say::say;

/// Selection of processes of the tree.
#[derive(Debug, Clone, Default)]
pub(super) struct Below {
    /// Roots: all processes below them are selected, the roots themselves are not.
    pub(super) roots: Vec<Pid>,
    /// Excluded processes, with everything below them.
    pub(super) spare: Vec<Pid>,
    /// Excluded processes whose descendants are selected: processes of leasehold within the tree.
    pub(super) ours: Vec<Pid>,
    /// Process group of the command, until the command is reaped: the id may be reused afterwards.
    /// Where processes cannot be listed, the group stands for the whole tree.
    pub(super) group: Option<Pid>,
    /// Cgroup of the command.
    pub(super) cgroup: Option<Arc<Cgroup>>,
    /// First process of the command's PID namespace.
    pub(super) init: Option<Pid>,
}

/// Result of one pass.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Number of processes that were alive.
    pub(super) alive: usize,
    /// Processes that this user may not signal because they run as another user.
    pub(super) refused: Vec<Pid>,
}

impl Below {
    /// Kills every selected process. The calls that kill a whole set run first: no fork escapes
    /// them.
    pub(super) fn kill(&self) -> Pass {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        if let Some(init) = self.init {
            let _ = kill(init, Signal::SIGKILL);
        }
        if let Some(group) = self.group {
            let _ = kill(negative(group), Signal::SIGKILL);
        }
        self.signal(Signal::SIGKILL, None)
    }

    /// Whether the selection is empty once this process has no children left. Always true: a
    /// subreaper has inherited every orphan.
    #[cfg(target_os = "linux")]
    #[expect(clippy::unused_self, reason = "where there are no subreapers, the group tells")]
    pub(super) fn is_empty_without_children(&self) -> bool {
        true
    }

    /// Whether the selection is empty once this process has no children left, as far as the process
    /// group shows.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn is_empty_without_children(&self) -> bool {
        self.group.is_none_or(|group| kill(negative(group), None).is_err())
    }

    /// Records that the command has been reaped. Where processes can be listed, its group is not
    /// needed any more.
    pub(super) fn leader_is_buried(&mut self) {
        if cfg!(target_os = "linux") {
            self.group = None;
        }
    }

    /// Sends the signal to every selected process, except those in the group `but_not`.
    pub(super) fn signal(&self, signal: Signal, but_not: Option<Pid>) -> Pass {
        let mut pass = Pass::default();
        let listed = self.visit(|process| {
            pass.alive += 1;
            if Some(process.group) != but_not && kill(process.pid, signal) == Err(Errno::EPERM) {
                pass.refused.push(process.pid);
            }
        });
        if !listed && let Some(group) = self.group {
            pass.alive = usize::from(kill(negative(group), signal).is_ok());
        }
        pass
    }

    /// Calls `act` with each living process as soon as it is known to belong to the tree: a process
    /// in a loop of fork and exit has exited a moment later. Returns `false` if processes cannot be
    /// listed here.
    fn visit(&self, mut act: impl FnMut(&Process)) -> bool {
        let mut family: HashSet<Pid> = self.roots.iter().copied().collect();
        let mut others = Vec::new();
        let Some(processes) = list() else { return false };
        // Pids mostly rise from parent to child, and so does the list. Processes out of order are
        // examined again below.
        for process in processes {
            if self.spare.contains(&process.pid) || self.roots.contains(&process.pid) {
                continue;
            }
            if family.contains(&process.parent) {
                family.insert(process.pid);
                if process.alive && !self.ours.contains(&process.pid) {
                    act(&process);
                }
            } else {
                others.push(process);
            }
        }
        loop {
            let (found, rest): (Vec<_>, Vec<_>) =
                others.into_iter().partition(|process| family.contains(&process.parent));
            if found.is_empty() {
                return true;
            }
            for process in &found {
                family.insert(process.pid);
                if process.alive && !self.ours.contains(&process.pid) {
                    act(process);
                }
            }
            others = rest;
        }
    }
}

/// Reports the processes that could not be ended.
pub(super) fn complain(pass: &Pass) {
    let refused: Vec<String> = pass.refused.iter().map(ToString::to_string).collect();
    match refused.as_slice() {
        [] => say!("{} of the command's processes do not die, although they were killed", pass.alive),
        refused => say!(
            "these processes of the command run as another user and cannot be ended by this one: {}",
            refused.join(", ")
        ),
    }
}

/// Returns the negative number by which `kill` addresses a group.
pub(super) fn negative(group: Pid) -> Pid {
    Pid::from_raw(-group.as_raw())
}

/// Makes this process a subreaper: orphans below it become its children.
pub(super) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_child_subreaper(true); // Cannot fail on any kernel of this decade.
}

/// Returns the children that this process inherited across `exec` from the program that ran in it
/// before.
pub(super) fn own_children() -> Vec<Pid> {
    if waitpid(None, Some(WaitPidFlag::WNOHANG)) == Err(Errno::ECHILD) {
        return Vec::new();
    }
    let me = nix::unistd::getpid();
    list().into_iter().flatten().filter(|process| process.parent == me).map(|process| process.pid).collect()
}

/// Result of polling the children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaped {
    /// This child changed its state.
    News(WaitStatus),
    /// No child has changed its state.
    Nothing,
    /// No child is left, and so, for a subreaper, no process below it.
    NobodyLeft,
}

/// Polls the children of this process once, without waiting.
pub(super) fn reap() -> Reaped {
    loop {
        return match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::StillAlive) => Reaped::Nothing,
            Ok(status) => Reaped::News(status),
            Err(Errno::ECHILD) => Reaped::NobodyLeft,
            Err(_) => continue,
        };
    }
}

/// Process as shown in `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: Pid,
    group: Pid,
    alive: bool,
}

#[cfg(target_os = "linux")]
fn list() -> Option<impl Iterator<Item = Process>> {
    // In a PID namespace without its own `/proc`, the pids shown there are not those that `kill`
    // takes.
    let shown = std::fs::read_link("/proc/self").ok()?;
    if shown.to_str()?.parse() != Ok(nix::unistd::getpid().as_raw()) {
        return None;
    }
    let entries = std::fs::read_dir("/proc").ok()?;
    Some(entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        let pid: i32 = name.to_str()?.parse().ok()?;
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        parse(Pid::from_raw(pid), &String::from_utf8_lossy(&stat))
    }))
}

#[cfg(not(target_os = "linux"))]
fn list() -> Option<impl Iterator<Item = Process>> {
    None::<std::iter::Empty<Process>>
}

/// Parses `/proc/PID/stat`. The second field is the program's name in parentheses, which may
/// contain anything: the fields are counted from the last closing parenthesis.
fn parse(pid: Pid, stat: &str) -> Option<Process> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = Pid::from_raw(fields.next()?.parse().ok()?);
    let group = Pid::from_raw(fields.next()?.parse().ok()?);
    let threads: u32 = fields.nth(14)?.parse().ok()?;
    // A process whose first thread has ended while others still run is shown as a zombie too.
    let alive = state != "X" && (state != "Z" || threads > 1);
    Some(Process { pid, parent, group, alive })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_have_any_name() {
        let stat = "77 (a) S 1 (b)) T 33 44 44 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 100 0 0";
        let process = parse(Pid::from_raw(77), stat).unwrap();
        assert_eq!((process.parent.as_raw(), process.group.as_raw(), process.alive), (33, 44, true));
    }

    #[test]
    fn a_zombie_lives_as_long_as_one_of_its_threads() {
        let alive = |state, threads| {
            let stat = format!("7 (x) {state} 1 2 3 0 -1 4 1 2 3 4 5 6 7 8 20 0 {threads} 0 100");
            parse(Pid::from_raw(7), &stat).unwrap().alive
        };
        assert!(!alive("Z", 1));
        assert!(!alive("Z", 0));
        assert!(alive("Z", 2));
        assert!(alive("T", 1));
        assert!(!alive("X", 1));
    }

    #[test]
    fn nonsense_is_no_process() {
        for stat in ["", "1 (a", "1 (a) S", "1 (a) S x 1"] {
            assert_eq!(parse(Pid::from_raw(1), stat), None);
        }
    }

    #[test]
    fn children_are_found_and_spared() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        let found = |below: &Below| {
            let mut found = Vec::new();
            assert!(below.visit(|process| found.push(process.pid)));
            found
        };
        let all = Below { roots: vec![nix::unistd::getpid()], ..Below::default() };
        assert!(found(&all).contains(&pid));
        let ours = Below { ours: vec![pid], ..all.clone() };
        assert!(!found(&ours).contains(&pid));
        let spare = Below { spare: vec![pid], ..all };
        assert!(!found(&spare).contains(&pid));
        let below_the_child = Below { roots: vec![pid], ..Below::default() };
        assert_eq!(found(&below_the_child), []);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
