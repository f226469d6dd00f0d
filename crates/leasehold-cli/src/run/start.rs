//! The start of `leasehold run`: the checks before anything happens, and the first fork.

use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::unistd::{ForkResult, Pid, getpid};

use super::environment::Around;
use super::front::{Family, Front};
use super::keeper::keep;
use super::lookup::{NotRunnable, look_up};
use super::plan::RunPlan;
use super::say::say;
use super::stub::Image;
use super::sys::{self, ValidUntil};
use super::terminal::Terminal;
use super::timing::Timing;
use super::{signals, tree};
use crate::exit;
use crate::output::Failure;

/// What FRONT and KEEPER both know.
pub(super) struct Job<'a> {
    pub(super) plan: &'a RunPlan,
    pub(super) timing: Timing,
    pub(super) valid_until: ValidUntil,
    pub(super) terminal: Terminal,
    pub(super) front: Pid,
}

/// Runs the command under its locks and returns the code to exit with. To be called while this process has one thread.
pub(crate) fn run(plan: &RunPlan) -> i32 {
    let (timing, image) = match check(plan) {
        Ok(checked) => checked,
        Err(refusal) => {
            let failure = Failure::command(refusal.code, refusal.message);
            failure.print(plan.json);
            return failure.exit;
        }
    };
    start(plan, timing, &image).unwrap_or_else(|error| {
        say!("cannot start the command: {error}");
        exit::INTERNAL
    })
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

/// Forks KEEPER, which forks the command.
fn start(plan: &RunPlan, timing: Timing, image: &Image) -> io::Result<i32> {
    signals::start_clean();
    let spare = tree::own_children();
    tree::adopt_orphans();
    let (valid_until, terminal) = (ValidUntil::new()?, Terminal::find());
    let job = Job { plan, timing, valid_until, terminal, front: getpid() };
    let (ours, theirs) = UnixStream::pair()?;
    match sys::fork()? {
        ForkResult::Parent { child: keeper } => {
            drop(theirs);
            Ok(Front::new(&job, Family { keeper: Some(keeper), spare }, ours)?.stand())
        }
        ForkResult::Child => {
            drop(ours); // Else KEEPER would never see that FRONT is gone.
            let kept = catch_unwind(AssertUnwindSafe(|| keep(&job, image, theirs)));
            sys::exit_now(kept.unwrap_or(exit::INTERNAL))
        }
    }
}
