//! Acquisition and release of the locks, through the client library.

use std::pin::pin;
use std::time::Duration;

use leasehold::model::{Conflict, LockName, Member, Mode, Process};
use leasehold::store::{self, Hosts};
use leasehold::{BootInstant, Error, Guard, GuardStatus, Leasehold, LockBuilder};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::events::{Event, Events};
use crate::connect::{Deadline, connect, timeout_error};
use crate::exit;
use crate::output::conflict_failure;
use crate::run::environment::run_variables;
use crate::run::link::Message;
use crate::run::plan::{RunContext, RunPlan, WaitTimeout};
use crate::run::status::status;

/// Locks of this run, held.
pub(super) struct Lease<'a> {
    plan: &'a RunPlan,
    guard: Guard,
    pub(super) status: watch::Receiver<GuardStatus>,
    /// Kept because dropping it ends the library's threads.
    leasehold: Leasehold,
}

pub(super) const STOP_SIGNALS: [i32; 4] =
    [Signal::SIGINT as i32, Signal::SIGTERM as i32, Signal::SIGHUP as i32, Signal::SIGQUIT as i32];

/// Waiting time after which the holder of the lock is reported.
const REPORT_WAIT_AFTER: Duration = Duration::from_millis(500);
/// Maximum time before the exit for leaving the queue, or for releasing the rest of lost locks.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Same as [`CLOSE_TIMEOUT`] if the store is not responding.
const CLOSE_TIMEOUT_UNREACHABLE: Duration = Duration::from_millis(250);
/// Maximum time for the release before the exit.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

impl<'a> Lease<'a> {
    /// Acquires the locks within the timeout of the plan. On failure reports the reason and returns
    /// the exit code.
    pub(super) async fn acquire(
        context: &RunContext<'a>,
        command: Pid,
        events: &mut Events,
    ) -> Result<Self, i32> {
        let plan = context.plan;
        let deadline = Deadline::new(plan.wait_timeout);
        let on_first_error = |error: &Error| {
            if !plan.quiet {
                status!("{error}; trying again");
            }
        };
        let leasehold = tokio::select! {
            biased;
            code = cancelled(events) => return Err(code),
            leasehold = connect(&plan.store_url, deadline, on_first_error) => leasehold.map_err(|error| report_failure(plan, &error))?,
        };
        let (waits, waiting) = watch::channel(None);
        let acquired = {
            let request = lock_builder(context, &leasehold, command, deadline.remaining());
            let request = request.on_wait(move |lock, conflict| {
                waits.send_replace(Some((lock.clone(), conflict.clone())));
            });
            let mut acquire = pin!(request.acquire());
            let mut report = pin!(report_wait(plan, waiting));
            tokio::select! {
                biased;
                code = cancelled(events) => Err((code, CLOSE_TIMEOUT)),
                guard = &mut acquire => guard.map_err(|error| {
                    let unreachable = exit::of(&error) == exit::UNAVAILABLE;
                    (report_failure(plan, &error), if unreachable { CLOSE_TIMEOUT_UNREACHABLE } else { CLOSE_TIMEOUT })
                }),
                () = &mut report => Err((exit::INTERNAL, CLOSE_TIMEOUT)),
            }
        };
        match acquired {
            Ok(guard) => {
                let status = guard.watch();
                Ok(Self { plan, guard, status, leasehold })
            }
            Err((code, close_timeout)) => {
                // The request withdraws itself in the background.
                let _ = timeout(close_timeout, leasehold.close()).await;
                Err(code)
            }
        }
    }

    pub(super) fn loss(&self) -> Option<Error> {
        self.guard.loss()
    }

    pub(super) fn variables(&self) -> Vec<u8> {
        let RunPlan { store_url, locks, .. } = self.plan;
        let leases = self.guard.leases();
        let first = leases.iter().find(|(name, _)| locks.first() == Some(name));
        first.map(|(name, lease)| run_variables(store_url, locks, name, lease)).unwrap_or_default()
    }

