//! The store protocol: how leasehold speaks to a leasehold server. Both sides take their words from here.
//!
//! A call of [`LockStore`](super::LockStore), [`TaskStore`](super::TaskStore) or [`DocStore`](super::DocStore) is one
//! `POST` to [`PATH`]`/locks/…`, `/tasks/…` or `/docs/…`. The body is the JSON list of the call's arguments, the answer
//! its result, both as the model itself writes them. See `docs/decisions/0017-http-store.md`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::Digest;
use uuid::Uuid;

use super::{Abilities, Recipient, TaskAbilities};
use crate::error::Trouble;
use crate::model::{LeaseId, QueueName, Ttl, WorkerId};

/// The version of the protocol. Another one is refused by both sides.
pub const VERSION: &str = "1";
/// Where the calls are.
pub const PATH: &str = "/api/v1/store";
/// The header with the [`VERSION`], in both directions.
pub const VERSION_HEADER: &str = "leasehold-protocol";
/// The header of an answer with the server's [`Tick`].
pub const CLOCK_HEADER: &str = "leasehold-clock";
/// The header of a request with the latest [`Tick`] of each server at which it may begin.
pub const UNTIL_HEADER: &str = "leasehold-until";
/// The header of a request with its [`CallId`].
pub const CALL_HEADER: &str = "leasehold-call";
/// The longest a server lets a poll for wake-ups wait.
pub const LONGEST_POLL_SECONDS: u64 = 30;
/// So many waiters of one client are listened for, and so many queues; the others poll.
pub const MOST_LISTENED: usize = 10_000;
/// The most documents of one request.
pub const MOST_KEYS: usize = 1000;
/// The largest body of a request.
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
            /// The words of all of them.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// Its word in the path.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$call => $word,)*
                }
            }
        }
    };
}

calls! {
    /// The calls on locks.
    LockCall {
        /// `(name, op)`
        Apply = "apply",
        /// `(name)`
        Get = "get",
        /// `(name, waiter)`: only of a server whose [`Hello`] says so
        Peek = "peek",
        /// `(ask)`
        List = "list",
        /// `(ask)`
        History = "history",
        /// `()`
        Now = "now",
        /// `(limit)`
        Sweep = "sweep",
        /// `(idle, limit)`: only of a server whose [`Hello`] says so
        Forget = "forget",
    }
}

