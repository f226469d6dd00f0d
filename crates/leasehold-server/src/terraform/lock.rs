//! Locking, unlocking, and forced unlocking of a state, and what the client says about its lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold::BootInstant;
use leasehold::model::{
    Acquire, EventKind, ForceRelease, Holder, Lease, LeaseId, LockName, LockOp, LockRecord, LockRequest,
    Metadata, Mode, Outcome, Priority, Reason, Release, Slots, Ticket, Timestamp, Ttl, Withdraw,
};
use leasehold::store::{ListEvents, LockStore, Store, notify_holders, notify_in_doubt};
use leasehold::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;
use uuid::Uuid;

use super::state_index::raise_min_token;
use crate::access::Identity;
use crate::problem::Problem;

/// Maximum number of attempts. A lock that becomes free while its holder is queried is requested again.
const MAX_ATTEMPTS: u32 = 5;
/// Number of events that are searched for the end of a lease.
const SEARCHED_EVENTS: u32 = 50;
/// Time from the start of a request in which an acquire that failed is withdrawn, the minimum time for that if
/// the acquire took longer, and the delay between two attempts.
const WITHDRAW_UNTIL: Duration = Duration::from_secs(5);
const MIN_WITHDRAW_TIME: Duration = Duration::from_millis(250);
const WITHDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time to notify the holder of a lock after a forced release without a response.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct StateLock<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) state: &'a str,
    pub(super) name: LockName,
    pub(super) identity: &'a Identity,
}

pub(super) enum UnlockResult {
    /// No client with that id holds the lock any more.
    Released,
    /// Another client holds the lock.
    HeldBy(LockInfo),
    /// The lock is free, and that id never held it.
    NotHeld,
}

