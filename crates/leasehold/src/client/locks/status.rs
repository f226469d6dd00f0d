//! Status of a lock for users and programs, also as JSON with times in RFC 3339.

use serde::{Serialize, Serializer};

use crate::model::{
    Event, EventKind, Holder, Lease, LeaseId, LeaseRef, LeaseStatus, LockName, LockRecord, Metadata, Mode,
    Reason, StopRequest, Ticket, Timestamp, Token,
};
use crate::store::is_dead;

/// Status of a lock at one point of the store's time.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LockStatus {
    /// Name of the lock.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: LockName,
    /// Whether the lock is held.
    pub is_locked: bool,
    /// Whether the record still contains a lease that has expired or whose process has died; the
    /// next acquire or a sweep removes that lease.
    pub is_stale: bool,
    /// Holder of the lock; with several holders, the oldest.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub holder: Option<Holder>,
    /// Time since which that holder has held the lock.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub locked_since: Option<Timestamp>,
    /// Time at which that holder's lease expires unless it is renewed.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
    /// Newest token of the lock.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: Token,
    /// All leases in the record.
    pub holders: Vec<HolderStatus>,
    /// All tickets, next first.
    pub waiters: Vec<WaiterStatus>,
    /// Lease that ended last, if the record has no lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<LastLease>,
    /// Store time of the query.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub now: Timestamp,
}

/// Last lease of a free lock, taken from its history.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct LastLease {
    /// Kind of the end: `released`, `expired`, `stolen` or `forced`.
    pub status: EventKind,
    /// Holder of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub holder: Holder,
    /// Token of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: Token,
    /// Time at which the lease ended.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// Actor that ended the lease, if not the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub by: Option<Holder>,
}

impl LastLease {
    /// Returns the lease that ended last, from events with the newest first.
    pub(in crate::client) fn of(newest_first: &[Event]) -> Option<Self> {
        let ends = |kind| {
            matches!(kind, EventKind::Released | EventKind::Expired | EventKind::Stolen | EventKind::Forced)
        };
        let event = newest_first.iter().find(|event| ends(event.kind))?.clone();
        let Event { kind: status, holder, token, at, by, .. } = event;
        Some(Self { status, holder, token, at, by })
    }
}

/// Status of one lease.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct HolderStatus {
    /// Holder of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub holder: Holder,
    /// Id of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub lease_id: LeaseId,
    /// Public name of the lease, which conflict messages contain.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub lease_ref: LeaseRef,
    /// Token of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: Token,
    /// Mode of the lease: exclusive or shared.
    pub mode: Mode,
    /// Maximum number of exclusive holders that the request accepts.
    pub slots: u32,
    /// State of the lease.
    pub status: LeaseStatus,
    /// Whether the lease has expired or its process has died.
    pub stale: bool,
    /// Time at which the lease was granted.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub acquired_at: Timestamp,
    /// Time of the last renewal.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub renewed_at: Timestamp,
    /// Time at which the lease expires.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub expires_at: Timestamp,
    /// Lifetime of the lease from each renewal, in seconds.
    pub ttl_seconds: f64,
    /// Number of renewals.
    pub renewals: u64,
    /// Request to the holder to release the lease, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_request: Option<ReleaseRequestStatus>,
    /// Metadata of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, String>))]
    pub metadata: Metadata,
}

/// Request to a holder to release its lease.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct ReleaseRequestStatus {
    /// Holder that made the request.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub by: Holder,
    /// Reason of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reason: Option<Reason>,
    /// Time of the request.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
}

/// Status of one ticket.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WaiterStatus {
    /// Holder that waits.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub holder: Holder,
    /// Id of the lease that the ticket will become.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub lease_id: LeaseId,
    /// Mode of the request: exclusive or shared.
    pub mode: Mode,
    /// Priority of the request.
    pub priority: i32,
    /// Time at which the request was queued.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub since: Timestamp,
    /// Time at which the ticket expires unless the waiter refreshes it.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub expires_at: Timestamp,
    /// Metadata of the request.
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, String>))]
    pub metadata: Metadata,
}

