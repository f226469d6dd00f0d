//! Finding and ending every process of a tree, regardless of how often its members fork or change
//! their session.
//!
//! A subreaper inherits the orphans below it, so every process that the command ever started has a
//! chain of living parents up to the subreaper. One pass cannot be complete, because processes fork
//! during the pass; passes are repeated until no process is left.

use std::collections::HashSet;
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::contain::Cgroup;
use super::link::Exited;
use super::status::status;
use super::sys;

/// Selection of processes of the tree.
#[derive(Debug, Clone, Default)]
pub(super) struct ProcessTree {
    /// Roots: all processes below them are selected, the roots themselves are not.
    pub(super) roots: Vec<Pid>,
    /// Excluded processes, with everything below them.
    pub(super) excluded_trees: Vec<Pid>,
    /// Excluded processes whose descendants are selected: processes of leasehold within the tree.
    pub(super) excluded: Vec<Pid>,
    /// Process group of the command, until the command is reaped: the id may be reused afterwards.
    /// Where processes cannot be listed, the group stands for the whole tree.
    pub(super) group: Option<Pid>,
    pub(super) cgroup: Option<Arc<Cgroup>>,
    /// First process of the command's PID namespace.
    pub(super) init: Option<Pid>,
}

#[derive(Debug, Default)]
pub(super) struct Pass {
    pub(super) alive: usize,
    /// Processes that this user may not signal because they run as another user.
    pub(super) refused: Vec<Pid>,
}

impl ProcessTree {
    /// Kills every selected process. The calls that kill a whole set run first: no fork escapes them.
    pub(super) fn kill(&self) -> Pass {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        if let Some(init) = self.init {
            let _ = kill(init, Signal::SIGKILL);
        }
        if let Some(group) = self.group {
            let _ = killpg(group, Signal::SIGKILL);
        }
        self.signal(Signal::SIGKILL, None)
    }

    /// Whether the selection is empty once this process has no children left. Always true: a
    /// subreaper has inherited every orphan.
    #[cfg(target_os = "linux")]
    #[expect(clippy::unused_self, reason = "without subreapers the process group shows it")]
    pub(super) fn is_empty_without_children(&self) -> bool {
        true
    }

    /// Whether the selection is empty once this process has no children left, as far as the process
    /// group shows.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn is_empty_without_children(&self) -> bool {
        self.group.is_none_or(|group| killpg(group, None).is_err())
    }

    /// Records that the command has been reaped. Where processes can be listed, its group is not
    /// needed any more.
    pub(super) fn leader_reaped(&mut self) {
        if cfg!(target_os = "linux") {
            self.group = None;
        }
    }

    /// Sends the signal to every selected process, except those in the group `except`.
    pub(super) fn signal(&self, signal: Signal, except: Option<Pid>) -> Pass {
        let mut pass = Pass::default();
        let listed = self.for_each(|process| {
            pass.alive += 1;
            if Some(process.group) != except && kill(process.pid, signal) == Err(Errno::EPERM) {
                pass.refused.push(process.pid);
            }
        });
        if !listed && let Some(group) = self.group {
            pass.alive = usize::from(killpg(group, signal).is_ok());
        }
        pass
    }

    /// Calls `visit` with each living process as soon as it is known to belong to the tree: a process in a
    /// loop of fork and exit has exited a moment later. Returns `false` if processes cannot be listed here.
    fn for_each(&self, mut visit: impl FnMut(&Process)) -> bool {
        let mut members: HashSet<Pid> = self.roots.iter().copied().collect();
        let mut visit_member = |process: &Process| {
            let is_member = members.contains(&process.parent);
            if is_member {
                members.insert(process.pid);
                if process.alive && !self.excluded.contains(&process.pid) {
                    visit(process);
                }
            }
            is_member
        };
        let Some(processes) = list() else { return false };
        let mut unknown: Vec<_> = processes
            .filter(|process| {
                !self.excluded_trees.contains(&process.pid) && !self.roots.contains(&process.pid)
            })
            .filter(|process| !visit_member(process))
            .collect();
        // Pids mostly rise from parent to child, and so does the list. Processes out of order are
        // examined again until no further one belongs to the tree.
        let mut before = usize::MAX;
        while unknown.len() < before {
            before = unknown.len();
            unknown.retain(|process| !visit_member(process));
        }
        true
    }
}

pub(super) fn report_survivors(pass: &Pass) {
    let refused: Vec<String> = pass.refused.iter().map(ToString::to_string).collect();
    match refused.as_slice() {
        [] => status!("{} processes of the command are still alive after SIGKILL", pass.alive),
        refused => status!(
            "these processes of the command run as another user and cannot be killed: {}",
            refused.join(", ")
        ),
    }
}

/// Makes this process a subreaper: orphans below it become its children.
pub(super) fn become_subreaper() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_child_subreaper(true); // Cannot fail on any kernel of this decade.
}

/// Returns the children that this process inherited across `exec` from the program that ran in it before.
pub(super) fn inherited_children() -> Vec<Pid> {
    if waitpid(None, Some(WaitPidFlag::WNOHANG)) == Err(Errno::ECHILD) {
        return Vec::new();
    }
    let me = nix::unistd::getpid();
    list().into_iter().flatten().filter(|process| process.parent == me).map(|process| process.pid).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaped {
    Ended(Pid, Exited),
    /// The child was stopped by this signal.
    Stopped(Pid, i32),
    Nothing,
    /// No child is left, and so, for a subreaper, no process below it.
    NoChildren,
}

/// Polls the children of this process once, without waiting.
pub(super) fn reap() -> Reaped {
    loop {
        return match sys::poll_children() {
            Ok((pid, _)) if pid.as_raw() == 0 => Reaped::Nothing,
            Ok((pid, status)) if libc::WIFEXITED(status) => {
                Reaped::Ended(pid, Exited::Code(libc::WEXITSTATUS(status)))
            }
            Ok((pid, status)) if libc::WIFSIGNALED(status) => {
                Reaped::Ended(pid, Exited::Signal(libc::WTERMSIG(status)))
            }
            Ok((pid, status)) if libc::WIFSTOPPED(status) => Reaped::Stopped(pid, libc::WSTOPSIG(status)),
            Err(Errno::ECHILD) => Reaped::NoChildren,
            Ok(_) | Err(_) => continue,
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
    // In a PID namespace without its own `/proc`, the pids shown there are not those that `kill` takes.
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
    fn a_program_name_may_contain_parentheses() {
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
    fn an_invalid_stat_line_is_no_process() {
        for stat in ["", "1 (a", "1 (a) S", "1 (a) S x 1"] {
            assert_eq!(parse(Pid::from_raw(1), stat), None);
        }
    }

    #[test]
    fn children_are_found_unless_excluded() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        let found = |tree: &ProcessTree| {
            let mut found = Vec::new();
            assert!(tree.for_each(|process| found.push(process.pid)));
            found
        };
        let all = ProcessTree { roots: vec![nix::unistd::getpid()], ..ProcessTree::default() };
        assert!(found(&all).contains(&pid));
        let excluded = ProcessTree { excluded: vec![pid], ..all.clone() };
        assert!(!found(&excluded).contains(&pid));
        let excluded = ProcessTree { excluded_trees: vec![pid], ..all };
        assert!(!found(&excluded).contains(&pid));
        let under_the_child = ProcessTree { roots: vec![pid], ..ProcessTree::default() };
        assert_eq!(found(&under_the_child), []);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
