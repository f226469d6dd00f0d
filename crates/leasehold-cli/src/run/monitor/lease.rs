//! Acquisition and release of the locks, through the client library.

use std::pin::pin;
use std::time::Duration;

use leasehold::model::{EventKind, Member, Mode, Process};
use leasehold::store::{self, Hosts, ListEvents};
use leasehold::{BootInstant, Error, Guard, GuardStatus, Leasehold, LockBuilder};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid, tcgetpgrp};
use tokio::sync::watch;
use tokio::time::timeout;

use super::events::{Event, Events};
use crate::connect::{Deadline, connect, timeout_error};
use crate::exit;
use crate::output::{conflict_failure, short};
use crate::run::environment::{enclosing_leases, enclosing_lock, run_variables};
use crate::run::link::Message;
use crate::run::plan::{RunContext, RunPlan, WaitTimeout};
use crate::run::pre_exec::PreExecChild;
use crate::run::status::{status, write_status};
use crate::run::timing::RELEASE_TIMEOUT;
use crate::wait::{OwnTicket, WaitDisplay, WriteLine, can_draw, report_lock_wait};

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

/// Maximum time before the exit for leaving the queue, or for releasing the rest of lost locks.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Same as [`CLOSE_TIMEOUT`] if the store is not responding.
const CLOSE_TIMEOUT_UNREACHABLE: Duration = Duration::from_millis(250);
/// Maximum time for reading who ended a lost lease, and number of events among which that is searched.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(1);
const SEARCHED_EVENTS: u32 = 20;

impl<'a> Lease<'a> {
    /// Acquires the locks within the timeout of the plan. On failure reports the reason and returns
    /// the exit code.
    pub(super) async fn acquire(
        context: &RunContext<'a>,
        child: &PreExecChild,
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
        let mut display = wait_display(context).min_interval(leasehold.capabilities().poll);
        let acquired = {
            let request = lock_builder(context, &leasehold, child, deadline.remaining());
            let request = request.on_wait(move |lock, conflict| {
                waits.send_replace(Some((lock.clone(), conflict.clone())));
            });
            let own = OwnTicket { holder: plan.holder.clone(), pid: plan.pid() };
            let mut acquire = pin!(request.acquire());
            let mut report = pin!(report_lock_wait(&leasehold, waiting, &own, &mut display));
            tokio::select! {
                biased;
                code = cancelled(events) => Err(Ok(code)),
                guard = &mut acquire => guard.map_err(Err),
                () = &mut report => Err(Ok(exit::INTERNAL)),
            }
        };
        let (code, close_timeout) = match acquired {
            Ok(guard) => {
                display.finish(&format!("acquired {}", names(plan)));
                let status = guard.watch();
                return Ok(Self { plan, guard, status, leasehold });
            }
            Err(Ok(code)) => (code, CLOSE_TIMEOUT),
            Err(Err(error)) => {
                display.clear();
                let unreachable = exit::of(&error) == exit::UNAVAILABLE;
                let close_timeout = if unreachable { CLOSE_TIMEOUT_UNREACHABLE } else { CLOSE_TIMEOUT };
                (report_failure(plan, &error), close_timeout)
            }
        };
        drop(display);
        // The request withdraws itself in the background.
        let _ = timeout(close_timeout, leasehold.close()).await;
        Err(code)
    }

    /// Returns how often each of the leases has been renewed at least.
    pub(super) fn renewals(&self) -> u64 {
        self.guard.leases().iter().map(|(_, lease)| lease.renewals).min().unwrap_or_default()
    }

    pub(super) fn loss(&self) -> Option<Error> {
        self.guard.loss()
    }

