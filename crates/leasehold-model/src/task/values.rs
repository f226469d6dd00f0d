//! What a task is made of: ids, payloads, progress, backoff. Checked once, at the edge.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::Digest;
use uuid::Uuid;

use super::canonical::canonical;

use crate::{Invalid, Ttl, check_depth};

/// The largest payload or result, in bytes of JSON.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// The longest text of a failure or of a note that is kept, in bytes.
const MAX_TEXT: usize = 8 << 10;

macro_rules! id {
    ($(#[$doc:meta])* $type:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(Uuid);

        impl $type {
            /// From a UUID.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// As a UUID.
            pub const fn as_uuid(&self) -> &Uuid {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
            }
        }

        impl $type {
            fn parse(text: &str) -> Result<Self, Invalid> {
                let wrong = |_| Invalid(format!("'{text}' is not a valid {}: it must be a UUID", $word));
                Uuid::parse_str(text).map(Self).map_err(wrong)
            }
        }
    };
}

id!(
    /// The id of a task: a UUID v7, made by whoever adds it.
    TaskId,
    "task id"
);
id!(
    /// The id of a worker: new each time it starts, so that nobody can be taken for a predecessor.
    WorkerId,
    "worker id"
);

impl FromStr for WorkerId {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::parse(text)
    }
}

/// A UUID, or `#123` for a task that is known by a number.
impl FromStr for TaskId {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let number = text.strip_prefix('#').and_then(|digits| digits.parse().ok());
        number.and_then(Self::numbered).map_or_else(|| Self::parse(text), Ok)
    }
}

/// What the ids of tasks begin with that are known by a number.
const NUMBERED: &str = "6c656173-6568-8f6c-8400-";

impl TaskId {
    /// The id of a task that only has a number where it is kept, such as an issue. People can read the number in it: it is the
    /// last group. None if the number has more than twelve digits.
    pub fn numbered(number: u64) -> Option<Self> {
        Uuid::parse_str(&format!("{NUMBERED}{number:012}")).ok().map(Self)
    }

    /// As people write it: `#123` if it has a number, else the whole.
    pub fn short(&self) -> String {
        self.number().map_or_else(|| self.to_string(), |number| format!("#{number}"))
    }

    /// The number, if it is the id of such a task.
    pub fn number(&self) -> Option<u64> {
        self.to_string().strip_prefix(NUMBERED)?.parse().ok()
    }
}

/// What a task is about, or what came of it: a JSON value, as text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Payload(Arc<str>);

impl Payload {
    /// Takes a text that is JSON.
    pub fn new(json: impl AsRef<str>) -> Result<Self, Invalid> {
        let json = json.as_ref();
        serde_json::from_str::<serde::de::IgnoredAny>(json)
            .map_err(|error| Invalid(format!("the payload is not JSON: {error}")))?;
        Self::sized(json.into())
    }

    /// Takes anything that can be written as JSON.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, Invalid> {
        let json = serde_json::to_string(value)
            .map_err(|error| Invalid(format!("the payload cannot be written as JSON: {error}")))?;
        Self::sized(json.into())
    }

    /// Takes a text that this library has written.
    pub fn trusted(json: impl Into<Arc<str>>) -> Self {
        Self(json.into())
    }

    fn sized(json: Arc<str>) -> Result<Self, Invalid> {
        if json.len() > MAX_PAYLOAD {
            return Err(Invalid(format!("the payload has {} bytes; {MAX_PAYLOAD} is the most", json.len())));
        }
        check_depth(&json)?;
        Ok(Self(json))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value in it.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Invalid> {
        serde_json::from_str(&self.0).map_err(|error| Invalid(error.to_string()))
    }

    /// What tells this payload from others.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_json(&self.0)
    }
}

/// No payload.
impl Default for Payload {
    fn default() -> Self {
        Self("null".into())
    }
}

/// As the value that it is, not as a text.
impl Serialize for Payload {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value: &serde_json::value::RawValue =
            serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        value.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Box::<serde_json::value::RawValue>::deserialize(deserializer)?;
        Self::sized(value.get().into()).map_err(serde::de::Error::custom)
    }
}

/// A payload or none, as a list of one or none: `null` is a payload too.
pub(super) mod maybe_payload {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Payload;

