//! Acquisition and release of the locks, through the client library.

use std::pin::pin;
use std::time::Duration;

use leasehold::model::{Conflict, LockName, Member, Mode, Process};
use leasehold::store::{self, Hosts};
use leasehold::{BootInstant, Error, Guard, GuardStatus, Leasehold, LockBuilder, Strategy};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::events::{Event, Events};
use crate::connect::{Deadline, connect, no_answer};
use crate::exit;
use crate::output::refusal;
use crate::run::environment::Granted;
use crate::run::link::Message;
use crate::run::plan::{Patience, RunPlan};
use crate::run::say::say;
use crate::run::start::Job;

/// Locks of this run, held.
pub(super) struct Lease<'a> {
    plan: &'a RunPlan,
    guard: Guard,
    pub(super) health: watch::Receiver<GuardStatus>,
    /// Kept because dropping it ends the library's threads.
    leasehold: Leasehold,
}

/// Signals that end the run.
pub(super) const ENDS: [i32; 4] =
    [Signal::SIGINT as i32, Signal::SIGTERM as i32, Signal::SIGHUP as i32, Signal::SIGQUIT as i32];

/// Waiting time after which the holder of the lock is reported.
const SAY_WHAT_FOR: Duration = Duration::from_millis(500);
/// Maximum time before the exit for leaving the queue, or for releasing the rest of lost locks.
const LEAVING: Duration = Duration::from_secs(2);
/// Same as [`LEAVING`] if the store is not responding.
const LEAVING_SILENCE: Duration = Duration::from_millis(250);
/// Maximum time for the release before the exit.
const RELEASING: Duration = Duration::from_secs(5);

impl<'a> Lease<'a> {
    /// Acquires the locks within the timeout of the plan. On failure reports the reason and returns
    /// the exit code.
    pub(super) async fn acquire(job: &Job<'a>, command: Pid, events: &mut Events) -> Result<Self, i32> {
        let plan = job.plan;
        let deadline = Deadline::new(plan.patience);
        let say_away = |error: &Error| {
            if !plan.quiet {
                say!("{error}; trying again");
            }
        };
        let leasehold = tokio::select! {
            biased;
            code = given_up(events) => return Err(code),
            leasehold = connect(&plan.store_url, deadline, say_away) => leasehold.map_err(|error| refused(plan, &error))?,
        };
        let (waits, waiting) = watch::channel(None);
        let asked = {
            let request = ask(job, &leasehold, command, deadline.left());
            let request = request.on_wait(move |lock, conflict| {
                waits.send_replace(Some((lock.clone(), conflict.clone())));
            });
            let mut asking = pin!(request.acquire());
            let mut saying = pin!(say_what_for(plan, waiting));
            tokio::select! {
                biased;
                code = given_up(events) => Err((code, LEAVING)),
                guard = &mut asking => guard.map_err(|error| {
                    let away = exit::of(&error) == exit::UNAVAILABLE;
                    (refused(plan, &error), if away { LEAVING_SILENCE } else { LEAVING })
                }),
                () = &mut saying => Err((exit::INTERNAL, LEAVING)),
            }
        };
        match asked {
            Ok(guard) => {
                let health = guard.watch();
                Ok(Self { plan, guard, health, leasehold })
            }
            Err((code, leaving)) => {
                // The request withdraws itself in the background.
                let _ = timeout(leaving, leasehold.close()).await;
                Err(code)
            }
        }
    }

    /// Returns why the locks were lost, if they were.
    pub(super) fn loss(&self) -> Option<Error> {
        self.guard.loss()
    }

    /// Returns the environment variables for the command.
    pub(super) fn variables(&self) -> Vec<u8> {
        let main = self.plan.locks.first();
        let leases = self.guard.leases();
        let Some((_, lease)) = leases.iter().find(|(name, _)| Some(name) == main) else { return Vec::new() };
        let granted = Granted {
            store_url: &self.plan.store_url,
            locks: &self.plan.locks,
            token: lease.token,
            lease_id: lease.ask.lease_id,
            holder: &lease.ask.holder,
        };
        granted.block()
    }

