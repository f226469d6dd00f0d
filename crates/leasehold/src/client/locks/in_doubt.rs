//! Operations that end a lease, or request its end, when a response was lost. It is unknown whether
//! the store executed such an operation: this file sends it again, or reads the lock, until the
//! result for the caller is known.
//!
//! A store does not resend these operations by itself once it may have begun them: the second
//! response would be `NotHeld`, and only the caller of the first attempt knows that the first
//! attempt may have been executed.

use std::time::Duration;

use crate::client::context::{Inner, checked, not_held};
use crate::error::Result;
use crate::model::{
    Event, EventKind, ForceRelease, Holder, Lease, LeaseId, LeaseStatus, LockName, LockOp, NotHeld, Outcome,
    Release, RequestRelease, Token, Withdraw,
};
use crate::store::backoff::ExponentialBackoff;
use crate::store::{BootInstant, EventRange, ListEvents, LockStore};

/// Maximum time for which an operation is sent again if no lease limits it.
pub(in crate::client) const RETRY_FOR: Duration = Duration::from_secs(5);
const RETRY_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// Number of the newest events of a lock that are read to find out how a lease ended.
const SEARCHED_EVENTS: u32 = 50;

/// Lease that an operation has ended, `None` if an earlier attempt ended it; or the current holders
/// if it had already ended in another way.
pub(in crate::client) type Ended = Result<Option<Lease>, NotHeld>;

/// Releases a lease. Sends the operation again until `until` if responses are lost.
pub(in crate::client) async fn release(
    locks: &dyn LockStore,
    name: &LockName,
    release: &Release,
    until: BootInstant,
) -> Result<Ended> {
    let (outcome, in_doubt) = send(locks, name, &LockOp::Release(release.clone()), until).await?;
    Ok(match checked(name, outcome.into_released())? {
        Err(now) if in_doubt => {
            // If the history does not reach back that far, an earlier attempt is the likely reason.
            let end = ending_event(locks, name, release.lease_id, release.token).await;
            let ours = end.is_none_or(|event| event.kind == EventKind::Released);
            if ours { Ok(None) } else { Err(now) }
        }
        released => released.map(Some),
    })
}

/// Ends the lease with that token by force.
pub(in crate::client) async fn force_release(
    locks: &dyn LockStore,
    name: &LockName,
    force: ForceRelease,
) -> Result<Ended> {
    let until = BootInstant::now().plus(RETRY_FOR);
    let (outcome, in_doubt) = send(locks, name, &LockOp::ForceRelease(force), until).await?;
    Ok(match checked(name, outcome.into_forced())? {
        Err(_) if in_doubt => Ok(None),
        forced => forced.map(Some),
    })
}

/// Notifies the holder of the lease that `op` has ended, or may have ended.
pub(in crate::client) async fn notify_holder(
    inner: &Inner,
    name: &LockName,
    op: &LockOp,
    result: &Result<Ended>,
) {
    match result {
        Ok(Ok(Some(lease))) => {
            let is_release = matches!(op, LockOp::Release(_));
            let outcome = if is_release { Outcome::Released } else { Outcome::Forced };
            inner.notify_holders(name, &outcome(lease.clone())).await;
        }
        Ok(Ok(None)) => inner.notify_in_doubt(name, op).await,
        Err(error) if error.is_retryable() => inner.notify_in_doubt(name, op).await,
        Ok(Err(_)) | Err(_) => {}
    }
}

/// Requests the release from the holders and returns their number. Returns zero if an earlier
/// attempt may have reached holders that have released since.
pub(in crate::client) async fn request_release(
    locks: &dyn LockStore,
    name: &LockName,
    request: RequestRelease,
) -> Result<u32> {
    let until = BootInstant::now().plus(RETRY_FOR);
    let (outcome, in_doubt) = send(locks, name, &LockOp::RequestRelease(request), until).await?;
    match checked(name, outcome.into_release_requested())? {
        Err(_) if in_doubt => Ok(0),
        requested => requested.map_err(|now| not_held(name, now)),
    }
}

