//! Store protocol between a leasehold client and a leasehold server. Both sides use the definitions
//! in this file.
//!
//! A call of [`LockStore`](crate::store::LockStore), [`TaskStore`](crate::store::TaskStore) or
//! [`DocumentStore`](crate::store::DocumentStore) is one `POST` to [`PATH`]`/locks/…`, `/tasks/…` or
//! `/docs/…`. The request body is the JSON list of the call's arguments, the response body its
//! result, both in the serialization of the model. See `docs/decisions/0017-http-store.md`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::Digest;
use uuid::Uuid;

use crate::error::StoreErrorKind;
use crate::model::{LeaseId, QueueName, Ttl, WorkerId};
use crate::store::{Capabilities, Recipient, TaskCapabilities};

/// Version of the protocol. Both sides refuse any other version.
pub const VERSION: &str = "1";
/// Path prefix of the calls.
pub const PATH: &str = "/api/v1/store";
/// Header with the [`VERSION`], in both directions.
pub const VERSION_HEADER: &str = "leasehold-protocol";
/// Response header with the server's [`Tick`].
pub const CLOCK_HEADER: &str = "leasehold-clock";
/// Request header with the latest [`Tick`] of each server at which the request may begin.
pub const UNTIL_HEADER: &str = "leasehold-until";
/// Request header with its [`CallId`].
pub const CALL_HEADER: &str = "leasehold-call";
/// Maximum duration of a poll for wake-ups on the server.
pub const MAX_POLL_SECONDS: u64 = 30;
/// Maximum number of waiters, and of queues, of one client that the server subscribes to; the others
/// poll.
pub const MAX_LISTENED: usize = 10_000;
/// Maximum number of documents of one request.
pub const MAX_KEYS: usize = 1000;
/// Maximum size of a request body.
pub const LARGEST_BODY: usize = 32 * 1024 * 1024;

macro_rules! calls {
    ($(#[$doc:meta])* $calls:ident { $($(#[$variant_doc:meta])* $call:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $calls {
            $($(#[$variant_doc])* $call,)*
        }

        impl $calls {
            /// Path words of all calls.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// Returns the word of the call in the path.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$call => $word,)*
                }
            }
        }
    };
}

calls! {
    /// Calls on locks.
    LockCall {
        /// `(name, op)`
        Apply = "apply",
        /// `(name)`
        Get = "get",
        /// `(name, waiter)`
        Peek = "peek",
        /// `(ask)`
        List = "list",
        /// `(ask)`
        History = "history",
        /// `()`
        Now = "now",
        /// `(limit)`
        Sweep = "sweep",
        /// `(idle, limit)`: only if the server's [`Hello`] has
        /// [`forgets_locks`](Hello::forgets_locks)
        Forget = "forget",
    }
}

calls! {
    /// Calls on tasks.
    TaskCall {
        /// `(new)`
        Enqueue = "enqueue",
        /// `(ask)`
        Lease = "lease",
        /// `(worker, held, ttl)`
        Heartbeat = "heartbeat",
        /// `(worker)`
        Deregister = "deregister",
        /// `(settle)`
        Settle = "settle",
        /// `(id, op)`
        Change = "change",
        /// `(limit)`
        Recover = "recover",
        /// `(id)`
        Get = "get",
        /// `(queue, key)`
        GetByKey = "get_by_key",
        /// `(ask)`
        List = "list",
        /// `()`
        Queues = "queues",
        /// `(queue)`
        Queue = "queue",
        /// `(queue, pause)`
        Pause = "pause",
        /// `()`
        Workers = "workers",
        /// `(which)`
        Archive = "archive",
        /// `(which)`
        Purge = "purge",
        /// `()`
        Now = "now",
    }
}

calls! {
    /// Calls on documents.
    DocCall {
        /// `(keys)`: one or several
        Get = "get",
        /// `(key, expected, body, keep)`
        PutIf = "put_if",
        /// `(prefix, after, limit)`
        List = "list",
        /// `()`
        Time = "time",
    }
}

impl TaskCall {
    /// Whether a store may resend the call by itself after the response was lost: the second call
    /// changes nothing more and returns the same result as the first. A repeated lease would take
    /// more tasks, and the leases of the first would expire before those tasks run: the worker
    /// queries the store instead for the tasks that it holds. The other excluded calls would return a
    /// different result.
    pub const fn is_repeatable(self) -> bool {
        !matches!(self, Self::Lease | Self::Change | Self::Archive | Self::Purge)
    }
}