impl StateLock<'_> {
    fn locks(&self) -> &dyn LockStore {
        self.store.locks()
    }

    /// Acquires the lock, or returns the client that holds it or is the next waiter. A repeated call with
    /// the same id returns the same lock.
    pub(super) async fn lock(
        &self,
        info: &LockInfo,
        caller: Holder,
        ttl: Ttl,
    ) -> Result<Option<LockInfo>, Problem> {
        let mut metadata = info.metadata(&caller)?;
        self.identity.stamp(&mut metadata);
        let request = LockRequest {
            lease_id: LockInfo::lease_id(&info.id)?,
            metadata,
            holder: info.holder(caller),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            priority: Priority::default(),
            ttl,
            process: None,
        };
        let (lease_id, started) = (request.lease_id, BootInstant::now());
        if let Some(other) = self.other_caller(lease_id).await? {
            return Ok(Some(other));
        }
        let op = LockOp::Acquire(Acquire { request: Arc::new(request), queue: None, steal_after: None });
        for _ in 0..MAX_ATTEMPTS {
            let outcome = match self.locks().apply(&self.name, &op).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    if error.is_retryable() {
                        self.withdraw(lease_id, started).await;
                    }
                    return Err(error.into());
                }
            };
            match outcome {
                // The request has the ID of another caller's lock, which was acquired after the check.
                Outcome::Granted(lease) if self.identity.must_own(&lease.request).is_err() => {
                    return Ok(Some(LockInfo::of_lease(&lease)));
                }
                Outcome::Granted(lease) => {
                    if let Err(error) = raise_min_token(self.store, self.state, lease.token).await {
                        self.withdraw(lease_id, started).await;
                        return Err(error.into());
                    }
                    return Ok(None);
                }
                _ => {
                    let (record, now) = self.load().await?;
                    if let Some(info) = record.and_then(|record| blocking_holder(&record, now)) {
                        return Ok(Some(info));
                    }
                }
            }
        }
        let detail = "the lock changed its holder too often during the request";
        Err(Problem::new("STORE_UNAVAILABLE", detail).retry_after(Duration::from_secs(1)))
    }

    /// Withdraws an acquire whose caller receives an error and does not know that it may hold the lock:
    /// the lock must not stay held for its full TTL (a day by default). Repeats this if it fails, until the
    /// client would wait too long. It ends before the response: a later withdrawal could end the lease of a retry.
    async fn withdraw(&self, lease_id: LeaseId, started: BootInstant) {
        let withdraw = LockOp::Withdraw(Withdraw { lease_id });
        let attempts = async {
            while let Err(error) = self.locks().apply(&self.name, &withdraw).await
                && error.is_retryable()
            {
                tracing::debug!(lock = %self.name, %error, "failed to withdraw a Terraform lock; retrying");
                tokio::time::sleep(WITHDRAW_INTERVAL).await;
            }
        };
        let limit = started.plus(WITHDRAW_UNTIL).after(BootInstant::now()).max(MIN_WITHDRAW_TIME);
        let _ = tokio::time::timeout(limit, attempts).await;
    }

    pub(super) async fn unlock(&self, id: &str) -> Result<UnlockResult, Problem> {
        let lease_id = LockInfo::lease_id(id)?;
        let (record, now) = self.load().await?;
        if let Some(lease) = record.as_ref().and_then(|record| record.lease(&lease_id)) {
            self.identity.must_own(&lease.request)?;
            let release = Release { lease_id, token: lease.token, at_least: None };
            if let Outcome::Released(_) = self.locks().apply(&self.name, &LockOp::Release(release)).await? {
                return Ok(UnlockResult::Released);
            }
        }
        if self.has_ended(lease_id).await? {
            return Ok(UnlockResult::Released);
        }
        let holder = record.as_ref().and_then(|record| record.live(now).next());
        Ok(holder.map_or(UnlockResult::NotHeld, |lease| UnlockResult::HeldBy(LockInfo::of_lease(lease))))
    }

    /// Releases the lock by force, or only the lease with this id if one is given.
    pub(super) async fn force_unlock(&self, id: Option<&str>, by: Holder) -> Result<UnlockResult, Problem> {
        let only = id.map(LockInfo::lease_id).transpose()?;
        let (record, now) = self.load().await?;
        let record = record.unwrap_or_else(|| LockRecord::new(self.name.clone()));
        let (mut freed, mut other) = (only.is_none(), None);
        for lease in record.live(now) {
            if only.is_some_and(|only| only != lease.request.lease_id) {
                other = Some(LockInfo::of_lease(lease));
                continue;
            }
            let reason = Reason::new("terraform force-unlock")?;
            tracing::warn!(lock = %self.name, holder = %lease.request.holder, %by, "a Terraform lock was released by force");
            let force = ForceRelease { token: lease.token, by: by.clone(), reason };
            let force = LockOp::ForceRelease(force);
            let forced = self.locks().apply(&self.name, &force).await;
            match &forced {
                Ok(forced) => notify_holders(self.store, &self.name, forced).await,
                // The store may have released the lock nevertheless.
                Err(error) if error.is_retryable() => {
                    let notified = notify_in_doubt(self.store, &self.name, &force);
                    let _ = tokio::time::timeout(NOTICE_TIMEOUT, notified).await;
                }
                Err(_) => {}
            }
            forced?;
            freed = true;
        }
        if let Some(record) = self.locks().get(&self.name).await? {
            // From here on writes that are still in flight are rejected.
            raise_min_token(self.store, self.state, record.token).await?;
        }
        Ok(match other {
            _ if freed => UnlockResult::Released,
            Some(other) => UnlockResult::HeldBy(other),
            None => UnlockResult::NotHeld,
        })
    }

    /// Returns the caller of the lease or of the ticket with this id, if it is another caller: the server
    /// returns the ID of a lock to every client that finds the state locked. To be called before an acquire,
    /// which renews the lease, or removes the ticket, of an earlier request with its id.
    async fn other_caller(&self, id: LeaseId) -> Result<Option<LockInfo>> {
        let Some(record) = self.locks().get(&self.name).await? else { return Ok(None) };
        let is_other =
            |request: &LockRequest| request.lease_id == id && self.identity.must_own(request).is_err();
        let lease = record.holders.iter().find(|lease| is_other(&lease.request));
        let ticket = record.waiters.iter().find(|ticket| is_other(&ticket.request));
        Ok(lease.map(LockInfo::of_lease).or_else(|| ticket.map(LockInfo::of_ticket)))
    }

    pub(super) async fn load(&self) -> Result<(Option<LockRecord>, Timestamp)> {
        let record = self.locks().get(&self.name).await?;
        Ok((record, self.locks().now().await?))
    }

    /// Whether this lease was released or has expired, in which case a repeated or late UNLOCK
    /// succeeds.
    async fn has_ended(&self, lease_id: LeaseId) -> Result<bool, Error> {
        let query = ListEvents::default().lock(self.name.clone()).limit(SEARCHED_EVENTS);
        let events = self.locks().history(&query).await?.items;
        Ok(events.iter().any(|event| {
            event.lease_id == lease_id && matches!(event.kind, EventKind::Released | EventKind::Expired)
        }))
    }
}

/// Returns the holder, or the next waiter if there is no holder.
pub(super) fn blocking_holder(record: &LockRecord, now: Timestamp) -> Option<LockInfo> {
    let holder = record.live(now).next().map(LockInfo::of_lease);
    holder.or_else(|| record.waiting(now).next().map(LockInfo::of_ticket))
}

/// Description of a lock operation by the client. Unknown fields are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schema(as = TerraformLockInfo)]
pub(super) struct LockInfo {
    /// Id of the lock operation, generated by the client.
    #[serde(rename = "ID")]
    #[schema(required = true, min_length = 1, max_length = 500)]
    pub(super) id: String,
    /// Kind of the operation.
    #[schema(example = "OperationTypeApply")]
    pub(super) operation: String,
    /// Additional information.
    pub(super) info: String,
    /// User and host, as `user@host`.
    #[schema(example = "ada@laptop")]
    pub(super) who: String,
    /// Version of the client.
    pub(super) version: String,
    /// Creation time by the client's clock.
    pub(super) created: String,
    /// Path of the state.
    pub(super) path: String,
}