/// Withdraws a request, whether queued or granted. Idempotent.
pub(super) async fn withdraw(locks: &dyn LockStore, name: &LockName, lease_id: LeaseId) -> Result<()> {
    let until = BootInstant::now().plus(RETRY_FOR);
    send(locks, name, &LockOp::Withdraw(Withdraw { lease_id }), until).await.map(drop)
}

/// Returns the response, and whether an earlier attempt may have been executed.
async fn send(
    locks: &dyn LockStore,
    name: &LockName,
    op: &LockOp,
    until: BootInstant,
) -> Result<(Outcome, bool)> {
    let mut error = match locks.apply(name, op).await {
        Ok(outcome) => return Ok((outcome, false)),
        Err(error) => error,
    };
    let mut backoff = RETRY_BACKOFF;
    loop {
        let left = until.after(BootInstant::now());
        if !error.is_retryable() || left.is_zero() {
            return Err(error);
        }
        let refused_for = error.retry_after().unwrap_or_default();
        if refused_for >= left {
            return Err(error); // The store accepts no request before the deadline.
        }
        tracing::debug!(lock = %name, %error, "the store did not answer; sending the operation again");
        tokio::time::sleep(backoff.next_delay().max(refused_for).min(left)).await;
        let resend = async {
            if let LockOp::RequestRelease(request) = op
                && let Some(count) = count_already_requested(locks, name, request).await?
            {
                return Ok(Outcome::ReleaseRequested(count));
            }
            locks.apply(name, op).await
        };
        match tokio::time::timeout(until.after(BootInstant::now()), resend).await {
            Ok(Ok(outcome)) => return Ok((outcome, true)),
            Ok(Err(next)) => error = next,
            Err(_) => return Err(error),
        }
    }
}

/// Returns the number of holders that this caller has already asked to release; `None` unless all
/// holders that the request addresses have been asked.
async fn count_already_requested(
    locks: &dyn LockStore,
    name: &LockName,
    request: &RequestRelease,
) -> Result<Option<u32>> {
    let Some(record) = locks.get(name).await? else { return Ok(None) };
    let now = locks.now().await?;
    let is_addressed = |lease: &&Lease| request.token.is_none_or(|token| token == lease.token);
    let asked = |lease: &Lease| {
        lease
            .release_request
            .as_ref()
            .is_some_and(|asked| is_recorded_name(&asked.by, &request.by) && asked.reason == request.reason)
    };
    let (mut count, mut all) = (0, true);
    for lease in record.live(now).filter(is_addressed).filter(|lease| lease.status != LeaseStatus::Released) {
        count += 1;
        all &= asked(lease);
    }
    Ok((count > 0 && all).then_some(count))
}

/// Returns whether a store may have recorded this name for a caller that claims the other one. A server writes
/// the name of the caller's API token beside the claimed name, as in `ada via ci`, or the token's name alone if
/// both together are too long.
fn is_recorded_name(recorded: &Holder, claimed: &Holder) -> bool {
    let beside = recorded.as_str().strip_prefix(claimed.as_str());
    recorded == claimed
        || beside.is_some_and(|token| token.starts_with(" via "))
        || Holder::new(format!("{claimed} via {recorded}")).is_err()
}

/// Returns a message that describes how a lease ended, if the history still contains the event.
pub(super) async fn end_reason(
    locks: &dyn LockStore,
    name: &LockName,
    lease_id: LeaseId,
    token: Token,
) -> Option<String> {
    let event = ending_event(locks, name, lease_id, token).await?;
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

async fn ending_event(
    locks: &dyn LockStore,
    name: &LockName,
    lease_id: LeaseId,
    token: Token,
) -> Option<Event> {
    let query = ListEvents { lock: Some(name.clone()), span: EventRange::Newest, limit: SEARCHED_EVENTS };
    let events = locks.history(&query).await.ok()?.items;
    let ends = |kind| {
        matches!(kind, EventKind::Released | EventKind::Expired | EventKind::Stolen | EventKind::Forced)
    };
    events.into_iter().find(|event| ends(event.kind) && event.lease_id == lease_id && event.token == token)
}
