//! The client's `LockInfo`, stored as metadata of the lease, which `leasehold locks status` shows.

use leasehold::model::{Holder, Lease, LeaseId, Metadata, Ticket};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::problem::Problem;

/// Who locks a state, as the client says it. Fields that are not known are left aside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schema(as = TerraformLockInfo)]
pub(super) struct LockInfo {
    /// Names this lock operation; the client makes it.
    #[serde(rename = "ID")]
    #[schema(required = true, min_length = 1, max_length = 500)]
    pub(super) id: String,
    /// What it is about to do.
    #[schema(example = "OperationTypeApply")]
    pub(super) operation: String,
    /// More about it.
    pub(super) info: String,
    /// user@host
    #[schema(example = "ada@laptop")]
    pub(super) who: String,
    /// The version of the client.
    pub(super) version: String,
    /// When, by the client's clock.
    pub(super) created: String,
    /// Where the state is.
    pub(super) path: String,
}

/// Maximum size of each value in bytes, so that all values fit into a lease.
const ROOM: usize = 500;
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
        if id.is_empty() || id.len() > ROOM {
            return Err(Problem::invalid(format!("a lock needs an ID of 1 to {ROOM} bytes")));
        }
        let uuid = Uuid::parse_str(id).unwrap_or_else(|_| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&Sha256::digest(id.as_bytes())[..16]);
            uuid::Builder::from_custom_bytes(bytes).into_uuid()
        });
        Ok(LeaseId::from_uuid(uuid))
    }

    /// Returns the holder: the client's own `Who`, or the caller if `Who` is empty or invalid.
    pub(super) fn holder(&self, caller: Holder) -> Holder {
        Holder::new(plain(&self.who, 255)).unwrap_or(caller)
    }

    /// Returns the metadata for the lease.
    pub(super) fn metadata(&self, caller: &Holder) -> Result<Metadata, Problem> {
        let mut metadata = Metadata::default();
        metadata.set("via", "terraform")?;
        metadata.set("user", caller.as_str())?;
        metadata.set("heartbeat", "none: the client says nothing until it writes its state")?;
        for (key, value) in [
            (ID, &self.id),
            (OPERATION, &self.operation),
            (INFO, &self.info),
            (VERSION, &self.version),
            (CREATED, &self.created),
            (PATH, &self.path),
        ] {
            if !value.is_empty() {
                metadata.set(key, plain(value, ROOM))?;
            }
        }
        Ok(metadata)
    }

    /// Returns the `LockInfo` of a lease. For a lease not acquired by Terraform, other metadata of
    /// the lease fills the fields.
    pub(super) fn of_lease(lease: &Lease) -> Self {
        let created = format!("{:#}", lease.acquired_at);
        Self::read(&lease.ask.metadata, &lease.ask.holder, lease.ask.lease_id, created)
    }

    /// Returns the `LockInfo` of the next waiter.
    pub(super) fn of_ticket(ticket: &Ticket) -> Self {
        let created = format!("{:#}", ticket.since);
        Self::read(&ticket.ask.metadata, &ticket.ask.holder, ticket.ask.lease_id, created)
    }

    fn read(facts: &Metadata, holder: &Holder, lease_id: LeaseId, created: String) -> Self {
        let fact = |key: &str| facts.get(key).map(str::to_owned);
        Self {
            id: fact(ID).unwrap_or_else(|| lease_id.to_string()),
            operation: fact(OPERATION).or_else(|| fact("command")).unwrap_or_else(|| "lock".to_owned()),
            info: fact(INFO).or_else(|| fact("reason")).unwrap_or_default(),
            who: holder.to_string(),
            version: fact(VERSION).unwrap_or_default(),
            created: fact(CREATED).unwrap_or(created),
            path: fact(PATH).unwrap_or_default(),
        }
    }
}

/// Replaces control characters and truncates the text, so that it is valid as a short text.
fn plain(text: &str, room: usize) -> String {
    let mut plain = text.replace(char::is_control, " ").trim().to_owned();
    plain.truncate(plain.floor_char_boundary(room));
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
            id: "x".repeat(ROOM),
            operation: long.clone(),
            info: long.clone(),
            who: long.clone(),
            version: long.clone(),
            created: long.clone(),
            path: long,
        };
        let caller = Holder::new("c".repeat(255)).unwrap();
        assert!(info.metadata(&caller).unwrap().get(PATH).unwrap().len() <= ROOM);
        assert!(info.holder(caller).as_str().len() <= 255);
    }

    #[test]
    fn an_id_names_a_lease_whether_it_is_a_uuid_or_not() {
        let id = "2b6a6738-5dd5-50d6-c0ae-f6352977666b";
        assert_eq!(LockInfo::lease_id(id).unwrap().to_string(), id);
        assert_eq!(LockInfo::lease_id("mine").unwrap(), LockInfo::lease_id("mine").unwrap());
        assert_ne!(LockInfo::lease_id("mine").unwrap(), LockInfo::lease_id("yours").unwrap());
        assert!(LockInfo::lease_id("").is_err());
    }

    #[test]
    fn who_is_missing_is_the_caller() {
        let caller = Holder::new("ci").unwrap();
        assert_eq!(LockInfo::default().holder(caller.clone()), caller);
        let info = LockInfo { who: " ada@laptop\n".to_owned(), ..LockInfo::default() };
        assert_eq!(info.holder(caller).as_str(), "ada@laptop");
    }
}