/// Maximum size of each value in bytes, so that all values fit into a lease.
const MAX_VALUE_BYTES: usize = 500;
const ID: &str = "terraform.id";
const OPERATION: &str = "terraform.operation";
const INFO: &str = "terraform.info";
const VERSION: &str = "terraform.version";
const CREATED: &str = "terraform.created";
const PATH: &str = "terraform.path";

impl LockInfo {
    /// Returns the lease id for this lock id. Existing clients send a UUID; any other text is
    /// hashed into one.
    pub(super) fn lease_id(id: &str) -> Result<LeaseId, Problem> {
        if id.is_empty() || id.len() > MAX_VALUE_BYTES {
            return Err(Problem::invalid(format!("invalid lock ID: must have 1 to {MAX_VALUE_BYTES} bytes")));
        }
        let uuid = Uuid::parse_str(id).unwrap_or_else(|_| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&Sha256::digest(id.as_bytes())[..16]);
            uuid::Builder::from_custom_bytes(bytes).into_uuid()
        });
        Ok(LeaseId::from_uuid(uuid))
    }

    /// Returns the holder: the client's own `Who`, or the caller if `Who` is empty or invalid.
    fn holder(&self, caller: Holder) -> Holder {
        Holder::new(plain(&self.who, 255)).unwrap_or(caller)
    }

    fn metadata(&self, caller: &Holder) -> Result<Metadata, Problem> {
        let mut metadata = Metadata::default();
        metadata.set("via", "terraform")?;
        metadata.set("user", caller.as_str())?;
        metadata.set("heartbeat", "none: the client sends no heartbeats until it writes its state")?;
        for (key, value) in [
            (ID, &self.id),
            (OPERATION, &self.operation),
            (INFO, &self.info),
            (VERSION, &self.version),
            (CREATED, &self.created),
            (PATH, &self.path),
        ] {
            if !value.is_empty() {
                metadata.set(key, plain(value, MAX_VALUE_BYTES))?;
            }
        }
        Ok(metadata)
    }

    /// Returns the `LockInfo` of a lease. For a lease not acquired by Terraform, other metadata of
    /// the lease fills the fields.
    fn of_lease(lease: &Lease) -> Self {
        Self::read(&lease.request, lease.acquired_at)
    }

    fn of_ticket(ticket: &Ticket) -> Self {
        Self::read(&ticket.request, ticket.since)
    }

    fn read(request: &LockRequest, since: Timestamp) -> Self {
        let value = |key: &str| request.metadata.get(key).map(str::to_owned);
        Self {
            id: value(ID).unwrap_or_else(|| request.lease_id.to_string()),
            operation: value(OPERATION).or_else(|| value("command")).unwrap_or_else(|| "lock".to_owned()),
            info: value(INFO).or_else(|| value("reason")).unwrap_or_default(),
            who: request.holder.to_string(),
            version: value(VERSION).unwrap_or_default(),
            created: value(CREATED).unwrap_or_else(|| format!("{since:#}")),
            path: value(PATH).unwrap_or_default(),
        }
    }
}

/// Replaces control characters and truncates the text, so that it is valid as a short text.
fn plain(text: &str, max_bytes: usize) -> String {
    let mut plain = text.replace(char::is_control, " ").trim().to_owned();
    plain.truncate(plain.floor_char_boundary(max_bytes));
    plain.truncate(plain.trim_end().len());
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_info_of_any_size_fits_into_a_lease() {
        let long = "ä\n".repeat(5000);
        let info = LockInfo {
            id: "x".repeat(MAX_VALUE_BYTES),
            operation: long.clone(),
            info: long.clone(),
            who: long.clone(),
            version: long.clone(),
            created: long.clone(),
            path: long,
        };
        let caller = Holder::new("c".repeat(255)).unwrap();
        assert!(info.metadata(&caller).unwrap().get(PATH).unwrap().len() <= MAX_VALUE_BYTES);
        assert!(info.holder(caller).as_str().len() <= 255);
    }

    #[test]
    fn a_lock_id_maps_to_a_lease_id_even_if_it_is_not_a_uuid() {
        let id = "2b6a6738-5dd5-50d6-c0ae-f6352977666b";
        assert_eq!(LockInfo::lease_id(id).unwrap().to_string(), id);
        assert_eq!(LockInfo::lease_id("mine").unwrap(), LockInfo::lease_id("mine").unwrap());
        assert_ne!(LockInfo::lease_id("mine").unwrap(), LockInfo::lease_id("yours").unwrap());
        assert!(LockInfo::lease_id("").is_err());
    }

    #[test]
    fn a_missing_who_is_the_caller() {
        let caller = Holder::new("ci").unwrap();
        assert_eq!(LockInfo::default().holder(caller.clone()), caller);
        let info = LockInfo { who: " ada@laptop\n".to_owned(), ..LockInfo::default() };
        assert_eq!(info.holder(caller).as_str(), "ada@laptop");
    }
}
