//! `clone3` denied, as in containers and in services with `RestrictNamespaces=`: commands still get
//! cgroups, and no PID namespaces.

use std::fs;
use std::process::Command;

use crate::support::{Sandbox, eventually};

/// Executes a program under a system call filter that denies `clone3`.
const DENY: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
step = lambda code, yes, no, value: struct.pack("HBBI", code, yes, no, value)
# Load the number of the call; 435 is clone3 on every architecture; ENOSYS; allow all others.
steps = ctypes.create_string_buffer(step(0x20, 0, 0, 0) + step(0x15, 0, 1, 435) + step(6, 0, 0, 0x50026) + step(6, 0, 0, 0x7fff0000))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(4, ctypes.addressof(steps))), 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn a_pid_namespace_is_not_available() {
    let sandbox = Sandbox::new();
    let mut denied = sandbox.command_in(&["python3", "-c", DENY], "run a --contain pidns -- true");
    let ran = crate::support::run(&mut denied);
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains("--contain pidns is not available here"), "{ran:?}");
}

#[test]
fn a_command_is_in_a_cgroup_of_its_own_and_what_it_leaves_is_killed() {
    let sandbox = Sandbox::new();
    let words = "run a --contain cgroup -- sh script";
    let script = "tail -n 1 /proc/self/cgroup > cgroup; setsid sleep 600 & echo $! > left; sleep 0.2";
    fs::write(sandbox.path().join("script"), script).unwrap();
    if sandbox.run(words).code != 0 {
        eprintln!("not tested, because there is no cgroup to be had here");
        return;
    }
    fs::remove_file(sandbox.path().join("left")).unwrap();
    let mut denied = sandbox.command_in(&["python3", "-c", DENY], words);
    let ran = crate::support::run(&mut denied);
    assert_eq!(ran.code, 0, "{ran:?}");
    let read = |name: &str| fs::read_to_string(sandbox.path().join(name)).unwrap();
    assert!(read("cgroup").contains("/leasehold-"), "{}", read("cgroup"));
    let left = format!("/proc/{}", read("left").trim());
    eventually("nothing is left", || !fs::exists(&left).unwrap());
    // The filter works.
    let mut clone3 = Command::new("python3");
    let call = DENY.replace("os.execvp(sys.argv[1], sys.argv[1:])", "print(libc.syscall(435, 0, 0))");
    assert_eq!(String::from_utf8_lossy(&clone3.args(["-c", &call]).output().unwrap().stdout), "-1\n");
}
