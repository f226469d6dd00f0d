//! What can be seen of a lock: for people, for programs, and as JSON with times in RFC 3339.

use serde::{Serialize, Serializer};

use crate::model::{
    Asked, Event, EventKind, Holder, Lease, LeaseId, LockName, LockRecord, Metadata, Mode, Reason, Status,
    Ticket, Timestamp, Token,
};
use crate::store::is_gone;

/// A lock as it is at one time of the store.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LockStatus {
    /// Its name.
    pub name: LockName,
    /// Whether somebody holds it.
    pub is_locked: bool,
    /// Whether the record still names a holder whose lease has ended or whose process is gone: the next acquire, or a
    /// sweep, takes it over.
    pub is_stale: bool,
    /// Who holds it: the oldest, if several do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// Since when.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub locked_since: Option<Timestamp>,
    /// Until when, unless renewed.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The newest token.
    pub token: Token,
    /// All leases in the record.
    pub holders: Vec<HolderStatus>,
    /// All tickets, next first.
    pub waiters: Vec<WaiterStatus>,
    /// The store's time of this look.
    #[serde(serialize_with = "rfc3339")]
    pub now: Timestamp,
}

/// One lease.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderStatus {
    /// Who.
    pub holder: Holder,
    /// Its lease.
    pub lease_id: LeaseId,
    /// Its token.
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
    pub acquired_at: Timestamp,
    /// Last sign of life.
    #[serde(serialize_with = "rfc3339")]
    pub renewed_at: Timestamp,
    /// Until when.
    #[serde(serialize_with = "rfc3339")]
    pub expires_at: Timestamp,
    /// How long it lasts from each renewal, in seconds.
    pub ttl_seconds: f64,
    /// How often it was renewed.
    pub renewals: u64,
    /// Who asked it to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<AskedStatus>,
    /// Facts about it.
    pub metadata: Metadata,
}

/// Who asked a holder to stop.
#[derive(Debug, Clone, Serialize)]
pub struct AskedStatus {
    /// Who.
    pub by: Holder,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// When.
    #[serde(serialize_with = "rfc3339")]
    pub at: Timestamp,
}

/// One ticket.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaiterStatus {
    /// Who.
    pub holder: Holder,
    /// The lease it will be.
    pub lease_id: LeaseId,
    /// Alone or with others.
    pub mode: Mode,
    /// Its weight.
    pub priority: i32,
    /// Since when.
    #[serde(serialize_with = "rfc3339")]
    pub since: Timestamp,
    /// Until when, unless it asks again.
    #[serde(serialize_with = "rfc3339")]
    pub expires_at: Timestamp,
    /// Facts about it.
    pub metadata: Metadata,
}

/// One line of history.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// When.
    #[serde(serialize_with = "rfc3339")]
    pub at: Timestamp,
    /// Which lock.
    pub lock: LockName,
    /// What.
    pub kind: EventKind,
    /// Who.
    pub holder: Holder,
    /// The token of the lease.
    pub token: Token,
    /// Which request.
    pub lease_id: LeaseId,
    /// Alone or with others.
    pub mode: Mode,
    /// How long it had waited or held, in seconds.
    pub after_seconds: f64,
    /// How often the lease had been renewed.
    pub renewals: u64,
    /// Kept until then, although released.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Who did it, if it was not the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<Holder>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
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
