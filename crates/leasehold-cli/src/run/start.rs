//! Start of `leasehold run`: the checks before any side effect, and the first fork.

use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use leasehold::model::Mode;
use nix::unistd::{ForkResult, Pid, getpid, setpgid};

use super::contain::Containment;
use super::environment::enclosing_lock;
use super::lookup::look_up;
use super::monitor::run_monitor;
use super::plan::{RunContext, RunPlan};
use super::pre_exec::Image;
use super::status::{set_json, status};
use super::supervisor::Supervisor;
use super::sys::{self, Shared};
use super::terminal::Terminal;
use super::timing::Timing;
use super::watchdog::Watchdog;
use super::{signals, tree};
use crate::exit;
use crate::output::Failure;

/// Runs the command under its locks and returns the exit code. Must be called while this process
/// has one thread.
pub(crate) fn run(plan: &RunPlan) -> i32 {
    set_json(plan.json);
    let (timing, image, containment) = match check(plan) {
        Ok(checked) => checked,
        Err(failure) => {
            failure.print(plan.json);
            return failure.exit;
        }
    };
    let code = start(plan, timing, &image, &containment).unwrap_or_else(|error| {
        status!("cannot start the command: {error}");
        exit::INTERNAL
    });
    containment.remove();
    code
}

/// Makes the checks; prepares the containment last.
fn check(plan: &RunPlan) -> Result<(Timing, Image, Containment), Failure> {
    let timing = Timing::new(plan.ttl.as_duration(), plan.kill_after, plan.renew_at)
        .map_err(|message| Failure::command(exit::USAGE, message))?;
    let Some(command) = plan.command.first() else {
        return Err(Failure::command(exit::USAGE, "there is no command to run; write it after --"));
    };
    // Only such a request conflicts with the enclosing run for certain; the store decides about others.
    let is_alone = plan.mode == Mode::Exclusive && plan.slots.get() == 1;
    if let Some(lock) = enclosing_lock(plan).filter(|_| is_alone) {
        let message = format!(
            "lock '{lock}' is held by the enclosing leasehold run, so waiting for it would never end; \
             run the command without it, or use another lock"
        );
        return Err(Failure::command(plan.conflict_exit, message));
    }
    let file = look_up(command, std::env::var_os("PATH"))?;
    let image = Image::new(&plan.command, &file)
        .ok_or_else(|| Failure::command(exit::USAGE, "the command contains a NUL byte"))?;
    let containment = plan.contain.prepare().map_err(|error| Failure::config(error.to_string()))?;
    Ok((timing, image, containment))
}

/// Forks WATCHDOG, which forks MONITOR, which forks the command.
fn start(plan: &RunPlan, timing: Timing, image: &Image, containment: &Containment) -> io::Result<i32> {
    signals::reset_inherited();
    let inherited = tree::inherited_children();
    tree::become_subreaper();
    let (shared, terminal, supervisor) = (Shared::new()?, Terminal::find(), getpid());
    let context = RunContext { plan, timing, shared, terminal, supervisor, containment: containment.clone() };
    let (ours, theirs) = UnixStream::pair()?;
    match sys::fork()? {
        ForkResult::Parent { child: watchdog } => {
            drop(theirs);
            sys::undo_low_priority();
            Ok(Supervisor::new(&context, watchdog, inherited, ours)?.run())
        }
        ForkResult::Child => {
            drop(ours); // Otherwise MONITOR would not notice the death of SUPERVISOR.
            sys::exit_now(fork_monitor(&context, image, theirs).unwrap_or(exit::INTERNAL))
        }
    }
}

/// Forks MONITOR. Runs in WATCHDOG.
fn fork_monitor(context: &RunContext<'_>, image: &Image, link: UnixStream) -> io::Result<i32> {
    // A process group of its own: SUPERVISOR interprets the signals that the terminal or the shell
    // sends to its job.
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    tree::become_subreaper();
    match sys::fork()? {
        ForkResult::Parent { child: monitor } => {
            drop(link);
            context.shared.set_monitor(monitor);
            let (parent, shared, timing) = (context.supervisor, context.shared, context.timing);
            let containment = context.containment.clone();
            Ok(Watchdog { parent, monitor, shared, timing, containment }.run())
        }
        ForkResult::Child => {
            let ended = catch_unwind(AssertUnwindSafe(|| run_monitor(context, image, link)));
            sys::exit_now(ended.unwrap_or(exit::INTERNAL))
        }
    }
}