    /// Reports who ended a lost lease, and why, if the history of the store has it. Called when no process of
    /// the command is alive.
    pub(super) async fn explain_loss(&self) {
        let ids: Vec<_> =
            self.guard.leases().iter().map(|(name, lease)| (name.clone(), lease.request.lease_id)).collect();
        for (name, lease_id) in ids {
            let query = ListEvents::default().lock(name.clone()).limit(SEARCHED_EVENTS);
            let Ok(Ok(page)) = timeout(EXPLAIN_TIMEOUT, self.leasehold.locks().history(&query)).await else {
                return;
            };
            let ends = |kind| matches!(kind, EventKind::Forced | EventKind::Stolen | EventKind::Expired);
            let Some(event) =
                page.items.into_iter().find(|event| event.lease_id == lease_id && ends(event.kind))
            else {
                continue;
            };
            let by = event.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
            let reason = event.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let verb = match event.kind {
                EventKind::Forced => "released by force",
                EventKind::Stolen => "taken over",
                _ => "expired",
            };
            let held = short(Duration::from_secs_f64(event.after_seconds));
            status!("the lease on lock '{name}' was {verb}{by} after {held}{reason}");
        }
    }

    pub(super) fn variables(&self) -> Vec<u8> {
        let RunPlan { store_url, locks, .. } = self.plan;
        let leases = self.guard.leases();
        let first = leases.iter().find(|(name, _)| locks.first() == Some(name));
        let held = self.guard.lease_refs();
        first.map(|(name, lease)| run_variables(store_url, locks, name, lease, &held)).unwrap_or_default()
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
        let released =
            timeout(left, released).await.unwrap_or_else(|_| Err(timeout_error("confirm the release")));
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
            Event::SupervisorExited => return exit::INTERNAL,
            _ => {}
        }
    }
}

fn lock_builder(
    context: &RunContext<'_>,
    leasehold: &Leasehold,
    child: &PreExecChild,
    timeout: WaitTimeout,
) -> LockBuilder {
    let plan = context.plan;
    // A request for a lock of the enclosing run does not wait: another caller in the queue may wait for that run.
    let timeout = if enclosing_lock(plan).is_some() { WaitTimeout::FailFast } else { timeout };
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
    if plan.check_deadlock {
        builder = builder.check_deadlock();
    }
    builder = builder.within(enclosing_leases(&plan.store_url));
    if let Some(process) = processes(context, leasehold, child) {
        builder = builder.process(Some(process));
    }
    plan.metadata.iter().fold(builder, |builder, (key, value)| builder.meta(key, value))
}

/// Returns all processes behind the lease: as long as one of them is alive it may still be killing
/// the others, and no process on this machine may take the lock over before the lease expires.
fn processes(context: &RunContext<'_>, leasehold: &Leasehold, child: &PreExecChild) -> Option<Process> {
    if leasehold.capabilities().hosts != Hosts::OneMachine {
        return None;
    }
    let member = |pid: Pid| store::process_identity(u32::try_from(pid.as_raw()).ok()?);
    let mut process = store::this_process()?;
    process.members.push(member(context.supervisor)?);
    process.members.push(member(getppid())?); // WATCHDOG
    process.members.push(Member { group: true, ..member(child.pid)? });
    // The kernel kills the others of its namespace while it dies, a moment after MONITOR has died.
    if let Some(init) = child.init() {
        process.members.push(member(init)?);
    }
    Some(process)
}

/// Returns the display of the wait. Its live line is drawn only while the job of SUPERVISOR has the terminal.
fn wait_display(context: &RunContext<'_>) -> WaitDisplay {
    let plan = context.plan;
    let write: WriteLine = Box::new(|line| write_status(format_args!("{line}")));
    let (draws, job) = (!plan.json && can_draw(), context.terminal.job());
    WaitDisplay::new((!plan.quiet).then_some(write), move || draws && is_foreground(job))
}

fn is_foreground(job: Pid) -> bool {
    tcgetpgrp(std::io::stderr()).is_ok_and(|group| group == job)
}

fn names(plan: &RunPlan) -> String {
    let names: Vec<_> = plan.locks.iter().map(|lock| format!("'{lock}'")).collect();
    let word = if names.len() == 1 { "lock" } else { "locks" };
    format!("{word} {}", names.join(", "))
}

/// Reports why the locks cannot be acquired. Returns the exit code.
fn report_failure(plan: &RunPlan, error: &Error) -> i32 {
    let named = plan.holder_is_explicit.then_some(&plan.holder);
    let failure = conflict_failure(error.clone(), named, plan.conflict_exit);
    failure.print_if_read(plan.json);
    failure.exit
}
