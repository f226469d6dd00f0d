//! Linux namespaces of this process, as far as its view of clocks and processes depends on them.

#[cfg(target_os = "linux")]
use std::{fs, io::ErrorKind, sync::Mutex};

#[cfg(target_os = "linux")]
use crate::store::support::mutex::lock;

/// Returns the nanoseconds that the time namespace of this process adds to the kernel's boot clock;
/// `None` if they cannot be determined. Read once: a process stays in its time namespace, and only its
/// children can be in another one.
#[cfg(target_os = "linux")]
pub(crate) fn boottime_offset() -> Option<i64> {
    static KNOWN: Mutex<Option<(u32, Option<i64>)>> = Mutex::new(None);
    let pid = std::process::id();
    let mut known = lock(&KNOWN);
    match *known {
        Some((reader, offset)) if reader == pid => offset,
        _ => known.insert((pid, read_boottime_offset())).1,
    }
}

#[cfg(target_os = "linux")]
fn read_boottime_offset() -> Option<i64> {
    match fs::read_to_string("/proc/self/timens_offsets") {
        // The file describes the namespace of future children. After `unshare` that is not the
        // process's own.
        Ok(text) => (inode("time")? == inode("time_for_children")?).then(|| parse_boottime(&text))?,
        // On a kernel without time namespaces, `/proc` lists processes but has no such file.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::exists("/proc/self/stat").ok().filter(|there| *there).map(|_| 0)
        }
        Err(_) => None,
    }
}

/// Returns `None`: other systems have no boot clock that all processes share.
#[cfg(not(target_os = "linux"))]
pub(crate) fn boottime_offset() -> Option<i64> {
    None
}

/// Returns the inode of the PID namespace of this process, if `/proc` shows the processes of that
/// namespace. The `/proc` of another namespace shows other processes under the same numbers.
#[cfg(target_os = "linux")]
pub(crate) fn pid_namespace() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    shows_own_processes(&status, std::process::id()).then(|| inode("pid"))?
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pid_namespace() -> Option<u64> {
    None
}

#[cfg(target_os = "linux")]
fn inode(namespace: &str) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/self/ns/{namespace}")).ok().map(|found| found.ino())
}

/// Parses lines such as `boottime  1000  500`: seconds and nanoseconds. Kernels before 5.7 name the
/// clock by its number, 7.
#[cfg(target_os = "linux")]
fn parse_boottime(text: &str) -> Option<i64> {
    text.lines().find_map(|line| {
        let [clock, seconds, nanos] = line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
        if !["boottime", "7"].contains(&clock) {
            return None;
        }
        seconds.parse::<i64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanos.parse().ok()?)
    })
}

/// Whether `/proc` belongs to the process's own PID namespace. `NSpid` lists the PIDs of the process
/// from the namespace of this `/proc` down to the process's own. If both are the same namespace, the
/// list has one entry.
#[cfg(target_os = "linux")]
fn shows_own_processes(status: &str, pid: u32) -> bool {
    let number = pid.to_string();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    match field("NSpid:") {
        Some(numbers) => numbers.split_whitespace().eq([number.as_str()]),
        // Kernels before 4.1 have no `NSpid`.
        None => field("Pid:").is_some_and(|shown| shown.trim() == number),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_the_boot_clock_is_read_in_both_formats() {
        let now = "monotonic           5         0\nboottime         1000       500\n";
        assert_eq!(parse_boottime(now), Some(1_000_000_000_500));
        assert_eq!(parse_boottime("1 0 0\n7 -86400 0\n"), Some(-86_400_000_000_000));
        assert_eq!(parse_boottime("monotonic 0 0\n"), None);
        assert_eq!(parse_boottime("boottime many 0\n"), None);
    }

    #[test]
    fn processes_are_recognised_only_in_a_proc_of_their_own_namespace() {
        assert!(shows_own_processes("Name:\tsh\nPid:\t7\nNSpid:\t7\n", 7));
        // The numbers are equal by chance, the namespaces differ.
        assert!(!shows_own_processes("Pid:\t7\nNSpid:\t7\t7\n", 7));
        assert!(!shows_own_processes("Pid:\t4242\nNSpid:\t4242\t7\n", 7));
        assert!(shows_own_processes("Pid:\t7\n", 7));
        assert!(!shows_own_processes("Pid:\t4242\n", 7));
        assert!(!shows_own_processes("", 7));
    }

    #[test]
    fn this_process_knows_its_namespaces() {
        assert!(boottime_offset().is_some());
        assert!(pid_namespace().is_some());
    }
}
