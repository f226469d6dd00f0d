//! Lock request: the part of an acquire that its ticket and its lease retain. It names the processes that
//! hold the lease, so that an engine on the same host can detect their death.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::name::id;
use crate::validation_error::number_conversions;
use crate::{Holder, Ttl, ValidationError, ValueKind};

/// Maximum number of live leases of a lock. It keeps a record small enough to be read and written as a whole.
pub const MAX_HOLDERS: usize = 1000;

/// Request of one caller for a lock. Unchanged from the first attempt to the last renewal, except
/// for `ttl`, which a renewal may replace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockRequest {
    /// Id of the request. An acquire that is sent again with the same id is the same acquire.
    pub lease_id: LeaseId,
    /// Holder that requests the lock.
    pub holder: Holder,
    /// Mode of the request: exclusive or shared.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// Maximum number of exclusive holders, this one included, that the caller accepts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slots: Slots,
    /// Priority of the request in the lock's queue.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Lifetime of the lease, counted from each renewal.
    pub ttl: Ttl,
    /// Additional information that helps operators to identify the holder.
    #[serde(default, skip_serializing_if = "is_default")]
    pub metadata: Metadata,
    /// Processes that hold the lease, if they run on the engine's own host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

impl LockRequest {
    /// Creates a request for an exclusive lock with default settings.
    pub fn new(lease_id: LeaseId, holder: Holder, ttl: Ttl) -> Self {
        let (mode, slots, priority, metadata) = Default::default();
        Self { lease_id, holder, mode, slots, priority, ttl, metadata, process: None }
    }
}

/// Id of one boot of one machine: the kernel generates a new id at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub Uuid);

/// Processes that hold a lease. They count as dead when *every* member is dead or the machine has restarted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Boot in which the processes run.
    pub boot: BootId,
    /// PID namespace in which the process ids are valid.
    pub pid_namespace: u64,
    /// Process identities; the first is the process that calls the store.
    pub members: Vec<Member>,
}

/// Identity of one process. Process ids are reused, so the start time is part of the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Process id.
    pub pid: u32,
    /// Start time in kernel ticks since boot.
    pub started: u64,
    /// Whether the process leads a process group that counts as alive while any of its processes lives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub group: bool,
}

/// Returns whether `value` is the default of its type; serialization omits such values.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

id!(
    /// Id of a request and of the lease that it becomes: a UUID v7 that the caller generates.
    LeaseId,
    "a lease id; a lease id is a UUID, as printed by acquire"
);

impl FromStr for LeaseId {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        Self::parse(text)
    }
}

/// Public name of a lease: a hash of the lease id. The name distinguishes leases but does not
/// authorize any operation, so conflict messages may contain it. The hash is computed when it is
/// needed: a waiter gets the names of the holders with every answer and rarely shows them.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LeaseRef(LeaseRefSource);

#[derive(Clone, Copy)]
enum LeaseRefSource {
    Id(LeaseId),
    Hash(u64),
}

impl LeaseRef {
    /// Returns the public name of the lease with this id.
    pub const fn of(id: &LeaseId) -> Self {
        Self(LeaseRefSource::Id(*id))
    }

    fn hash_value(self) -> u64 {
        match self.0 {
            LeaseRefSource::Hash(hash) => hash,
            LeaseRefSource::Id(id) => {
                let hash =
                    Sha256::new().chain_update(b"leasehold lease ").chain_update(id.as_uuid()).finalize();
                hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
            }
        }
    }
}

impl PartialEq for LeaseRef {
    fn eq(&self, other: &Self) -> bool {
        self.hash_value() == other.hash_value()
    }
}

impl Eq for LeaseRef {}

impl Hash for LeaseRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash_value().hash(state);
    }
}

/// Shows the hash: the id itself authorizes operations and must not reach a log.
impl fmt::Debug for LeaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseRef({self})")
    }
}

impl fmt::Display for LeaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:016x}", self.hash_value()))
    }
}

impl TryFrom<String> for LeaseRef {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        let number = (text.len() == 16).then(|| u64::from_str_radix(&text, 16).ok()).flatten();
        number.map(|hash| Self(LeaseRefSource::Hash(hash))).ok_or_else(|| {
            ValidationError::new(ValueKind::Id, format!("invalid lease reference '{text}': 16 hex digits"))
        })
    }
}

impl From<LeaseRef> for String {
    fn from(lease: LeaseRef) -> String {
        lease.to_string()
    }
}

/// Mode of a lock request or lease: exclusive or shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The only holder or, with `slots`, one of at most `slots` exclusive holders.
    #[default]
    Exclusive,
    /// One of any number of shared holders; conflicts with every exclusive holder.
    Shared,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Maximum number of concurrent exclusive holders of a lock; 1 is an ordinary lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Slots(NonZeroU32);

