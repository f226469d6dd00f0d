//! Who asks for what: the part of an acquire that its ticket and its lease keep.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Holder, Invalid, MAX_HOLDERS, Process, Ttl};

/// One request for a lock, as made by one caller. It stays the same from the first try to the last renewal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ask {
    /// Names the request: an acquire that is sent again with the same id is the same acquire.
    pub lease_id: LeaseId,
    /// Who asks.
    pub holder: Holder,
    /// Alone or with others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// How many exclusive holders the asker is willing to be among.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slots: Slots,
    /// Its weight in the queue.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// How long the lease lasts from each renewal.
    pub ttl: Ttl,
    /// Whatever helps people to see who this is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub metadata: Metadata,
    /// The processes behind it, if they run on the engine's own host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

/// For values that need not be written.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The id of one request and of the lease it becomes: a UUID v7, made by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(Uuid);

impl LeaseId {
    /// From a UUID.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// As a UUID.
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for LeaseId {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        Uuid::parse_str(text).map(Self).map_err(|_| {
            Invalid(format!("'{text}' is not a lease id; a lease id is a UUID, as printed by acquire"))
        })
    }
}

/// Public name of a lease: a hash of its id. It tells one lease from another and opens nothing, so refusals may show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LeaseRef(u64);

impl LeaseRef {
    /// Returns the public name of the lease with this id.
    pub fn of(id: &LeaseId) -> Self {
        let hash = Sha256::new().chain_update(b"leasehold lease ").chain_update(id.as_uuid()).finalize();
        Self(hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

impl fmt::Display for LeaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:016x}", self.0))
    }
}

impl TryFrom<String> for LeaseRef {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        let number = (text.len() == 16).then(|| u64::from_str_radix(&text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| Invalid(format!("invalid lease reference '{text}': 16 hex digits")))
    }
}

impl From<LeaseRef> for String {
    fn from(lease: LeaseRef) -> String {
        lease.to_string()
    }
}

/// Alone or with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nobody else, or with `slots` at most so many.
    #[default]
    Exclusive,
    /// With any number of other shared holders, but no exclusive one.
    Shared,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        })
    }
}

/// How many exclusive holders a counted lock may have at once; 1 is an ordinary lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Slots(NonZeroU32);

impl Slots {
    /// Checks the bounds: 1 to [`MAX_HOLDERS`].
    pub fn new(count: u32) -> Result<Self, Invalid> {
        match NonZeroU32::new(count) {
            Some(slots) if count as usize <= MAX_HOLDERS => Ok(Self(slots)),
            _ => Err(Invalid(format!("a lock cannot have {count} slots; it has 1 to {MAX_HOLDERS}"))),
        }
    }

    /// The count.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self(NonZeroU32::MIN)
    }
}

impl TryFrom<u32> for Slots {
    type Error = Invalid;
    fn try_from(count: u32) -> Result<Self, Invalid> {
        Self::new(count)
    }
}

impl From<Slots> for u32 {
    fn from(slots: Slots) -> u32 {
        slots.get()
    }
}

/// Weight in the queue, −1000 to 1000. Each step counts as having arrived [`Priority::STEP`] earlier, so a higher
/// priority is served first, and yet nobody waits for ever: later arrivals fall behind however high they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "i32", into = "i32")]
pub struct Priority(i32);

impl Priority {
    /// What one step is worth.
    pub const STEP: Ttl = Ttl::from_secs(30);

    /// Checks the bounds.
    pub fn new(weight: i32) -> Result<Self, Invalid> {
        if (-1000..=1000).contains(&weight) {
            Ok(Self(weight))
        } else {
            Err(Invalid(format!("a priority of {weight} is out of bounds; it is -1000 to 1000")))
        }
    }

    /// The weight.
    pub const fn get(self) -> i32 {
        self.0
    }
}

impl TryFrom<i32> for Priority {
    type Error = Invalid;
    fn try_from(weight: i32) -> Result<Self, Invalid> {
        Self::new(weight)
    }
}

impl From<Priority> for i32 {
    fn from(priority: Priority) -> i32 {
        priority.0
    }
}

/// Small facts about a holder for audit and for the conflict message: user, host, pid, command, reason…
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct Metadata(Arc<BTreeMap<String, String>>);

impl Metadata {
    pub(super) const MAX_ENTRIES: usize = 32;
    pub(super) const MAX_BYTES: usize = 4096;

    /// Sets one fact; refuses an empty or odd key, and more than 32 facts or 4 KiB in all.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) -> Result<(), Invalid> {
        let (key, value) = (key.into(), value.into());
        if key.is_empty() || key.len() > 64 || key.contains(|c: char| c.is_control() || c == '=') {
            return Err(Invalid(format!(
                "'{}' is not a metadata key: 1 to 64 bytes, no '='",
                key.escape_debug()
            )));
        }
        let facts = Arc::make_mut(&mut self.0);
        let before = facts.insert(key.clone(), value);
        let bytes: usize = facts.iter().map(|(key, value)| key.len() + value.len()).sum();
        if facts.len() > Self::MAX_ENTRIES || bytes > Self::MAX_BYTES {
            match before {
                Some(value) => facts.insert(key, value),
                None => facts.remove(&key),
            };
            return Err(Invalid(format!(
                "too much metadata: {} entries and {} bytes are the most",
                Self::MAX_ENTRIES,
                Self::MAX_BYTES
            )));
        }
        Ok(())
    }

    /// Removes one fact.
    pub fn remove(&mut self, key: &str) {
        if self.0.contains_key(key) {
            Arc::make_mut(&mut self.0).remove(key);
        }
    }

    /// One fact.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// All facts, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether there is none.
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
