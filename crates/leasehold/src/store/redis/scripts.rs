//! Runs scripts, loads those that the server has forgotten, and reads the values that they pack.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, FromRedisValue, RedisResult, ServerErrorKind, Value};

use super::connection::{Connections, Request};
use crate::Result;
use crate::model::{LeaseId, MAX_WAITERS, Priority, TaskState, TaskTable, Token, WorkerStatus};
use crate::store::Clock;
use crate::store::repeat::Repeat;

/// Script and the hash by which the server knows it.
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

/// Approximate maximum number of payload and result bytes that a script reads or writes, because the
/// server does nothing else meanwhile.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Applies one operation to one lock by a fast path, or reads the lock for the slow path.
pub(super) static APPLY: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("locks/apply.lua")));
/// Stores a lock that the slow path has changed.
pub(super) static SLOW_PATH: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("locks/slow_path.lua")));
/// Applies several operations to several locks, by the fast path only.
pub(super) static BATCH: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("locks/batch.lua")));
/// Reads a lock's record and its waiters atomically.
pub(super) static READ: LazyLock<Script> = LazyLock::new(|| {
    Script::new("return { redis.call('GET', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1) }")
});
/// Reads the state of a lock that a waiter needs.
pub(super) static PEEK: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("locks/peek.lua")));
/// Removes idle locks of one bucket.
pub(super) static FORGET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("locks/forget.lua")));
/// Reads events of one bucket.
pub(super) static BUCKET_HISTORY: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("locks/recent.lua"), include_str!("locks/bucket_history.lua")))
});
/// Moves the recent events of one bucket to its stream.
pub(super) static MOVE_EVENTS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("locks/recent.lua"), include_str!("locks/move_events.lua")))
});
/// Removes old events of one bucket, and returns whether its recent events are longer than a limit (1).
pub(super) static PRUNE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "for _, stream in ipairs({ KEYS[1], KEYS[3] }) do
           redis.call('XTRIM', stream, 'MINID', '~', ARGV[1])
         end
         return #redis.call('GETRANGE', KEYS[2], ARGV[2], ARGV[2])",
    )
});

/// Returns the constants that scripts use: limits of the model, and numbers of task states.
fn constants() -> impl Iterator<Item = (String, u64)> {
    let limits = [
        ("MAX_TOKEN", Token::MAX.get()),
        ("MAX_WAITERS", MAX_WAITERS as u64),
        ("PRIORITY_STEP", Priority::STEP.as_micros()),
        ("MAX_PROMOTED", TaskTable::MAX_PROMOTED.into()),
        ("WORKER_LISTED_FOR", WorkerStatus::LISTED_FOR.as_micros()),
        ("CHUNK_BYTES", CHUNK_BYTES as u64),
    ];
    let states = TaskState::ALL.into_iter().map(|state| (state.as_str().to_uppercase(), state as u64));
    limits.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(states)
}

impl Script {
    /// Assembles a script, with the fast path of locks and the constants that it uses.
    pub(super) fn new(text: &str) -> Self {
        let mut text = text.replace("-- fast_path.lua\n", include_str!("locks/fast_path.lua"));
        for (name, value) in constants() {
            if text.contains(&name) {
                text.insert_str(0, &format!("local {name} = {value}\n"));
            }
        }
        Self { hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }

    /// Runs the script. A restarted server does not have it any more; then the whole text is sent.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        connections: &Connections,
        call: ScriptCall<'_>,
        with: impl Fn(&mut Cmd),
    ) -> Result<T> {
        let cmd = |name: &str, script: &str| {
            let mut cmd = redis::cmd(name);
            cmd.arg(script);
            with(&mut cmd);
            cmd
        };
        let mut reply = call.send(connections, &cmd("EVALSHA", &self.hash)).await;
        if reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)) {
            reply = call.send(connections, &cmd("EVAL", &self.text)).await;
        }
        connections.read(reply)
    }
}

/// Returns the time argument of a script: empty for the server's clock.
pub(super) fn script_time(clock: Option<&Clock>) -> String {
    clock.map(|clock| clock.now().as_micros().to_string()).unwrap_or_default()
}

/// Lease for which a script runs, and the commands that follow it.
#[derive(Clone, Copy)]
pub(super) struct ScriptCall<'a> {
    pub(super) lease: Option<&'a LeaseId>,
    pub(super) then: &'a [Cmd],
    pub(super) repeat: Repeat,
}

impl ScriptCall<'_> {
    /// Returns a call that belongs to no lease and is followed by no other command.
    pub(super) fn new(repeat: impl Into<Repeat>) -> Self {
        Self { lease: None, then: &[], repeat: repeat.into() }
    }

    async fn send(&self, connections: &Connections, cmd: &Cmd) -> RedisResult<Value> {
        let request = Request { cmd, then: self.then, repeat: self.repeat };
        match self.lease {
            Some(lease) => connections.send_for(lease, request).await,
            None => connections.send(request).await,
        }
    }
}

/// Reads packed values, which the scripts also read and write, from the front of the remaining bytes:
/// big-endian, texts with a length prefix.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a text of at most 255 bytes.
    pub(super) fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.take(length.into())
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.short()?).ok()
    }

    pub(super) fn long(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(usize::try_from(length).ok()?)
    }
}
