//! Operations that end a lease, or request its end, when a response was lost. It is unknown whether
//! the store executed such an operation: this file sends it again, or reads the lock, until the
//! result for the caller is known.
//!
//! A store does not resend these operations by itself once it may have begun them: the second
//! response would be `NotHeld`, and only the caller of the first attempt knows that the first
//! attempt may have been executed.

use std::time::Duration;

use crate::error::Result;
use crate::model::{
    Event, EventKind, ForceRelease, Lease, LeaseId, Leave, LockName, LockOp, NotHeld, Outcome, Release,
    RequestRelease, Status, Token,
};
use crate::store::{BootInstant, EventRange, ListEvents, LockStore};

/// Maximum time for which an operation is sent again if no lease limits it.
pub(super) const RETRIES: Duration = Duration::from_secs(5);
/// Initial and maximum pause after a failed attempt.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Number of the newest events of a lock that are read to find out how a lease ended.
const EVENTS: u32 = 50;

/// Result of a release.
#[derive(Debug)]
pub(super) enum Released {
    /// The lease has been released; by an earlier attempt if the value is `None`.
    Yes(Option<Lease>),
    /// The lease had already ended in another way.
    Ended(NotHeld),
}

/// Releases a lease. Sends the operation again until `until` if responses are lost.
pub(super) async fn release(
    locks: &dyn LockStore,
    name: &LockName,
    release: &Release,
    until: BootInstant,
) -> Result<Released> {
    let sent = send(locks, name, &LockOp::Release(release.clone()), until).await?;
    match sent.outcome {
        Outcome::Released(lease) => Ok(Released::Yes(Some(lease))),
        Outcome::NotHeld(now) if sent.in_doubt => {
            // If the history does not reach back that far, an earlier attempt is the likely reason.
            let end = end_of(locks, name, release.lease_id, release.token).await;
            let ours = end.is_none_or(|event| event.kind == EventKind::Released);
            Ok(if ours { Released::Yes(None) } else { Released::Ended(now) })
        }
        Outcome::NotHeld(now) => Ok(Released::Ended(now)),
        other => Err(super::leasehold::unexpected(name, other)),
    }
}

/// Ends the lease with that token by force. Returns `None` if the lease has ended since an earlier
/// attempt whose response was lost.
pub(super) async fn force_release(
    locks: &dyn LockStore,
    name: &LockName,
    force: ForceRelease,
) -> Result<Option<Lease>> {
    let until = BootInstant::now().plus(RETRIES);
    let sent = send(locks, name, &LockOp::ForceRelease(force), until).await?;
    match sent.outcome {
        Outcome::Forced(lease) => Ok(Some(lease)),
        Outcome::NotHeld(_) if sent.in_doubt => Ok(None),
        other => Err(super::leasehold::unexpected(name, other)),
    }
}

/// Requests the release from the holders and returns their number. Returns zero if an earlier
/// attempt may have reached holders that have released since.
pub(super) async fn ask_release(locks: &dyn LockStore, name: &LockName, ask: RequestRelease) -> Result<u32> {
    let until = BootInstant::now().plus(RETRIES);
    let sent = send(locks, name, &LockOp::RequestRelease(ask), until).await?;
    match sent.outcome {
        Outcome::Asked(count) => Ok(count),
        Outcome::NotHeld(_) if sent.in_doubt => Ok(0),
        other => Err(super::leasehold::unexpected(name, other)),
    }
}

/// Withdraws a request, whether queued or granted. Idempotent.
pub(super) async fn leave(locks: &dyn LockStore, name: &LockName, lease_id: LeaseId) -> Result<()> {
    let until = BootInstant::now().plus(RETRIES);
    send(locks, name, &LockOp::Leave(Leave { lease_id }), until).await.map(drop)
}

/// Applies an operation for a caller that does not need to know whether this or an earlier attempt
/// was executed.
pub(super) async fn settle(locks: &dyn LockStore, name: &LockName, op: &LockOp) -> Result<Outcome> {
    Ok(send(locks, name, op, BootInstant::now().plus(RETRIES)).await?.outcome)
}

/// Response, and whether an earlier attempt may have been executed.
struct Sent {
    outcome: Outcome,
    in_doubt: bool,
}

async fn send(locks: &dyn LockStore, name: &LockName, op: &LockOp, until: BootInstant) -> Result<Sent> {
    let mut error = match locks.apply(name, op).await {
        Ok(outcome) => return Ok(Sent { outcome, in_doubt: false }),
        Err(error) => error,
    };
    let mut pause = PAUSE.0;
    loop {
        let left = until.after(BootInstant::now());
        if !error.is_retryable() || left.is_zero() {
            return Err(error);
        }
        let refused = error.retry_after().unwrap_or_default();
        if refused >= left {
            return Err(error); // The store accepts no request before the deadline.
        }
        tracing::debug!(lock = %name, %error, "the answer of the store was lost; asking again");
        tokio::time::sleep(pause.max(refused).min(left)).await;
        pause = (pause * 2).min(PAUSE.1);
        let again = async {
            if let LockOp::RequestRelease(ask) = op
                && let Some(count) = asked_already(locks, name, ask).await?
            {
                return Ok(Outcome::Asked(count));
            }
            locks.apply(name, op).await
        };
        match tokio::time::timeout(until.after(BootInstant::now()), again).await {
            Ok(Ok(outcome)) => return Ok(Sent { outcome, in_doubt: true }),
            Ok(Err(next)) => error = next,
            Err(_) => return Err(error),
        }
    }
}

/// Returns the number of holders that this caller has already asked to release; `None` unless all
/// holders that the request addresses have been asked.
async fn asked_already(locks: &dyn LockStore, name: &LockName, ask: &RequestRelease) -> Result<Option<u32>> {
    let Some(record) = locks.get(name).await? else { return Ok(None) };
    let now = locks.now().await?;
    let meant = |lease: &&Lease| ask.token.is_none_or(|token| token == lease.token);
    let asked = |lease: &Lease| {
        lease.asked.as_ref().is_some_and(|asked| asked.by == ask.by && asked.reason == ask.reason)
    };
    let (mut count, mut all) = (0, true);
    for lease in record.live(now).filter(meant).filter(|lease| lease.status != Status::Released) {
        count += 1;
        all &= asked(lease);
    }
    Ok((count > 0 && all).then_some(count))
}

/// Returns a message that describes how a lease ended, if the history still contains the event.
pub(super) async fn why_it_ended(
    locks: &dyn LockStore,
    name: &LockName,
    lease_id: LeaseId,
    token: Token,
) -> Option<String> {
    let event = end_of(locks, name, lease_id, token).await?;
    let reason = event.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    Some(match event.kind {
        EventKind::Forced => {
            let by = event.by.map_or("another client".to_owned(), |by| by.to_string());
            format!("{by} took it by force{reason}")
        }
        EventKind::Stolen => "another client took it, as it had not been renewed for long enough".to_owned(),
        EventKind::Expired => format!("it expired before it was released{reason}"),
        _ => "it had been released already, by its id and token".to_owned(),
    })
}

/// Returns the event that ended a lease.
async fn end_of(locks: &dyn LockStore, name: &LockName, lease_id: LeaseId, token: Token) -> Option<Event> {
    let ask = ListEvents { lock: Some(name.clone()), span: EventRange::Newest, limit: EVENTS };
    let events = locks.history(&ask).await.ok()?.items;
    let ends = |kind| {
        matches!(kind, EventKind::Released | EventKind::Expired | EventKind::Stolen | EventKind::Forced)
    };
    events.into_iter().find(|event| ends(event.kind) && event.lease_id == lease_id && event.token == token)
}
