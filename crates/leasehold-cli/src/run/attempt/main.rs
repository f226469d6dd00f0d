//! Start of a monitor: this program again, under another name, with its link to the worker as stdin.
//! The started process forks MONITOR and becomes WATCHDOG.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use nix::unistd::{ForkResult, dup2_stdin, getppid};

use super::launch::{LaunchSpec, NAME};
use super::monitor::{AttemptMonitor, LeaseTerms};
use crate::exit;
use crate::run::contain::Containment;
use crate::run::monitor::set_process_name;
use crate::run::pre_exec::{CommandSetting, Image, PreExecChild};
use crate::run::status::status;
use crate::run::sys::{self, Shared};
use crate::run::terminal::Terminal;
use crate::run::watchdog::Watchdog;
use crate::run::{signals, tree};

/// Runs the monitor if this process was started as one: `lease-monitor FILE COMMAND ARGUMENTS…`.
/// Returns its exit code, or `None` if this process is not a monitor.
pub(crate) fn run_attempt_monitor(arguments: &[OsString]) -> Option<i32> {
    let [name, file, command @ ..] = arguments else { return None };
    if name != NAME || command.is_empty() {
        return None;
    }
    Some(start(Path::new(file), command).unwrap_or_else(|error| {
        status!("cannot start the command: {error}");
        exit::INTERNAL
    }))
}

/// Forks MONITOR and becomes WATCHDOG.
fn start(file: &Path, command: &[OsString]) -> io::Result<i32> {
    let worker = getppid();
    signals::reset_inherited();
    tree::become_subreaper();
    let link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let spec = LaunchSpec::read(&link)?;
    let Some(image) = Image::new(command, file) else {
        return Err(io::Error::other("the command contains a NUL byte"));
    };
    let containment = spec.contain.prepare()?;
    let (shared, timing) = (Shared::new()?, spec.timing);
    shared.set_valid_until(spec.valid_until);
    match sys::fork()? {
        ForkResult::Parent { child: monitor } => {
            // A second open copy of the link would hide the death of MONITOR from the worker.
            drop(link);
            dup2_stdin(File::open("/dev/null")?)?;
            shared.set_monitor(monitor);
            Ok(Watchdog { parent: worker, monitor, shared, timing, containment }.run())
        }
        ForkResult::Child => {
            let start = MonitorStart { spec, image, link, shared, containment };
            let ended = catch_unwind(AssertUnwindSafe(|| start.run()));
            let code = ended.unwrap_or(Ok(exit::INTERNAL)).unwrap_or_else(|error| {
                status!("cannot start the command: {error}");
                exit::INTERNAL
            });
            sys::exit_now(code)
        }
    }
}

/// Initial state of MONITOR.
struct MonitorStart {
    spec: LaunchSpec,
    image: Image,
    link: UnixStream,
    shared: Shared,
    containment: Containment,
}

impl MonitorStart {
    /// Forks the command, and watches it until all of its processes have ended.
    fn run(self) -> io::Result<i32> {
        let Self { spec, image, link, shared, containment } = self;
        set_process_name();
        tree::become_subreaper();
        let (payload_reader, payload_writer) = io::pipe()?;
        dup2_stdin(&payload_reader)?;
        drop(payload_reader);
        let setting = CommandSetting { terminal: &Terminal::none(), containment: &containment };
        let (child, link) = PreExecChild::fork(&image, &setting, link)?;
        signals::ignore_in_monitor();
        sys::undo_low_priority(); // The command keeps the inherited priority.
        // Only the command holds the read end of the payload pipe now: when the command ends, the
        // writer thread ends.
        dup2_stdin(File::open("/dev/null")?)?;
        let LaunchSpec { valid_until, timing, variables, payload, .. } = spec;
        let monitor =
            AttemptMonitor::new(child, link, LeaseTerms { valid_until, timing, shared, containment })?;
        write_payload(payload_writer, payload);
        Ok(monitor.run(&variables))
    }
}

/// Writes the payload to the command on a separate thread, because the command need not read all of
/// it, or any. Started after the fork, which requires a single thread.
fn write_payload(mut writer: PipeWriter, payload: Vec<u8>) {
    std::thread::spawn(move || {
        // The command may ignore its input.
        let _ = writer.write_all(&payload);
    });
}