    #[expect(clippy::ref_option, reason = "that is how serde gives it")]
    pub(in super::super) fn serialize<S: Serializer>(
        payload: &Option<Payload>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        payload.as_slice().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Payload>, D::Error> {
        Ok(Vec::<Payload>::deserialize(deserializer)?.pop())
    }
}

/// A payload that is there, though it may be `null`.
pub(super) fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Payload>, D::Error> {
    Payload::deserialize(deserializer).map(Some)
}

/// Tells whether a task that is added again with the same key is meant to be the same. Part of the stored format: the first
/// 64 bits of the SHA-256 of the payload in its canonical form, so that it does not matter in which order a program
/// writes the members of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Of a task that has none: without a key nobody asks for it.
    pub const NONE: Self = Self(0);

    /// Of some bytes, as they are.
    pub fn of(bytes: &[u8]) -> Self {
        let hash = sha2::Sha256::digest(bytes);
        Self(hash.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte)))
    }

    /// Of a text that is JSON: the same for all texts that mean the same.
    pub fn of_json(json: &str) -> Self {
        canonical(json).map_or_else(|| Self::of(json.as_bytes()), |canonical| Self::of(&canonical))
    }

    /// What earlier versions stored for these bytes.
    pub fn of_old(bytes: &[u8]) -> Self {
        Self(fnv(bytes))
    }

    /// From the number that [`Fingerprint::get`] gave.
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// As a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The 64-bit FNV-1a hash.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// How far a task has come.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Progress {
    /// So much is done…
    pub done: u64,
    /// …of so much, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// What is being done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
}

impl Progress {
    /// So much of so much.
    pub const fn of(done: u64, of: u64) -> Self {
        Self { done, of: Some(of), note: None }
    }

    /// With a few words; too long a text is cut.
    #[must_use]
    pub fn note(mut self, note: impl AsRef<str>) -> Self {
        self.note = Some(Note::new(note));
        self
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Some(of) if of > 0 => write!(f, "{} %", self.done.saturating_mul(100) / of)?,
            _ => write!(f, "{}", self.done)?,
        }
        self.note.as_ref().map_or(Ok(()), |note| write!(f, " {note}"))
    }
}

/// A few words, such as why an attempt failed: cut after 8 KiB.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Note(Arc<str>);

