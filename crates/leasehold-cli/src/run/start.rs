//! Start of `leasehold run`: the checks before any side effect, and the first fork.

use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::unistd::{ForkResult, Pid, getpid, setpgid};

use super::contain::Prepared;
use super::environment::Around;
use super::front::{Family, Front};
use super::keeper::keep;
use super::lookup::{NotRunnable, look_up};
use super::plan::RunPlan;
use super::say::{say, say_to_programs};
use super::stub::Image;
use super::sys::{self, Shared};
use super::terminal::Terminal;
use super::timing::Timing;
use super::watchdog::Watchdog;
use super::{signals, tree};
use crate::exit;
use crate::output::Failure;

/// State that FRONT and KEEPER share.
pub(super) struct Job<'a> {
    pub(super) plan: &'a RunPlan,
    pub(super) timing: Timing,
    pub(super) shared: Shared,
    pub(super) terminal: Terminal,
    pub(super) front: Pid,
    pub(super) contained: Prepared,
}

/// Runs the command under its locks and returns the exit code. Must be called while this process
/// has one thread.
pub(crate) fn run(plan: &RunPlan) -> i32 {
    say_to_programs(plan.json);
    let (timing, image) = match check(plan) {
        Ok(checked) => checked,
        Err(refusal) => {
            let failure = Failure::command(refusal.code, refusal.message);
            failure.print(plan.json);
            return failure.exit;
        }
    };
    let contained = match plan.contain.prepare() {
        Ok(contained) => contained,
        Err(error) => {
            let failure = Failure::config(error.to_string());
            failure.print(plan.json);
            return failure.exit;
        }
    };
    let code = start(plan, timing, &image, &contained).unwrap_or_else(|error| {
        say!("cannot start the command: {error}");
        exit::INTERNAL
    });
    contained.remove();
    code
}

fn check(plan: &RunPlan) -> Result<(Timing, Image), NotRunnable> {
    let refuse = |code, message| NotRunnable { message, code };
    let timing = Timing::new(plan.ttl.as_duration(), plan.kill_after, plan.renew_at)
        .map_err(|message| refuse(exit::USAGE, message))?;
    let Some(command) = plan.command.first() else {
        return Err(refuse(exit::USAGE, "there is no command to run; write it after --".to_owned()));
    };
    if let Some(lock) = Around::from_environment(&plan.store_url).holds(&plan.locks) {
        let message = format!(
            "lock '{lock}' is held by the leasehold run around this one, so waiting for it would never end; \
             run the command without it, or use another lock"
        );
        return Err(refuse(plan.conflict_exit, message));
    }
    let file = look_up(command, std::env::var_os("PATH"))?;
    let image = Image::new(&plan.command, &file)
        .ok_or_else(|| refuse(exit::USAGE, "the command contains a NUL byte".to_owned()))?;
    Ok((timing, image))
}

/// Forks WATCHDOG, which forks KEEPER, which forks the command.
fn start(plan: &RunPlan, timing: Timing, image: &Image, contained: &Prepared) -> io::Result<i32> {
    signals::start_clean();
    let spare = tree::own_children();
    tree::adopt_orphans();
    let (shared, terminal, front) = (Shared::new()?, Terminal::find(), getpid());
    let job = Job { plan, timing, shared, terminal, front, contained: contained.clone() };
    let (ours, theirs) = UnixStream::pair()?;
    match sys::fork()? {
        ForkResult::Parent { child: watchdog } => {
            drop(theirs);
            sys::undo_low_priority();
            Ok(Front::new(&job, Family::new(watchdog, spare), ours)?.stand())
        }
        ForkResult::Child => {
            drop(ours); // Otherwise KEEPER would not notice the death of FRONT.
            sys::exit_now(watch(&job, image, theirs).unwrap_or(exit::INTERNAL))
        }
    }
}

/// Forks KEEPER. Runs in WATCHDOG.
fn watch(job: &Job<'_>, image: &Image, link: UnixStream) -> io::Result<i32> {
    // A process group of its own: FRONT interprets the signals that the terminal or the shell sends
    // to its job.
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    tree::adopt_orphans();
    match sys::fork()? {
        ForkResult::Parent { child: keeper } => {
            drop(link);
            job.shared.set_keeper(keeper);
            let (parent, shared, timing) = (job.front, job.shared, job.timing);
            let contained = job.contained.clone();
            Ok(Watchdog { parent, keeper, shared, timing, contained }.watch())
        }
        ForkResult::Child => {
            let kept = catch_unwind(AssertUnwindSafe(|| keep(job, image, link)));
            sys::exit_now(kept.unwrap_or(exit::INTERNAL))
        }
    }
}
