//! Notification of waiters of other processes that were granted a lock.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use crate::model::{Lease, LeaseId, LockName};
use crate::store::postgres::connection::{Connector, Session};
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{Sql, TEXT, TEXTS, UUID, UUIDS};

/// Maximum number of local waiters that are excluded from a NOTIFY, because they are woken
/// directly. Beyond that a local waiter may be notified twice and query once for nothing.
const MAX_EXCLUDED: usize = 256;

/// Response to a notification that has been sent.
pub(super) type PendingNotify = Pin<Box<dyn Future<Output = Result<(), PgError>> + Send>>;

/// Builds the NOTIFY for waiters of other processes that were granted a lease, with the waiter and
/// the lock in the payload.
pub(super) fn notify_remote<'a>(
    session: &Arc<Session>,
    connector: &Connector,
    name: &LockName,
    granted: impl Iterator<Item = &'a Lease>,
) -> Option<PendingNotify> {
    let remote = granted
        .map(|lease| lease.request.lease_id)
        .filter(|waiter| !connector.waiters.is_local(name, waiter));
    let payloads: Vec<String> = remote.map(|waiter| format!("{waiter} {name}")).collect();
    let (session, channel) = (session.clone(), connector.channel());
    (!payloads.is_empty()).then(|| -> PendingNotify {
        Box::pin(async move {
            session.query(&NOTIFY, &[&channel, &payloads]).await?;
            Ok(())
        })
    })
}

/// Builds the NOTIFY for the new holder after a hand-over.
pub(super) fn notify_new_holder(
    session: &Arc<Session>,
    connector: &Connector,
    name: &LockName,
    lease_id: LeaseId,
) -> PendingNotify {
    let (session, channel, name) = (session.clone(), connector.channel(), name.clone());
    let local: Vec<_> =
        connector.waiters.local_waiters(&name, MAX_EXCLUDED).iter().map(|waiter| *waiter.as_uuid()).collect();
    Box::pin(async move {
        let name = name.as_str();
        session.query(&NOTIFY_NEXT, &[&channel, &name, lease_id.as_uuid(), &local]).await?;
        Ok(())
    })
}

/// Starts sending notifications without waiting for the responses.
pub(super) async fn start_sending(notifications: impl Iterator<Item = &mut PendingNotify>) {
    for notification in notifications {
        poll_fn(|context| {
            // A response that arrives before the others can only be an error, which they receive
            // too.
            let _ = notification.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
    }
}

// --- statements -----------------------------------------------------------------------------------

/// Notifies waiters, outside of any other transaction: a commit that notifies waits for every other
/// one that does. The commit need not wait for the disk: if a crash of the server loses the
/// notification, no listener is connected to receive it.
pub(crate) static NOTIFY: Sql = Sql::new(
    &[TEXT, TEXTS],
    "SELECT set_config('synchronous_commit', 'off', true), count(pg_notify($1, payload)) \
    FROM unnest($2::text[]) payload",
);

/// Notifies the holder of the lock after `$3`, without knowing it in advance; not those in `$4`,
/// which are woken directly.
pub(crate) static NOTIFY_NEXT: Sql = Sql::new(
    &[TEXT, TEXT, UUID, UUIDS],
    "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, l.lease_id || ' ' || l.name)
    FROM $s.locks l WHERE l.name = $2 AND l.lease_id <> $3 AND l.lease_id <> ALL ($4)",
);