    /// Releases the locks. Fails if they were lost or if the store does not confirm in time.
    pub(super) async fn release(self) -> Result<(), Error> {
        let left = self.health.borrow().valid_until.after(BootInstant::now()).min(RELEASING);
        let lost = self.loss().is_some();
        let released = async {
            match self.plan.at_least {
                Some(at_least) => self.guard.release_at_least(at_least.as_duration()).await,
                None => self.guard.release().await,
            }
        };
        let released = timeout(left, released).await.unwrap_or_else(|_| Err(no_answer()));
        if lost {
            // The rest of several locks is released in the background: no process of the command is
            // alive any more.
            let _ = timeout(LEAVING, self.leasehold.close()).await;
        }
        released
    }
}

/// Resolves to an exit code when FRONT cancels the run or has exited.
async fn given_up(events: &mut Events) -> i32 {
    loop {
        match events.front_says().await {
            Event::Front(Message::Signal(signal)) if ENDS.contains(&signal) => {
                return exit::SIGNAL_BASE + signal;
            }
            Event::FrontGone => return exit::INTERNAL,
            _ => {}
        }
    }
}

fn ask(job: &Job<'_>, leasehold: &Leasehold, command: Pid, patience: Patience) -> LockBuilder {
    let plan = job.plan;
    let [first, others @ ..] = plan.locks.as_slice() else { return leasehold.lock("") };
    let ask = others.iter().fold(leasehold.lock(first), LockBuilder::and);
    let mut ask = ask
        .ttl(plan.ttl.as_duration())
        .renew_at(plan.renew_at)
        .slots(plan.slots.get())
        .priority(plan.priority.get())
        .strategy(match patience {
            Patience::FailFast => Strategy::FailFast,
            Patience::For(patience) => Strategy::Wait(Some(patience)),
            Patience::Forever => Strategy::Wait(None),
        });
    if plan.mode == Mode::Shared {
        ask = ask.shared();
    }
    if let Some(after) = plan.steal_stale {
        ask = ask.steal_stale(after.as_duration());
    }
    if let Some(holder) = &plan.holder {
        ask = ask.holder(holder);
    }
    if let Some(reason) = &plan.reason {
        ask = ask.reason(reason.as_str());
    }
    if let Some(process) = processes(job, leasehold, command) {
        ask = ask.process(Some(process));
    }
    plan.metadata.iter().fold(ask, |ask, (key, value)| ask.meta(key, value))
}

/// Returns all processes behind the lease: as long as one of them is alive it may still be killing
/// the others, and no process on this machine may take the lock over before the lease expires.
fn processes(job: &Job<'_>, leasehold: &Leasehold, command: Pid) -> Option<Process> {
    if leasehold.capabilities().hosts != Hosts::OneMachine {
        return None;
    }
    let member = |pid: Pid| store::member(u32::try_from(pid.as_raw()).ok()?);
    let mut process = store::this_process()?;
    process.members.push(member(job.front)?);
    process.members.push(member(getppid())?); // WATCHDOG
    process.members.push(Member { group: true, ..member(command)? });
    Some(process)
}

/// Lock that is waited for, and its conflict.
type Waiting = watch::Receiver<Option<(LockName, Conflict)>>;

/// Reports once for each lock its holder, if the wait takes longer than [`SAY_WHAT_FOR`]. Never
/// returns.
async fn say_what_for(plan: &RunPlan, mut waiting: Waiting) {
    let mut said = Vec::new();
    sleep(SAY_WHAT_FOR).await;
    if plan.quiet {
        return std::future::pending().await;
    }
    loop {
        let told = waiting.borrow_and_update().clone();
        if let Some((lock, conflict)) = told
            && !said.contains(&lock)
            && let Some(held) = conflict.holders.first()
        {
            say!("waiting for lock '{lock}', held by {} until {}", held.holder, held.until);
            said.push(lock);
        }
        if waiting.changed().await.is_err() {
            break;
        }
    }
    std::future::pending::<()>().await;
}

/// Reports why the locks cannot be acquired. Returns the exit code.
fn refused(plan: &RunPlan, error: &Error) -> i32 {
    let failure =
        refusal(error.clone(), plan.holder.as_ref().filter(|_| plan.holder_named), plan.conflict_exit);
    failure.print(plan.json);
    failure.exit
}