/// Event in the history of a lock.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct EventView {
    /// Time of the event.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// Lock that the event belongs to.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub lock: LockName,
    /// Kind of the event.
    pub kind: EventKind,
    /// Holder of the lease or ticket.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub holder: Holder,
    /// Token of the lease; for a ticket, the newest token of the lock.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: Token,
    /// Id of the request that the lease or ticket belongs to.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub lease_id: LeaseId,
    /// Mode of the lease or ticket.
    pub mode: Mode,
    /// Time that the request had waited or that the lease had been held, in seconds.
    pub after_seconds: f64,
    /// Number of renewals of the lease.
    pub renewals: u64,
    /// End of the retention, if the lease was released but still blocks the lock until then.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub until: Option<Timestamp>,
    /// Actor of the event, if not the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub by: Option<Holder>,
    /// Reason of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reason: Option<Reason>,
}

impl LockStatus {
    /// Returns the status of a record at `now`.
    pub fn of(record: &LockRecord, now: Timestamp) -> Self {
        let holders: Vec<_> = record.holders.iter().map(|lease| HolderStatus::of(lease, now)).collect();
        let live = record.live(now).next();
        Self {
            name: record.name.clone(),
            is_locked: live.is_some(),
            is_stale: holders.iter().any(|holder| holder.stale),
            holder: live.map(|lease| lease.request.holder.clone()),
            locked_since: live.map(|lease| lease.acquired_at),
            expires_at: live.map(|lease| lease.expires_at),
            token: record.token,
            holders,
            waiters: record.waiting(now).map(WaiterStatus::of).collect(),
            last: None,
            now,
        }
    }
}

impl HolderStatus {
    fn of(lease: &Lease, now: Timestamp) -> Self {
        let gone =
            lease.status != LeaseStatus::Released && lease.request.process.as_ref().is_some_and(is_dead);
        Self {
            holder: lease.request.holder.clone(),
            lease_id: lease.request.lease_id,
            lease_ref: LeaseRef::of(&lease.request.lease_id),
            token: lease.token,
            mode: lease.request.mode,
            slots: lease.request.slots.get(),
            status: lease.status,
            stale: gone || lease.expires_at <= now,
            acquired_at: lease.acquired_at,
            renewed_at: lease.renewed_at,
            expires_at: lease.expires_at,
            ttl_seconds: lease.request.ttl.as_duration().as_secs_f64(),
            renewals: lease.renewals,
            release_request: lease.release_request.as_ref().map(ReleaseRequestStatus::from),
            metadata: lease.request.metadata.clone(),
        }
    }
}

impl From<&StopRequest> for ReleaseRequestStatus {
    fn from(request: &StopRequest) -> Self {
        Self { by: request.by.clone(), reason: request.reason.clone(), at: request.at }
    }
}

impl WaiterStatus {
    fn of(ticket: &Ticket) -> Self {
        Self {
            holder: ticket.request.holder.clone(),
            lease_id: ticket.request.lease_id,
            mode: ticket.request.mode,
            priority: ticket.request.priority.get(),
            since: ticket.since,
            expires_at: ticket.expires_at,
            metadata: ticket.request.metadata.clone(),
        }
    }
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        Self {
            at: event.at,
            lock: event.lock,
            kind: event.kind,
            holder: event.holder,
            token: event.token,
            lease_id: event.lease_id,
            mode: event.mode,
            after_seconds: std::time::Duration::from_micros(event.after_micros).as_secs_f64(),
            renewals: event.renewals,
            until: event.until,
            by: event.by,
            reason: event.reason,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
pub(in crate::client) fn rfc3339<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:#}"))
}

#[expect(clippy::ref_option, reason = "serde's shape")]
pub(in crate::client) fn rfc3339_option<S: Serializer>(
    time: &Option<Timestamp>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => rfc3339(time, serializer),
        None => serializer.serialize_none(),
    }
}
