//! Leases held without a guard, as printed by `locks acquire` and `locks renew`.

use leasehold::client::HolderStatus;
use leasehold::model::{Lease, LockName, TookOver};
use serde::Serialize;

use super::table::block;
use super::text::when;

/// Lease, as JSON and text.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaseView {
    /// Name of the lock.
    pub(crate) name: String,
    /// Same as `name`, under the key that older scripts may use.
    lock: String,
    pub(crate) lease_id: String,
    pub(crate) token: u64,
    holder: String,
    mode: String,
    acquired_at: String,
    expires_at: String,
    ttl_seconds: f64,
    /// Request to the holder to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<serde_json::Value>,
    /// Ended lease that this one took over from.
    #[serde(skip_serializing_if = "Option::is_none")]
    took_over: Option<TakenView>,
    /// Description of `took_over` for text output.
    #[serde(skip)]
    pub(crate) taken: Option<String>,
    /// Expiry time for text output.
    #[serde(skip)]
    pub(crate) until: String,
}

/// Lease that ended without a release.
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

/// Leases acquired together; the fields of the first requested one are repeated at the top level.
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
    /// Collects the leases in the order in which the locks were requested; `None` if there is no
    /// lease.
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

    /// Returns a text block for each lease.
    pub(crate) fn text(&self) -> String {
        self.iter().map(LeaseView::text).collect()
    }
}