impl DocCall {
    /// Whether a store may resend the call by itself after the response was lost. A repeated write
    /// would conflict with itself.
    pub const fn is_repeatable(self) -> bool {
        !matches!(self, Self::PutIf)
    }
}

/// Description that a server returns to the first request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is an ability of its own, and they are only told")]
pub struct Hello {
    /// Version of leasehold.
    pub version: String,
    /// Engine behind the server.
    pub engine: String,
    /// Shortest practical TTL with this engine.
    pub min_ttl: Ttl,
    /// Poll interval of waiters that receive no wake-up, in milliseconds.
    pub poll_millis: u64,
    /// Whether the server sends wake-ups.
    pub push_notifications: bool,
    /// Whether the stored data survives the end of the server.
    pub persistent: bool,
    /// Whether several holders can hold a lock at once.
    pub shared_locks: bool,
    /// Whether the engine has a queue of waiters.
    pub queues: bool,
    /// Time for which an expired lease still blocks other callers, in milliseconds.
    pub clock_uncertainty_millis: u64,
    /// Default TTL of a lease.
    pub ttl: Ttl,
    /// Whether the engine supports tasks.
    pub tasks: bool,
    /// Task features.
    pub task_capabilities: TaskCapabilities,
    /// Whether the engine supports documents.
    pub docs: bool,
    /// Whether a read of a document may return an older state than the latest write.
    #[serde(default)]
    pub doc_reads_may_be_old: bool,
    /// Whether the engine deletes idle locks, and the server supports the call `locks/forget`.
    pub forgets_locks: bool,
    /// Tag that the ids of the caller's workers carry; `None` on a server without API tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_tag: Option<WorkerTag>,
}

impl Hello {
    /// Describes a server by the capabilities of its engine.
    pub fn new(version: &str, capabilities: &Capabilities, (tasks, docs): (bool, bool)) -> Self {
        Self {
            version: version.to_owned(),
            engine: capabilities.engine.to_owned(),
            min_ttl: capabilities.min_ttl,
            poll_millis: millis(capabilities.poll),
            push_notifications: capabilities.push_notifications,
            persistent: capabilities.persistent,
            shared_locks: capabilities.shared_locks,
            queues: capabilities.queues,
            clock_uncertainty_millis: millis(capabilities.clock_uncertainty),
            ttl: capabilities.ttl,
            tasks,
            task_capabilities: capabilities.tasks,
            docs,
            doc_reads_may_be_old: false,
            forgets_locks: capabilities.forgets_locks,
            worker_tag: None,
        }
    }
}

/// First half of the ids of all workers that use one API token. A task names the worker that leased
/// it, so the task shows to which token its lease belongs, on every server and after every restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkerTag(u64);

impl WorkerTag {
    /// Version field of a UUID, and its value for a UUID with custom content.
    const VERSION: u64 = 0xF000;
    const OWN_MEANING: u64 = 0x8000;
    /// Variant field in the second half of a UUID, and the standard variant.
    const VARIANT: u64 = 0xC000_0000_0000_0000;
    const USUAL_VARIANT: u64 = 0x8000_0000_0000_0000;

    /// Returns the tag of the API token with this name.
    pub fn of(token: &str) -> Self {
        let hash = sha2::Sha256::digest(token.as_bytes());
        let first = hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
        Self(first & !Self::VERSION | Self::OWN_MEANING)
    }

    /// Returns the id with this tag in place of its first half. An id that carries the tag already is
    /// returned unchanged.
    #[must_use]
    pub fn put_on(self, id: WorkerId) -> WorkerId {
        let (_, second) = id.as_uuid().as_u64_pair();
        let second = second & !Self::VARIANT | Self::USUAL_VARIANT;
        WorkerId::from_uuid(Uuid::from_u64_pair(self.0, second))
    }

    /// Whether the id carries this tag.
    pub fn is_on(self, id: WorkerId) -> bool {
        id.as_uuid().as_u64_pair().0 == self.0
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Subscriptions of one client. Each poll carries the complete set: the server drops subscriptions
/// that are not in it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Listen {
    /// Id of the client: one for each open store.
    pub client: Uuid,
    /// Number of the poll, which rises with every poll of that client; the server answers an older
    /// poll at once.
    pub number: u64,
    /// Requests that wait for a lock.
    pub leases: Vec<LeaseId>,
    /// Queues that workers wait for.
    pub queues: Vec<QueueName>,
    /// Leases and workers whose notices the client subscribes to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<Recipient>,
}

/// Wake-ups since the last poll. Each is a hint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Notifications {
    /// Requests that wait for a lock and may have been granted it.
    pub leases: Vec<LeaseId>,
    /// Queues in which tasks may have arrived.
    pub queues: Vec<QueueName>,
    /// Leases and workers that other callers have changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<Recipient>,
}

