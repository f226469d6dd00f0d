//! `locks acquire`: acquires a lease that is not tied to a process, for work that continues where
//! no guard can run.

use std::time::Duration;

use leasehold::client::HolderStatus;
use leasehold::model::{Lease, LeaseId, LockName, Mode, Status};
use leasehold::{Error, Guard, Leasehold, LockBuilder, Strategy};
use tokio::signal::unix::{SignalKind, signal};

use super::dispatch::{Desk, Done};
use super::request::Request;
use crate::cli::{AcquireArgs, AskArgs};
use crate::connect::Deadline;
use crate::exit;
use crate::identity::{self, Seen, is_mine};
use crate::output::{Failure, Leases, refusal, shell_word, visible};
use crate::run::Patience;

/// Maximum time before the exit for withdrawing what a request left in the store.
const LEAVING: Duration = Duration::from_secs(2);
/// Same as [`LEAVING`] if the store is not responding.
const LEAVING_SILENCE: Duration = Duration::from_millis(250);

pub(super) async fn acquire(desk: &Desk, args: AcquireArgs) -> Done {
    let AcquireArgs { name, ask, lease_id, reentrant } = args;
    let typed = std::iter::once("leasehold".into()).chain(std::env::args_os().skip(1));
    let request = Request::new(name, &ask, &typed.collect::<Vec<_>>())?;
    let (deadline, which) = (Deadline::new(ask.wait), Which { lease_id, reentrant });
    let leasehold = tokio::select! {
        leasehold = desk.open_lasting_within("a lease", deadline) => leasehold?,
        signal = stopped() => return signal.map(|signal| exit::SIGNAL_BASE + signal),
    };
    let done = tokio::select! {
        guard = take(&leasehold, &request, &ask, &which, deadline) => match guard {
            Ok(guard) => hand_over(desk, &leasehold, &request, guard).await,
            Err(error) => Err(refusal(error, ask.holder.as_ref(), ask.conflict_exit_code)),
        },
        signal = stopped() => signal.map(|signal| exit::SIGNAL_BASE + signal),
    };
    // Withdraw what a failed request left in the store before the exit, if the store responds.
    let away = done.as_ref().is_err_and(|failure| failure.exit == exit::UNAVAILABLE);
    let leaving = if away { LEAVING_SILENCE } else { LEAVING };
    let _ = tokio::time::timeout(leaving, leasehold.close()).await;
    done
}

/// Lease that the caller refers to.
struct Which {
    /// Id of an existing lease, or the id for a new one.
    lease_id: Option<LeaseId>,
    /// Whether to use a lease that the same holder has already, if there is one.
    reentrant: bool,
}

/// Requests the locks, and waits if the caller wants to. Inside a `leasehold run` the first request
/// does not wait: the requested lock might be held by that run itself, and the wait would never
/// end. Neither does the first request of a caller that may hold the lock already.
async fn take(
    leasehold: &Leasehold,
    request: &Request,
    ask: &AskArgs,
    which: &Which,
    deadline: Deadline,
) -> Result<Guard, Error> {
    let wanted = |patience| {
        let builder = builder(leasehold, request, ask, patience);
        match which.lease_id {
            Some(id) => builder.lease_id(id),
            None => builder,
        }
    };
    if which.reentrant {
        match wanted(Patience::FailFast).acquire().await {
            Err(Error::Conflict { lock, .. }) => {
                if let Some(id) = held_by_caller(leasehold, &lock, request).await? {
                    // The same id returns the same lease and token.
                    return wanted(Patience::FailFast).lease_id(id).acquire().await;
                }
            }
            done => return done,
        }
    }
    if ask.wait != Patience::FailFast && identity::is_inside_run() {
        match wanted(Patience::FailFast).acquire().await {
            Err(Error::Conflict { lock, conflict, .. })
                if !conflict.holders.iter().any(|held| {
                    is_mine(Seen { lock: &lock, holder: &held.holder, token: held.token }, None)
                }) => {}
            Err(error) if error.is_retryable() && !matches!(error, Error::Conflict { .. }) => {}
            done => return done,
        }
    }
    wanted(deadline.left()).acquire().await
}

/// Returns the lease that a holder with the caller's name has.
async fn held_by_caller(
    leasehold: &Leasehold,
    lock: &LockName,
    request: &Request,
) -> Result<Option<LeaseId>, Error> {
    let status = leasehold.status(lock).await?;
    let is_ours = |held: &&HolderStatus| {
        held.holder == request.holder && !held.stale && held.status != Status::Released
    };
    Ok(status.holders.iter().find(is_ours).map(|held| held.lease_id))
}

/// Prints the leases and leaves them held. If they cannot be printed they are released: a lease
/// that no caller knows of would only keep other holders out.
async fn hand_over(desk: &Desk, leasehold: &Leasehold, request: &Request, guard: Guard) -> Done {
    let held = guard.detach();
    let told = tell(desk, &request.locks, &held);
    if told.is_err() {
        for (lock, lease) in &held {
            leasehold.release(lock, lease.ask.lease_id, lease.token).await?;
        }
    }
    told
}

/// Resolves to the signal that ends this process. The request is then dropped and withdraws itself:
/// no ticket stays in the queue.
async fn stopped() -> Result<i32, Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::internal)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::internal)?;
    let kind = tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
        _ = hangup.recv() => SignalKind::hangup(),
    };
    Ok(kind.as_raw_value())
}

fn builder(leasehold: &Leasehold, request: &Request, ask: &AskArgs, patience: Patience) -> LockBuilder {
    let (first, rest) = request.locks.split_first().expect("a request has at least one lock");
    let mut builder = leasehold.lock(first);
    for lock in rest {
        builder = builder.and(lock);
    }
    builder = builder
        .ttl(request.ttl.as_duration())
        .strategy(match patience {
            Patience::FailFast => Strategy::FailFast,
            Patience::For(patience) => Strategy::Wait(Some(patience)),
            Patience::Forever => Strategy::Wait(None),
        })
        .priority(ask.priority().get())
        .slots(ask.slots().get())
        .holder(&request.holder)
        .process(None);
    if ask.mode() == Mode::Shared {
        builder = builder.shared();
    }
    if let Some(after) = ask.steal_stale {
        builder = builder.steal_stale(after.as_duration());
    }
    for (key, value) in &request.facts {
        builder = builder.meta(key, value);
    }
    match &ask.reason {
        Some(reason) => builder.reason(reason.as_str()),
        None => builder,
    }
}

fn tell(desk: &Desk, locks: &[LockName], held: &[(LockName, Lease)]) -> Done {
    let leases = Leases::new(locks, held).ok_or_else(|| Failure::internal("no lease was granted"))?;
    desk.printer.done(&leases, |_| leases.text())?;
    for lease in leases.iter() {
        if let Some(taken) = &lease.taken {
            let (lock, taken) = (visible(&lease.name), visible(taken));
            desk.printer.say(format_args!("leasehold: lock '{lock}': {taken}"));
        }
        let (program, name) = (desk.program(), shell_word(&lease.name));
        let with = format!("{name} --lease-id {} --token {}", lease.lease_id, lease.token);
        desk.printer.advise(format_args!("renew it with: {program} locks renew {with}"));
        desk.printer.advise(format_args!("release it with: {program} locks release {with}"));
    }
    Ok(exit::SUCCESS)
}