    /// Releases the locks. Fails if they were lost or if the store does not confirm in time.
    pub(super) async fn release(self) -> Result<(), Error> {
        let left = self.status.borrow().valid_until.after(BootInstant::now()).min(RELEASE_TIMEOUT);
        let lost = self.loss().is_some();
        let released = async {
            match self.plan.at_least {
                Some(at_least) => self.guard.release_at_least(at_least.as_duration()).await,
                None => self.guard.release().await,
            }
        };
        let released = timeout(left, released).await.unwrap_or_else(|_| Err(timeout_error()));
        if lost {
            // The rest of several locks is released in the background: no process of the command is
            // alive any more.
            let _ = timeout(CLOSE_TIMEOUT, self.leasehold.close()).await;
        }
        released
    }
}

/// Resolves to an exit code when SUPERVISOR cancels the run or has exited.
async fn cancelled(events: &mut Events) -> i32 {
    loop {
        match events.next_message().await {
            Event::Supervisor(Message::Signal(signal)) if STOP_SIGNALS.contains(&signal) => {
                return exit::SIGNAL_BASE + signal;
            }
            Event::SupervisorGone => return exit::INTERNAL,
            _ => {}
        }
    }
}

fn lock_builder(
    context: &RunContext<'_>,
    leasehold: &Leasehold,
    command: Pid,
    timeout: WaitTimeout,
) -> LockBuilder {
    let plan = context.plan;
    let [first, others @ ..] = plan.locks.as_slice() else { return leasehold.lock("") };
    let builder = others.iter().fold(leasehold.lock(first), LockBuilder::and);
    let mut builder = builder
        .ttl(plan.ttl.as_duration())
        .renew_at(plan.renew_at)
        .slots(plan.slots.get())
        .priority(plan.priority.get())
        .holder(&plan.holder)
        .strategy(timeout.strategy());
    if plan.mode == Mode::Shared {
        builder = builder.shared();
    }
    if let Some(after) = plan.steal_stale {
        builder = builder.steal_stale(after.as_duration());
    }
    if let Some(reason) = &plan.reason {
        builder = builder.reason(reason.as_str());
    }
    if let Some(process) = processes(context, leasehold, command) {
        builder = builder.process(Some(process));
    }
    plan.metadata.iter().fold(builder, |builder, (key, value)| builder.meta(key, value))
}

/// Returns all processes behind the lease: as long as one of them is alive it may still be killing
/// the others, and no process on this machine may take the lock over before the lease expires.
fn processes(context: &RunContext<'_>, leasehold: &Leasehold, command: Pid) -> Option<Process> {
    if leasehold.capabilities().hosts != Hosts::OneMachine {
        return None;
    }
    let member = |pid: Pid| store::process_identity(u32::try_from(pid.as_raw()).ok()?);
    let mut process = store::this_process()?;
    process.members.push(member(context.supervisor)?);
    process.members.push(member(getppid())?); // WATCHDOG
    process.members.push(Member { group: true, ..member(command)? });
    Some(process)
}

/// Lock that is waited for, and its conflict.
type Waiting = watch::Receiver<Option<(LockName, Conflict)>>;

/// Reports once for each lock its holder, if the wait takes longer than [`REPORT_WAIT_AFTER`]. Never returns.
async fn report_wait(plan: &RunPlan, mut waiting: Waiting) {
    let mut reported = Vec::new();
    sleep(REPORT_WAIT_AFTER).await;
    if plan.quiet {
        return std::future::pending().await;
    }
    loop {
        let current = waiting.borrow_and_update().clone();
        if let Some((lock, conflict)) = current
            && !reported.contains(&lock)
            && let Some(held) = conflict.holders.first()
        {
            status!("waiting for lock '{lock}', held by {} until {}", held.holder, held.until);
            reported.push(lock);
        }
        if waiting.changed().await.is_err() {
            break;
        }
    }
    std::future::pending::<()>().await;
}

/// Reports why the locks cannot be acquired. Returns the exit code.
fn report_failure(plan: &RunPlan, error: &Error) -> i32 {
    let named = plan.holder_is_explicit.then_some(&plan.holder);
    let failure = conflict_failure(error.clone(), named, plan.conflict_exit);
    failure.print(plan.json);
    failure.exit
}