/// Returns the word for an error kind in the problem document of a server.
pub const fn store_error_kind_name(kind: StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::Unavailable => "unavailable",
        StoreErrorKind::NotPermitted => "not_permitted",
        StoreErrorKind::Misconfigured => "misconfigured",
        StoreErrorKind::NotSupported => "not_supported",
        StoreErrorKind::Broken => "broken",
    }
}

/// Returns the error kind for a word.
pub fn read_store_error_kind(name: &str) -> Option<StoreErrorKind> {
    let all = [
        StoreErrorKind::Unavailable,
        StoreErrorKind::NotPermitted,
        StoreErrorKind::Misconfigured,
        StoreErrorKind::NotSupported,
        StoreErrorKind::Broken,
    ];
    all.into_iter().find(|kind| store_error_kind_name(*kind) == name)
}

/// Reading of one server's own clock, which never steps: microseconds since that server started.
/// Meaningless to another server, and to the same server after a restart, which is another instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// Instance whose clock was read: a new id each time a server starts.
    pub instance: Uuid,
    /// Microseconds since the start of the instance.
    pub micros: u64,
}

impl Tick {
    /// Formats the tick for a header.
    pub fn write(self) -> String {
        format!("{}={}", self.instance.simple(), self.micros)
    }

    /// Parses a header that may contain several ticks.
    pub fn read(text: &str) -> Vec<Self> {
        text.split(',').filter_map(Self::read_one).collect()
    }

    fn read_one(text: &str) -> Option<Self> {
        let (instance, micros) = text.trim().split_once('=')?;
        Some(Self { instance: instance.parse().ok()?, micros: micros.parse().ok()? })
    }
}

/// Identifies one request of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallId {
    /// Id of the client: one for each open store.
    pub client: Uuid,
    /// Number of the request, which rises with every request of that client.
    pub number: u64,
    /// Whether an earlier request for the same lease id got no response: if that request has not
    /// begun, it must not begin any more.
    pub supersedes: bool,
}

impl CallId {
    /// Formats the id for a header.
    pub fn write(self) -> String {
        let last = if self.supersedes { "!" } else { "" };
        format!("{}/{}{last}", self.client.simple(), self.number)
    }

    /// Parses the id from a header.
    pub fn read(text: &str) -> Option<Self> {
        let (client, number) = text.split_once('/')?;
        let (number, supersedes) = match number.strip_suffix('!') {
            Some(number) => (number, true),
            None => (number, false),
        };
        Some(Self { client: client.parse().ok()?, number: number.parse().ok()?, supersedes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_put_on_once_and_known_again() {
        let (ada, eve) = (WorkerTag::of("ada"), WorkerTag::of("eve"));
        let id = WorkerId::from_uuid(Uuid::from_u128(u128::MAX));
        let tagged = ada.put_on(id);
        assert!(ada.is_on(tagged) && !eve.is_on(tagged) && !ada.is_on(id));
        assert_eq!(ada.put_on(tagged), tagged);
        assert_eq!(tagged.as_uuid().get_version_num(), 8);
        assert_eq!(tagged.as_uuid().get_variant(), uuid::Variant::RFC4122);
        let other = ada.put_on(WorkerId::from_uuid(Uuid::from_u128(u128::MAX - 1)));
        assert_ne!(other, tagged);
    }

    #[test]
    fn what_stands_in_headers_can_be_read_again() {
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let ticks = [Tick { instance: one, micros: 7 }, Tick { instance: two, micros: u64::MAX }];
        let text = ticks.map(Tick::write).join(",");
        assert_eq!(Tick::read(&text), ticks);
        assert_eq!(Tick::read("nonsense,=,x=1,1=x"), []);
        for supersedes in [false, true] {
            let call = CallId { client: one, number: 9, supersedes };
            assert_eq!(CallId::read(&call.write()), Some(call));
        }
        assert_eq!(CallId::read("nonsense"), None);
        assert_eq!(CallId::read(&format!("{one}/-1")), None);
    }

    #[test]
    fn a_call_is_called_in_the_path_as_in_the_code() {
        for call in [LockCall::Apply, LockCall::History] {
            assert_eq!(serde_json::to_string(&call).unwrap(), format!("\"{}\"", call.as_str()));
        }
        assert_eq!(
            serde_json::to_string(&DocCall::PutIf).unwrap(),
            format!("\"{}\"", DocCall::PutIf.as_str())
        );
    }
}
