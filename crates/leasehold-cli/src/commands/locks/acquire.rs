//! `locks acquire`: acquires a lease that is not tied to a process, for work that continues where
//! no guard can run; and `locks wait`.

use std::sync::Arc;
use std::time::Duration;

use leasehold::client::HolderStatus;
use leasehold::model::{Conflict, Lease, LeaseId, LeaseStatus, LockName, Mode, lock_command};
use leasehold::{BootInstant, Error, Guard, Leasehold, LockBuilder, LockStatus};
use tokio::sync::watch;

use super::queries::is_held;
use crate::cli::{AcquireArgs, LockOptions, WaitArgs, WaitFor};
use crate::commands::context::{CommandContext, CommandResult};
use crate::commands::run::Request;
use crate::connect::{Deadline, timeout_error};
use crate::exit;
use crate::identity::{is_inside_run, is_own_lease};
use crate::output::{Failure, Leases, conflict_failure, short, visible};
use crate::run::{WaitTimeout, enclosing_leases};
use crate::wait::{OwnTicket, WaitDisplay, WaitState, report_lock_wait};
use crate::work::StopSignals;

/// Maximum time before the exit for withdrawing what a request left in the store.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Same as [`CLOSE_TIMEOUT`] if the store is not responding.
const CLOSE_TIMEOUT_UNREACHABLE: Duration = Duration::from_millis(250);

pub(in crate::commands) async fn acquire(context: &CommandContext, args: &AcquireArgs) -> CommandResult {
    let command_line = std::iter::once("leasehold".into()).chain(std::env::args_os().skip(1));
    let options = &args.options;
    let mut request = Request::new(args.name.clone(), options, &command_line.collect::<Vec<_>>())?;
    request.within = enclosing_leases(&context.store.absolute());
    let deadline = Deadline::new(options.wait);
    // The request is dropped at a signal and withdraws itself: no ticket stays in the queue.
    let mut signals = StopSignals::listen().map_err(Failure::internal)?;
    let leasehold = tokio::select! {
        leasehold = context.open_persistent_within("a lease", deadline) => leasehold?,
        signal = signals.next() => return Ok(exit::SIGNAL_BASE + signal),
    };
    let result = tokio::select! {
        guard = acquire_visibly(context, &leasehold, &request, args, deadline) => match guard {
            Ok(guard) => print_and_detach(context, &leasehold, &request, guard).await,
            Err(error) => Err(conflict_failure(error, options.holder.as_ref(), options.conflict_exit_code)),
        },
        signal = signals.next() => Ok(exit::SIGNAL_BASE + signal),
    };
    // Withdraw what a failed request left in the store before the exit, if the store responds.
    let unreachable = result.as_ref().is_err_and(|failure| failure.exit == exit::UNAVAILABLE);
    let close_timeout = if unreachable { CLOSE_TIMEOUT_UNREACHABLE } else { CLOSE_TIMEOUT };
    let _ = tokio::time::timeout(close_timeout, leasehold.close()).await;
    result
}

/// Requests the locks as [`acquire_guard`] does, and shows the wait.
async fn acquire_visibly(
    context: &CommandContext,
    leasehold: &Leasehold,
    request: &Request,
    args: &AcquireArgs,
    deadline: Deadline,
) -> Result<Guard, Error> {
    let (waits, waiting) = watch::channel(None);
    let mut display = WaitDisplay::of_command(context.printer).min_interval(leasehold.capabilities().poll);
    let own = OwnTicket { holder: request.holder.clone(), pid: None };
    let guard = tokio::select! {
        guard = acquire_guard(leasehold, request, args, deadline, waits) => guard?,
        () = report_lock_wait(leasehold, waiting, &own, &mut display) => return Err(timeout_error("respond")),
    };
    // A lease that was granted to a ticket is shorter than its TTL, and no one extends it after this command.
    guard.confirm().await?;
    display.finish(&format!("acquired lock '{}'", args.name));
    Ok(guard)
}

/// Requests the locks, and waits if the caller wants to. Inside a `leasehold run` the first request
/// does not wait: the requested lock might be held by that run itself, and the wait would never
/// end. Neither does the first request of a caller that may hold the lock already.
async fn acquire_guard(
    leasehold: &Leasehold,
    request: &Request,
    args: &AcquireArgs,
    deadline: Deadline,
    waits: watch::Sender<Option<(LockName, Conflict)>>,
) -> Result<Guard, Error> {
    let waits = Arc::new(waits);
    let builder = |timeout| {
        let waits = waits.clone();
        let builder = lock_builder(leasehold, request, &args.options, timeout);
        let builder = builder.on_wait(move |lock, conflict| {
            waits.send_replace(Some((lock.clone(), conflict.clone())));
        });
        match args.lease_id {
            Some(id) => builder.lease_id(id),
            None => builder,
        }
    };
    if args.reentrant {
        match builder(WaitTimeout::FailFast).acquire().await {
            Err(Error::Conflict { lock, .. }) => {
                if let Some(id) = held_by_caller(leasehold, &lock, request).await? {
                    // The same id returns the same lease and token.
                    return builder(WaitTimeout::FailFast).lease_id(id).acquire().await;
                }
            }
            done => return done,
        }
    }
    if args.options.wait != WaitTimeout::FailFast && is_inside_run() {
        match builder(WaitTimeout::FailFast).acquire().await {
            Err(Error::Conflict { lock, conflict, .. })
                if !conflict
                    .holders
                    .iter()
                    .any(|held| is_own_lease(&lock, &held.holder, held.token, None)) => {}
            Err(error) if error.is_retryable() && !matches!(error, Error::Conflict { .. }) => {}
            done => return done,
        }
    }
    builder(deadline.remaining()).acquire().await
}

