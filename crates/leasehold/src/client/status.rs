//! What can be seen of a lock: for people, for programs, and as JSON with times in RFC 3339.

use serde::{Serialize, Serializer};

use crate::model::{
    Asked, Event, EventKind, Holder, Lease, LeaseId, LeaseRef, LockName, LockRecord, Metadata, Mode, Reason,
    Status, Ticket, Timestamp, Token,
};
use crate::store::is_gone;

/// A lock as it is at one time of the store.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct LockStatus {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: LockName,
    /// Whether somebody holds it.
    pub is_locked: bool,
    /// Whether the record still names a holder whose lease has ended or whose process is gone: the next acquire, or a
    /// sweep, takes it over.
    pub is_stale: bool,
    /// Who holds it: the oldest, if several do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub holder: Option<Holder>,
    /// Since when.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub locked_since: Option<Timestamp>,
    /// Until when, unless renewed.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
    /// The newest token.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: Token,
    /// All leases in the record.
    pub holders: Vec<HolderStatus>,
    /// All tickets, next first.
    pub waiters: Vec<WaiterStatus>,
    /// The lease that ended last, if the record has no lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<LastLease>,
    /// The store's time of this look.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub now: Timestamp,
}

/// The lease that a free lock had last, as its history tells.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LastLease {
    /// How it ended: `released`, `expired`, `stolen` or `forced`.
    pub status: EventKind,
    /// Its holder.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub holder: Holder,
    /// Its token.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: Token,
    /// When it ended.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// Who ended it, if not the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub by: Option<Holder>,
}

impl LastLease {
    /// Returns the lease that ended last, from events with the newest first.
    pub(super) fn of(newest_first: Vec<Event>) -> Option<Self> {
        let ends = |kind| {
            matches!(kind, EventKind::Released | EventKind::Expired | EventKind::Stolen | EventKind::Forced)
        };
        let event = newest_first.into_iter().find(|event| ends(event.kind))?;
        let Event { kind: status, holder, token, at, by, .. } = event;
        Some(Self { status, holder, token, at, by })
    }
}

/// One lease.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HolderStatus {
    /// Who.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub holder: Holder,
    /// Its lease.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub lease_id: LeaseId,
    /// The public name of its lease, as refusals show it.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub lease_ref: LeaseRef,
    /// Its token.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: Token,
    /// Alone or with others.
    pub mode: Mode,
    /// Among how many.
    pub slots: u32,
    /// Where it stands.
    pub status: Status,
    /// Whether it has ended or its process is gone.
    pub stale: bool,
    /// Since when.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub acquired_at: Timestamp,
    /// Last sign of life.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub renewed_at: Timestamp,
    /// Until when.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub expires_at: Timestamp,
    /// How long it lasts from each renewal, in seconds.
    pub ttl_seconds: f64,
    /// How often it was renewed.
    pub renewals: u64,
    /// Who asked it to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<AskedStatus>,
    /// Facts about it.
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, String>))]
    pub metadata: Metadata,
}

/// Who asked a holder to stop.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AskedStatus {
    /// Who.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub by: Holder,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reason: Option<Reason>,
    /// When.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
}

/// One ticket.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct WaiterStatus {
    /// Who.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub holder: Holder,
    /// The lease it will be.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub lease_id: LeaseId,
    /// Alone or with others.
    pub mode: Mode,
    /// Its weight.
    pub priority: i32,
    /// Since when.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub since: Timestamp,
    /// Until when, unless it asks again.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub expires_at: Timestamp,
    /// Facts about it.
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, String>))]
    pub metadata: Metadata,
}

/// One line of history.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// When.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// Which lock.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub lock: LockName,
    /// What.
    pub kind: EventKind,
    /// Who.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub holder: Holder,
    /// The token of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: Token,
    /// Which request.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub lease_id: LeaseId,
    /// Alone or with others.
    pub mode: Mode,
    /// How long it had waited or held, in seconds.
    pub after_seconds: f64,
    /// How often the lease had been renewed.
    pub renewals: u64,
    /// Kept until then, although released.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub until: Option<Timestamp>,
    /// Who did it, if it was not the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub by: Option<Holder>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reason: Option<Reason>,
}

impl LockStatus {
    /// What a record looks like at `now`.
    pub fn of(record: &LockRecord, now: Timestamp) -> Self {
        let holders: Vec<_> = record.holders.iter().map(|lease| HolderStatus::of(lease, now)).collect();
        let live = record.live(now).next();
        Self {
            name: record.name.clone(),
            is_locked: live.is_some(),
            is_stale: holders.iter().any(|holder| holder.stale),
            holder: live.map(|lease| lease.ask.holder.clone()),
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
        let gone = lease.status != Status::Released && lease.ask.process.as_ref().is_some_and(is_gone);
        Self {
            holder: lease.ask.holder.clone(),
            lease_id: lease.ask.lease_id,
            lease_ref: LeaseRef::of(&lease.ask.lease_id),
            token: lease.token,
            mode: lease.ask.mode,
            slots: lease.ask.slots.get(),
            status: lease.status,
            stale: gone || lease.expires_at <= now,
            acquired_at: lease.acquired_at,
            renewed_at: lease.renewed_at,
            expires_at: lease.expires_at,
            ttl_seconds: lease.ask.ttl.as_duration().as_secs_f64(),
            renewals: lease.renewals,
            asked: lease.asked.as_ref().map(AskedStatus::of),
            metadata: lease.ask.metadata.clone(),
        }
    }
}

impl AskedStatus {
    fn of(asked: &Asked) -> Self {
        Self { by: asked.by.clone(), reason: asked.reason.clone(), at: asked.at }
    }
}

impl WaiterStatus {
    fn of(ticket: &Ticket) -> Self {
        Self {
            holder: ticket.ask.holder.clone(),
            lease_id: ticket.ask.lease_id,
            mode: ticket.ask.mode,
            priority: ticket.ask.priority.get(),
            since: ticket.since,
            expires_at: ticket.expires_at,
            metadata: ticket.ask.metadata.clone(),
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
pub(super) fn rfc3339<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:#}"))
}

#[expect(clippy::ref_option, reason = "serde's shape")]
pub(super) fn rfc3339_option<S: Serializer>(
    time: &Option<Timestamp>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => rfc3339(time, serializer),
        None => serializer.serialize_none(),
    }
}