impl Note {
    /// Takes a text, and cuts it if it is too long.
    pub fn new(text: impl AsRef<str>) -> Self {
        let text = text.as_ref();
        Self(text[..text.floor_char_boundary(MAX_TEXT)].replace('\0', "\u{fffd}").into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl From<String> for Note {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<Note> for String {
    fn from(note: Note) -> String {
        note.0.as_ref().to_owned()
    }
}

/// How often a task is tried, and how long the pauses between are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "UncheckedRetries")]
pub struct Retries {
    /// So many attempts in all.
    pub attempts: u32,
    /// The pause after the first failed attempt; each one after it is twice as long.
    pub first: Ttl,
    /// No pause is longer.
    pub longest: Ttl,
}

/// Retries as they are read.
#[derive(Deserialize)]
struct UncheckedRetries {
    attempts: u32,
    first: Ttl,
    longest: Ttl,
}

impl TryFrom<UncheckedRetries> for Retries {
    type Error = Invalid;
    fn try_from(read: UncheckedRetries) -> Result<Self, Invalid> {
        let UncheckedRetries { attempts, first, longest } = read;
        Self { attempts, first, longest }.check()
    }
}

/// Five attempts, with pauses of about 1, 2, 4 and 8 seconds.
impl Default for Retries {
    fn default() -> Self {
        Self::USUAL
    }
}

impl Retries {
    /// Five attempts, with pauses of about 1, 2, 4 and 8 seconds.
    pub const USUAL: Self = Self { attempts: 5, first: Ttl::from_secs(1), longest: Ttl::from_secs(3600) };

    /// The most attempts that a task can have.
    pub const MOST: u32 = 1000;

    /// Checks the bounds.
    pub fn check(self) -> Result<Self, Invalid> {
        if self.attempts == 0 || self.attempts > Self::MOST {
            let (attempts, most) = (self.attempts, Self::MOST);
            return Err(Invalid(format!("a task cannot have {attempts} attempts; it has 1 to {most}")));
        }
        Ok(self)
    }

    /// The pause after attempt number `attempt` (from 1) of a task: a quarter longer or shorter, so that those that
    /// failed together do not come back together. Which of it follows from the task, so that the rules stay pure.
    pub fn pause(&self, task: TaskId, attempt: u32) -> u64 {
        let doubled = self.first.as_micros().saturating_mul(1 << attempt.saturating_sub(1).min(30));
        let plain = doubled.min(self.longest.as_micros());
        plain / 1000 * (750 + roll(task, attempt))
    }

    /// A pause of at most `longest` microseconds that differs from task to task.
    pub fn jitter(task: TaskId, attempt: u32, longest: u64) -> u64 {
        longest / 500 * roll(task, attempt)
    }
}

/// A number from 0 to 500 that follows from the task and the attempt, so that the rules stay pure.
fn roll(task: TaskId, attempt: u32) -> u64 {
    let mut seed = task.as_uuid().as_bytes().to_vec();
    seed.extend(attempt.to_le_bytes());
    // The low bits of this hash are worse than the high ones.
    (fnv(&seed) >> 33) % 501
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_json_and_has_a_limit() {
        assert!(Payload::new("{\"a\":1}").is_ok());
        assert!(Payload::new("{a}").unwrap_err().0.starts_with("the payload is not JSON"));
        let large = format!("\"{}\"", "x".repeat(MAX_PAYLOAD));
        assert!(Payload::new(&large).unwrap_err().0.contains("1048576 is the most"));
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(Payload::new(&deep).unwrap_err().0.contains("nested deeper than 128"));
        assert!(serde_json::from_str::<Payload>(&deep).is_err(), "also in JSON");
        let kept = Payload::new("{\"big\": 12345678901234567890123, \"a\": 1.10}").unwrap();
        assert_eq!(serde_json::to_string(&kept).unwrap(), kept.as_str());
    }

    /// Part of the stored format.
    #[test]
    fn a_fingerprint_is_stored_like_this() {
        let one = Payload::new("{\"b\": 2, \"a\": 1.0}").unwrap();
        assert_eq!(one.fingerprint(), Fingerprint::of(b"{\"a\":1,\"b\":2}"));
        // The first bytes of what `printf '{"a":1,"b":2}' | sha256sum` prints.
        assert_eq!(one.fingerprint().get(), 0x4325_8cff_783f_e703);
        assert_eq!(Fingerprint::of_old(b"{\"a\":1}").get(), 0x9c3e_82dd_6fca_e8b1);
    }

    #[test]
    fn a_task_may_be_known_by_its_number() {
        let id = TaskId::numbered(123).unwrap();
        assert_eq!(id.to_string(), "6c656173-6568-8f6c-8400-000000000123");
        assert_eq!((id.number(), "#123".parse().ok()), (Some(123), Some(id)));
        let other = TaskId::from_uuid(Uuid::from_u128(123));
        assert_eq!((other.number(), other.short(), id.short()), (None, other.to_string(), "#123".to_owned()));
        assert_eq!(TaskId::numbered(1_000_000_000_000), None);
        assert!("#".parse::<TaskId>().is_err() && "#x".parse::<TaskId>().is_err());
        assert!("#1".parse::<WorkerId>().is_err());
    }

    #[test]
    fn pauses_double_with_some_jitter_up_to_the_longest() {
        let retries = Retries { attempts: 9, first: Ttl::from_secs(1), longest: Ttl::from_secs(60) };
        let mut seen = std::collections::BTreeSet::new();
        for task in 0..100_u128 {
            let id = TaskId::from_uuid(Uuid::from_u128(task));
            for (attempt, plain) in [(1, 1.0), (2, 2.0), (4, 8.0), (20, 60.0), (1000, 60.0)] {
                #[expect(clippy::cast_precision_loss, reason = "seconds")]
                let pause = retries.pause(id, attempt) as f64 / 1e6;
                assert!((0.75 * plain..=1.25 * plain).contains(&pause), "attempt {attempt}: {pause} s");
            }
            seen.insert(retries.pause(id, 1) / 50_000);
        }
        assert!(seen.len() >= 8, "jitter that is hardly there: {seen:?}");
    }

    #[test]
    fn long_notes_are_cut_between_characters() {
        let note = Note::new("ä".repeat(MAX_TEXT));
        assert!(note.as_str().len() <= MAX_TEXT);
        assert!(note.as_str().ends_with('ä'));
    }
}