async fn held_by_caller(
    leasehold: &Leasehold,
    lock: &LockName,
    request: &Request,
) -> Result<Option<LeaseId>, Error> {
    let status = leasehold.locks().status(lock).await?;
    let is_ours = |held: &&HolderStatus| {
        held.holder == request.holder && !held.stale && held.status != LeaseStatus::Released
    };
    Ok(status.holders.iter().find(is_ours).map(|held| held.lease_id))
}

/// Prints the leases and leaves them held. If they cannot be printed they are released: a lease
/// that no caller knows of would only keep other holders out.
async fn print_and_detach(
    context: &CommandContext,
    leasehold: &Leasehold,
    request: &Request,
    guard: Guard,
) -> CommandResult {
    let held = guard.detach();
    let Err(failure) = print_leases(context, &request.locks, &held) else { return Ok(exit::SUCCESS) };
    for (lock, lease) in &held {
        leasehold.locks().release(lock, lease.request.lease_id, lease.token).await?;
    }
    // Also if the reader of the output has closed it: the caller must not believe that it holds the lock.
    Err(failure.exit_with(exit::FAILURE).printed().hint("the lock was released"))
}

fn lock_builder(
    leasehold: &Leasehold,
    request: &Request,
    options: &LockOptions,
    timeout: WaitTimeout,
) -> LockBuilder {
    let (first, rest) = request.locks.split_first().expect("a request has at least one lock");
    let builder = rest.iter().fold(leasehold.lock(first), LockBuilder::and);
    let mut builder = builder
        .ttl(request.ttl.as_duration())
        .strategy(timeout.strategy())
        .priority(options.priority().get())
        .slots(options.slots().get())
        .holder(&request.holder)
        .process(None);
    if options.mode() == Mode::Shared {
        builder = builder.shared();
    }
    if let Some(after) = options.steal_stale {
        builder = builder.steal_stale(after.as_duration());
    }
    if let Some(reason) = &options.reason {
        builder = builder.reason(reason.as_str());
    }
    if options.check_deadlock {
        builder = builder.check_deadlock();
    }
    builder = builder.within(request.within.iter().copied());
    request.metadata.iter().fold(builder, |builder, (key, value)| builder.meta(key, value))
}

fn print_leases(context: &CommandContext, locks: &[LockName], held: &[(LockName, Lease)]) -> CommandResult {
    let leases = Leases::new(locks, held).ok_or_else(|| Failure::internal("no lease was granted"))?;
    context.printer.success(&leases, |_| leases.text())?;
    for lease in leases.iter() {
        if let Some(taken) = &lease.taken {
            let (lock, taken) = (visible(&lease.name), visible(taken));
            context.printer.message(format_args!("leasehold: lock '{lock}': {taken}"));
        }
        let with = format!("--lease-id {} --token {}", lease.lease_id, lease.token);
        for verb in ["renew", "release"] {
            let command = format!("{} locks {verb}", context.program());
            let command = lock_command(&command, &lease.name, &with);
            context.printer.advise(format_args!("{verb} it with: {command}"));
        }
    }
    Ok(exit::SUCCESS)
}

/// Interval at which a lock is read; the poll interval of the store if that is longer.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(in crate::commands) async fn wait(context: &CommandContext, args: &WaitArgs) -> CommandResult {
    let started = BootInstant::now();
    let deadline = args.timeout.map(|timeout| started.plus(timeout));
    let retry_deadline = Deadline::new(args.timeout.map_or(WaitTimeout::Forever, WaitTimeout::For));
    let leasehold = context.open_within(retry_deadline).await?;
    let interval = POLL_INTERVAL.max(leasehold.capabilities().poll);
    let mut failed = 0;
    let mut display = WaitDisplay::of_command(context.printer).min_interval(interval);
    loop {
        let status = match leasehold.locks().status(&args.name).await {
            Ok(status) => status,
            Err(error) => {
                let Some(pause) = retry_deadline.retry_delay(&error, failed) else {
                    return Err(error.into());
                };
                if failed == 0 {
                    context.printer.message(format_args!("{error}; trying again"));
                }
                failed += 1;
                tokio::time::sleep(pause).await;
                continue;
            }
        };
        failed = 0;
        if is_held(&status) == (args.target == WaitFor::Held) {
            display.clear();
            return context.printer.success(&status, |_| format!("'{}' is {}\n", args.name, state(&status)));
        }
        let left = deadline.map_or(interval, |deadline| deadline.after(BootInstant::now()));
        if left.is_zero() {
            display.clear();
            let waited = short(BootInstant::now().after(started));
            let message = format!("lock '{}' is still {} (waited {waited})", args.name, state(&status));
            return Err(
                Failure::new(exit::NOT_ACQUIRED, "TIMEOUT", message).hint("give it longer with --timeout")
            );
        }
        let state = WaitState::of_lock(&status, |_| false);
        if display.is_due() || display.is_news(&state.grant) {
            display.show(&wanted(state, args));
        }
        tokio::time::sleep(interval.min(left)).await;
    }
}

/// Returns the state with the name of what the caller waits for.
fn wanted(state: WaitState, args: &WaitArgs) -> WaitState {
    match args.target {
        WaitFor::Free => state,
        // A free lock has no holder to show; the wait is shown all the same.
        WaitFor::Held => WaitState { what: format!("a holder of lock '{}'", args.name), ..state },
    }
}

fn state(status: &LockStatus) -> String {
    match (&status.holder, status.expires_at) {
        (Some(holder), Some(until)) if is_held(status) => format!("held by {holder} until {until}"),
        _ => "free".to_owned(),
    }
}