impl Slots {
    /// Creates a slot count; fails unless the count is 1 to [`MAX_HOLDERS`].
    pub fn new(count: u32) -> Result<Self, ValidationError> {
        match NonZeroU32::new(count) {
            Some(slots) if count as usize <= MAX_HOLDERS => Ok(Self(slots)),
            _ => {
                let message = format!("a lock cannot have {count} slots; it has 1 to {MAX_HOLDERS}");
                Err(ValidationError::new(ValueKind::Slots, message))
            }
        }
    }

    /// Returns the count.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self(NonZeroU32::MIN)
    }
}

number_conversions!(Slots, u32);

/// Priority in a queue, −1000 to 1000. Each step counts as having arrived [`Priority::STEP`]
/// earlier. Requests with a higher priority are granted first, but none starves: requests that
/// arrive late enough rank behind it, whatever their priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "i32", into = "i32")]
pub struct Priority(i32);

impl Priority {
    /// Head start in the queue that one step of priority gives.
    pub const STEP: Ttl = Ttl::from_secs(30);

    /// Creates a priority; fails unless the weight is −1000 to 1000.
    pub fn new(weight: i32) -> Result<Self, ValidationError> {
        if (-1000..=1000).contains(&weight) {
            return Ok(Self(weight));
        }
        let message = format!("a priority of {weight} is out of bounds; it is -1000 to 1000");
        Err(ValidationError::new(ValueKind::Priority, message))
    }

    /// Returns the weight.
    pub const fn get(self) -> i32 {
        self.0
    }
}

number_conversions!(Priority, i32);

/// Key-value pairs that describe a holder, for audit and for the conflict message: user, host, pid,
/// command, reason…
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct Metadata(Arc<BTreeMap<String, String>>);

impl Metadata {
    pub(crate) const MAX_ENTRIES: usize = 32;
    pub(crate) const MAX_BYTES: usize = 4096;

    /// Sets one entry. Fails if the key is empty, is longer than 64 bytes or contains `=` or a
    /// control character, or if the metadata would exceed 32 entries or 4 KiB in total.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) -> Result<(), ValidationError> {
        let (key, value) = (key.into(), value.into());
        if key.is_empty() || key.len() > 64 || key.contains(|c: char| c.is_control() || c == '=') {
            let message = format!("'{}' is not a metadata key: 1 to 64 bytes, no '='", key.escape_debug());
            return Err(ValidationError::new(ValueKind::Metadata, message));
        }
        let map = Arc::make_mut(&mut self.0);
        let before = map.insert(key.clone(), value);
        let bytes: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
        if map.len() > Self::MAX_ENTRIES || bytes > Self::MAX_BYTES {
            match before {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
            let (entries, bytes) = (Self::MAX_ENTRIES, Self::MAX_BYTES);
            let message = format!("too much metadata: {entries} entries and {bytes} bytes are the most");
            return Err(ValidationError::new(ValueKind::Metadata, message));
        }
        Ok(())
    }

    /// Removes the entry with this key.
    pub fn remove(&mut self, key: &str) {
        if self.0.contains_key(key) {
            Arc::make_mut(&mut self.0).remove(key);
        }
    }

    /// Returns the value of one entry.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Returns all entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut metadata = Self::default();
        for (key, value) in BTreeMap::<String, String>::deserialize(deserializer)? {
            metadata.set(key, value).map_err(serde::de::Error::custom)?;
        }
        Ok(metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_bounded_and_a_refused_entry_changes_nothing() {
        let mut metadata = Metadata::default();
        metadata.set("user", "ada").unwrap();
        assert!(metadata.set("", "x").is_err());
        assert!(metadata.set("a=b", "x").is_err());
        assert!(metadata.set("user", "x".repeat(5000)).is_err());
        assert_eq!(metadata.get("user"), Some("ada"));
        for n in 0..31 {
            metadata.set(format!("k{n}"), "v").unwrap();
        }
        assert!(metadata.set("one more", "v").is_err());
        assert_eq!(metadata.iter().count(), 32);
    }

    #[test]
    fn a_lease_has_a_public_name_that_does_not_show_its_id() {
        let ids = [1, 2].map(|number| LeaseId::from_uuid(Uuid::from_u128(number)));
        let [one, two] = [&ids[0], &ids[1]].map(LeaseRef::of);
        assert_ne!(one, two);
        assert_eq!(one, LeaseRef::of(&ids[0]));
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(text.len(), 18, "{text}");
        assert_eq!(serde_json::from_str::<LeaseRef>(&text).unwrap(), one);
        assert!(LeaseRef::try_from("12".to_owned()).is_err());
        assert_eq!(format!("{one:?}"), format!("LeaseRef({one})"), "the id is a secret");
    }

    #[test]
    fn slots_and_priority_have_bounds() {
        assert!(Slots::new(0).is_err());
        assert!(Slots::new(1001).is_err());
        assert_eq!(Slots::new(3).unwrap().get(), 3);
        assert!(Priority::new(1001).is_err());
        assert_eq!(Priority::new(-5).unwrap().get(), -5);
    }
}
