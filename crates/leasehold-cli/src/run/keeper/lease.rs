//! Getting the locks and giving them back, through the library.

use std::pin::pin;
use std::time::Duration;

use leasehold::model::{Conflict, LockName, Member, Mode, Process};
use leasehold::store::{self, Hosts};
use leasehold::{Error, Guard, Health, Leasehold, LockBuilder, Moment, Strategy};
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

/// The locks of this run, held.
pub(super) struct Lease<'a> {
    plan: &'a RunPlan,
    guard: Guard,
    pub(super) health: watch::Receiver<Health>,
    /// Ends the library's threads when dropped, so it stays.
    leasehold: Leasehold,
}

/// The signals by which somebody says that it is enough.
pub(super) const ENDS: [i32; 4] =
    [Signal::SIGINT as i32, Signal::SIGTERM as i32, Signal::SIGHUP as i32, Signal::SIGQUIT as i32];

/// Whoever waits so long wants to know what for.
const SAY_WHAT_FOR: Duration = Duration::from_millis(500);
/// How long to try to leave the queue, or to release what is left of lost locks, before we exit.
const LEAVING: Duration = Duration::from_secs(2);
/// The same if the store does not answer anyway.
const LEAVING_SILENCE: Duration = Duration::from_millis(250);
/// How long to try to release before we exit.
const RELEASING: Duration = Duration::from_secs(5);

impl<'a> Lease<'a> {
    /// Asks for the locks as long as the plan wants. On failure everything is said, and the exit code is given.
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
                // The request takes itself back in the background.
                let _ = timeout(leaving, leasehold.close()).await;
                Err(code)
            }
        }
    }

    /// Why the locks were lost, if they were.
    pub(super) fn loss(&self) -> Option<Error> {
        self.guard.loss()
    }

    /// What the command is to find in its environment.
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

    /// Gives the locks back. If they were lost, or the store cannot be told in time, the error says so.
    pub(super) async fn release(self) -> Result<(), Error> {
        let left = self.health.borrow().valid_until.after(Moment::now()).min(RELEASING);
        let lost = self.loss().is_some();
        let released = async {
            match self.plan.at_least {
                Some(at_least) => self.guard.release_at_least(at_least.as_duration()).await,
                None => self.guard.release().await,
            }
        };
        let released = timeout(left, released).await.unwrap_or_else(|_| Err(no_answer()));
        if lost {
            // What is left of several locks is released in the background: nothing of the command is alive any more.
            let _ = timeout(LEAVING, self.leasehold.close()).await;
        }
        released
    }
}

/// Ends with an exit code when FRONT does not want the locks any more, or is gone.
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

/// All processes behind the lease: as long as one of them lives it may still be killing the others, and nobody on this
/// machine takes the lock over before its time.
fn processes(job: &Job<'_>, leasehold: &Leasehold, command: Pid) -> Option<Process> {
    if leasehold.abilities().hosts != Hosts::OneMachine {
        return None;
    }
    let member = |pid: Pid| store::member(u32::try_from(pid.as_raw()).ok()?);
    let mut process = store::this_process()?;
    process.members.push(member(job.front)?);
    process.members.push(member(getppid())?); // WATCHDOG
    process.members.push(Member { group: true, ..member(command)? });
    Some(process)
}

/// A lock that is waited for, and what is in the way of it.
type Waiting = watch::Receiver<Option<(LockName, Conflict)>>;

/// Says once for each lock who is in the way, when that takes a while. Never ends.
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

/// Says why the locks are not to be had.
fn refused(plan: &RunPlan, error: &Error) -> i32 {
    let failure =
        refusal(error.clone(), plan.holder.as_ref().filter(|_| plan.holder_named), plan.conflict_exit);
    failure.print(plan.json);
    failure.exit
}
