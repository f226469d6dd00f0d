//! Main function of MONITOR.

use std::os::unix::net::UnixStream;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, setpgid};

use super::event_loop::Monitor;
use super::events::Events;
use super::lease::Lease;
use crate::exit;
use crate::run::link::Message;
use crate::run::plan::RunContext;
use crate::run::pre_exec::{CommandSetting, Image, PreExecChild};
use crate::run::status::status;
use crate::run::{signals, sys, tree};

/// Runs MONITOR and returns the code for `_exit`. If the event loop is reached, exits instead of
/// returning.
pub(in crate::run) fn run_monitor(context: &RunContext<'_>, image: &Image, link: UnixStream) -> i32 {
    // A process group of its own: SUPERVISOR interprets the signals that the terminal or the shell
    // sends to its job.
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    tree::become_subreaper();
    set_process_name();
    // Fork the command first: the fork requires a single thread, and must be made by a thread that
    // lives as long as this process, because the system ties the parent-death signal to that
    // thread.
    let setting = CommandSetting { terminal: &context.terminal, containment: &context.containment };
    let started = PreExecChild::fork(image, &setting, link).and_then(|(child, link)| {
        signals::ignore_in_monitor();
        sys::undo_low_priority(); // The command keeps the inherited priority.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok((child, link, runtime))
    });
    match started {
        Ok((child, link, runtime)) => runtime.block_on(acquire_and_run(context, child, link)),
        Err(error) => {
            status!("cannot start the command: {error}");
            exit::INTERNAL
        }
    }
}

async fn acquire_and_run(context: &RunContext<'_>, child: PreExecChild, link: UnixStream) -> i32 {
    let mut events = match Events::new(link) {
        Ok(events) => events,
        Err(error) => {
            status!("cannot start the command: {error}");
            return exit::INTERNAL;
        }
    };
    let code = match Lease::acquire(context, child.pid, &mut events).await {
        Ok(lease) => Monitor::new(context, child, lease, &mut events).run().await,
        Err(code) => {
            // The child waits for a "go" that will not be sent.
            let _ = kill(child.pid, Signal::SIGKILL);
            let _ = waitpid(child.pid, None);
            code
        }
    };
    events.send(Message::Done(code));
    // Exit immediately: any further cleanup would only delay the user's prompt.
    sys::exit_now(code)
}

/// Renames this process, so that a kill of all processes called "leasehold" spares one that can
/// still end the command.
pub(in crate::run) fn set_process_name() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(c"lease-monitor");
}