calls! {
    /// The calls on tasks.
    TaskCall {
        /// `(new)`
        Enqueue = "enqueue",
        /// `(ask)`
        Lease = "lease",
        /// `(worker, held, ttl)`
        Heartbeat = "heartbeat",
        /// `(worker)`
        Leave = "leave",
        /// `(settle)`
        Settle = "settle",
        /// `(id, op)`
        Change = "change",
        /// `(limit)`
        Recover = "recover",
        /// `(id)`
        Get = "get",
        /// `(queue, key)`
        Keyed = "keyed",
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
    /// The calls on documents.
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
    /// Whether a store may send it again by itself after an answer was lost: the second time it changes nothing more, and
    /// is answered as the first. A lease would take more tasks, and those of the first would run out without having
    /// run: the worker asks the store instead which tasks it has. The others would be answered otherwise.
    pub const fn is_repeatable(self) -> bool {
        !matches!(self, Self::Lease | Self::Change | Self::Archive | Self::Purge)
    }
}

impl DocCall {
    /// Whether a store may send it again by itself after an answer was lost. A write would clash with itself.
    pub const fn is_repeatable(self) -> bool {
        !matches!(self, Self::PutIf)
    }
}

/// What a server says of itself when it is first asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is an ability of its own, and they are only told")]
pub struct Hello {
    /// The version of leasehold.
    pub version: String,
    /// The engine behind it.
    pub engine: String,
    /// The shortest ttl that makes sense with it.
    pub min_ttl: Ttl,
    /// How often waiters look if no wake-up comes, in milliseconds.
    pub poll_millis: u64,
    /// Whether it sends wake-ups.
    pub wakes: bool,
    /// Whether what it holds is still there after the server ends.
    pub lasting: bool,
    /// Whether several can hold a lock at once.
    pub shares: bool,
    /// Whether there is a queue.
    pub queues: bool,
    /// For how long a lease that has ended still keeps others out.
    pub grace_millis: u64,
    /// How long a lease lasts if nobody says otherwise.
    pub ttl: Ttl,
    /// Whether it has tasks.
    pub tasks: bool,
    /// What it can do with them. Servers from before this can do all of it.
    #[serde(default)]
    pub task_abilities: TaskAbilities,
    /// Whether it has documents.
    pub docs: bool,
    /// Whether it knows the call `locks/peek`. Servers before 0.2 do not.
    #[serde(default)]
    pub peeks: bool,
    /// Whether it forgets idle locks, and knows the call `locks/forget`.
    #[serde(default)]
    pub forgets_locks: bool,
    /// The tag that the ids of the caller's workers carry; none on a server without API tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_tag: Option<WorkerTag>,
}

impl Hello {
    /// From what the engine behind the server can do.
    pub fn new(version: &str, abilities: &Abilities, (tasks, docs): (bool, bool)) -> Self {
        Self {
            version: version.to_owned(),
            engine: abilities.engine.to_owned(),
            min_ttl: abilities.min_ttl,
            poll_millis: millis(abilities.poll),
            wakes: abilities.wakes,
            lasting: abilities.lasting,
            shares: abilities.shares,
            queues: abilities.queues,
            grace_millis: millis(abilities.grace),
            ttl: abilities.ttl,
            tasks,
            task_abilities: abilities.tasks,
            docs,
            peeks: true,
            forgets_locks: abilities.forgets_locks,
            worker_tag: None,
        }
    }
}

/// The first half of the ids of all workers that use one API token. A task names the worker that leased it, so the task
/// shows to which token its lease belongs, on every server and after every restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkerTag(u64);

impl WorkerTag {
    /// The version field of a UUID, and its value for a UUID with a meaning of its own.
    const VERSION: u64 = 0xF000;
    const OWN_MEANING: u64 = 0x8000;
    /// The variant field in the second half of a UUID, and the usual variant.
    const VARIANT: u64 = 0xC000_0000_0000_0000;
    const USUAL_VARIANT: u64 = 0x8000_0000_0000_0000;

    /// Returns the tag of the API token with this name.
    pub fn of(token: &str) -> Self {
        let hash = sha2::Sha256::digest(token.as_bytes());
        let first = hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
        Self(first & !Self::VERSION | Self::OWN_MEANING)
    }

    /// Returns the id with this tag in place of its first half. An id that carries the tag is returned as it is.
    #[must_use]
    pub fn put_on(self, id: WorkerId) -> WorkerId {
        let (_, second) = id.as_uuid().as_u64_pair();
        let second = second & !Self::VARIANT | Self::USUAL_VARIANT;
        WorkerId::from_uuid(Uuid::from_u64_pair(self.0, second))
    }

    /// Returns whether the id carries this tag.
    pub fn is_on(self, id: WorkerId) -> bool {
        id.as_uuid().as_u64_pair().0 == self.0
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What somebody listens for. All of it each time: the server forgets what is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Listen {
    /// Who listens: one id for each open store.
    pub client: Uuid,
    /// Rises with every poll of that client; an older one is answered at once.
    pub number: u64,
    /// Those who wait for a lock.
    pub leases: Vec<LeaseId>,
    /// The queues that workers wait for.
    pub queues: Vec<QueueName>,
    /// The leases and workers whose notices are wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<Recipient>,
}

/// Who may have been served meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Woken {
    /// Those who wait for a lock.
    pub leases: Vec<LeaseId>,
    /// Queues into which something may have come.
    pub queues: Vec<QueueName>,
    /// Leases and workers that others have changed something about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<Recipient>,
}

/// The word for a kind of trouble, in the problem that a server sends.
pub const fn trouble_word(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::Unavailable => "unavailable",
        Trouble::NotPermitted => "not_permitted",
        Trouble::Misconfigured => "misconfigured",
        Trouble::NotSupported => "not_supported",
        Trouble::Broken => "broken",
    }
}

/// The kind of trouble that a word means.
pub fn read_trouble(word: &str) -> Option<Trouble> {
    let all = [
        Trouble::Unavailable,
        Trouble::NotPermitted,
        Trouble::Misconfigured,
        Trouble::NotSupported,
        Trouble::Broken,
    ];
    all.into_iter().find(|trouble| trouble_word(*trouble) == word)
}

/// A reading of one server's own clock, which never steps: microseconds since that server started. Means nothing to
/// another server, nor to the same one after a restart, which is another instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// Whose clock: made anew each time a server starts.
    pub instance: Uuid,
    /// What it says.
    pub micros: u64,
}

impl Tick {
    /// As in a header.
    pub fn write(self) -> String {
        format!("{}={}", self.instance.simple(), self.micros)
    }

    /// From a header that may have several.
    pub fn read(text: &str) -> Vec<Self> {
        text.split(',').filter_map(Self::read_one).collect()
    }

    fn read_one(text: &str) -> Option<Self> {
        let (instance, micros) = text.trim().split_once('=')?;
        Some(Self { instance: instance.parse().ok()?, micros: micros.parse().ok()? })
    }
}

/// Which call of whom this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallId {
    /// One id for each open store.
    pub client: Uuid,
    /// Rises with every request of that client.
    pub number: u64,
    /// An earlier request for the same lease id got no answer: if it has not begun, it must not begin any more.
    pub supersedes: bool,
}

impl CallId {
    /// As in a header.
    pub fn write(self) -> String {
        let last = if self.supersedes { "!" } else { "" };
        format!("{}/{}{last}", self.client.simple(), self.number)
    }

    /// From a header.
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
            assert_eq!(serde_json::to_string(&call).unwrap(), format!("\"{}\"", call.word()));
        }
        assert_eq!(serde_json::to_string(&DocCall::PutIf).unwrap(), format!("\"{}\"", DocCall::PutIf.word()));
    }
}
