//! Leases that are held without a guard: what `locks acquire` and `locks renew` print.

use leasehold::client::HolderStatus;
use leasehold::model::{Lease, LockName, TookOver};
use serde::Serialize;

use super::table::block;
use super::text::when;

/// One lease.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaseView {
    /// The lock, as everywhere.
    pub(crate) name: String,
    /// The same, under the name that scripts of before may use.
    lock: String,
    pub(crate) lease_id: String,
    pub(crate) token: u64,
    holder: String,
    mode: String,
    acquired_at: String,
    expires_at: String,
    ttl_seconds: f64,
    /// Who asked the holder to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<serde_json::Value>,
    /// The lease in whose place this one was granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    took_over: Option<TakenView>,
    /// The same, for people.
    #[serde(skip)]
    pub(crate) taken: Option<String>,
    /// Until when, for people.
    #[serde(skip)]
    pub(crate) until: String,
}

/// A lease that ended without a release.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct TakenView {
    holder: String,
    token: u64,
    renewed_at: String,
    expires_at: String,
}

impl TakenView {
    fn of(before: &TookOver) -> Self {
        Self {
            holder: before.holder.to_string(),
            token: before.token.get(),
            renewed_at: format!("{:#}", before.renewed_at),
            expires_at: format!("{:#}", before.expires_at),
        }
    }
}

/// Several, taken together: the first that was asked for stands for all.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Leases {
    #[serde(flatten)]
    first: LeaseView,
    #[serde(rename = "leases")]
    all: Vec<LeaseView>,
}

impl LeaseView {
    pub(crate) fn of_lease(lock: &LockName, lease: &Lease) -> Self {
        Self {
            name: lock.to_string(),
            lock: lock.to_string(),
            lease_id: lease.ask.lease_id.to_string(),
            token: lease.token.get(),
            holder: lease.ask.holder.to_string(),
            mode: lease.ask.mode.to_string(),
            acquired_at: format!("{:#}", lease.acquired_at),
            expires_at: format!("{:#}", lease.expires_at),
            ttl_seconds: lease.ask.ttl.as_duration().as_secs_f64(),
            asked: None,
            took_over: lease.took_over.as_deref().map(TakenView::of),
            taken: lease.took_over.as_ref().map(|before| before.describe(lease.acquired_at)),
            until: when(lease.renewed_at, lease.expires_at),
        }
    }

    pub(crate) fn of_holder(lock: &LockName, held: &HolderStatus) -> Self {
        Self {
            name: lock.to_string(),
            lock: lock.to_string(),
            lease_id: held.lease_id.to_string(),
            token: held.token.get(),
            holder: held.holder.to_string(),
            mode: held.mode.to_string(),
            acquired_at: format!("{:#}", held.acquired_at),
            expires_at: format!("{:#}", held.expires_at),
            ttl_seconds: held.ttl_seconds,
            asked: held.asked.as_ref().and_then(|asked| serde_json::to_value(asked).ok()),
            took_over: None,
            taken: None,
            until: when(held.renewed_at, held.expires_at),
        }
    }

    fn text(&self) -> String {
        let known = [("lease id", self.lease_id.clone()), ("token", self.token.to_string())];
        format!("{}  held by {} until {}\n{}", self.name, self.holder, self.until, block(2, &known))
    }
}

impl Leases {
    /// Of the locks in the order in which they were asked for; none if there is not one lease.
    pub(crate) fn new(asked: &[LockName], held: &[(LockName, Lease)]) -> Option<Self> {
        let find = |name| held.iter().find(|(lock, _)| lock == name);
        let found = asked.iter().filter_map(find);
        let all: Vec<_> = found.map(|(lock, lease)| LeaseView::of_lease(lock, lease)).collect();
        let first = all.first()?.clone();
        Some(Self { first, all })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LeaseView> {
        self.all.iter()
    }

    /// A block for each.
    pub(crate) fn text(&self) -> String {
        self.iter().map(LeaseView::text).collect()
    }
}
