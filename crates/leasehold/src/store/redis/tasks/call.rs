//! Scripts of tasks: runs them and reads their replies.

use std::sync::{Arc, LazyLock};

use futures_util::FutureExt;
use redis::{Cmd, Value};

use super::super::connection::{CALL_TIMEOUT, Connections, REPLICA_TIMEOUT_MILLIS};
use super::super::error::{timed_out, unreadable};
use super::super::options::RedisOptions;
use super::super::scripts::{Script, ScriptCall, script_time};
use super::codec::Stored;
use super::enqueue_batch::EnqueueBatcher;
use super::notifier::TaskNotifier;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{QueueName, Timestamp};
use crate::store::Clock;
use crate::store::protocol::TaskCall;

macro_rules! script {
    ($($name:ident = $file:literal;)+) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!(
                include_str!("begin.lua"), include_str!("common.lua"), include_str!($file)
            )));)+
    };
}

/// Enqueues plain tasks; without `common.lua`, because most calls are for few tasks.
pub(super) static ADD: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("begin.lua"), include_str!("add.lua"))));

script! {
    ENQUEUE = "enqueue.lua";
    LEASE = "lease.lua";
    HEARTBEAT = "heartbeat.lua";
    SETTLE = "settle.lua";
    SLOW_PATH = "slow_path.lua";
    READ = "read.lua";
    RECOVER = "recover.lua";
    RETENTION = "retention.lua";
    QUEUES = "queues.lua";
}

/// Maximum number of tasks per script: while a script runs, the server does nothing else.
pub(super) const CHUNK: usize = 100;

#[derive(Clone)]
pub(crate) struct Tasks {
    pub(super) connections: Arc<Connections>,
    /// Key of the hash of all tasks. All other keys have the same prefix.
    pub(super) key: String,
    pub(super) base: String,
    /// On a Cluster, a key in the slot of the tasks that never exists. Scripts declare it: while the slot
    /// moves to another node, key by key, Redis then refuses a script before its first write. Otherwise
    /// a script would fail at the first key that has moved, and leave half of its writes.
    absent_key: Option<String>,
    pub(super) notifier: Arc<TaskNotifier>,
    pub(super) clock: Option<Clock>,
    pub(super) wait_replicas: u32,
    pub(super) enqueues: Arc<EnqueueBatcher>,
}

impl Tasks {
    pub(crate) fn new(connections: Arc<Connections>, options: &RedisOptions) -> Self {
        let base = format!("{}:{{t}}:", options.prefix);
        let absent_key = connections.is_cluster().then(|| format!("{base}absent"));
        Self {
            connections,
            key: format!("{base}tasks"),
            absent_key,
            notifier: Arc::new(TaskNotifier::new(&base)),
            base,
            clock: options.clock.clone(),
            wait_replicas: options.wait_replicas,
            enqueues: Arc::default(),
        }
    }

    /// Runs a script with these arguments after the common ones.
    pub(super) async fn run(
        &self,
        call: TaskCall,
        script: &Script,
        with: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<Value> {
        self.run_then(call, script, with, &[]).await
    }

    async fn run_then(
        &self,
        call: TaskCall,
        script: &Script,
        with: impl Fn(&mut Cmd) + Send + Sync,
        then: &[Cmd],
    ) -> Result<Value> {
        let now = script_time(self.clock.as_ref());
        let publish = if self.connections.is_cluster() { "SPUBLISH" } else { "PUBLISH" };
        let all = |cmd: &mut Cmd| {
            match &self.absent_key {
                Some(absent_key) => cmd.arg(2).arg(&self.key).arg(absent_key),
                None => cmd.arg(1).arg(&self.key),
            };
            cmd.arg(&now).arg(&self.notifier.channel).arg(publish);
            with(cmd);
        };
        // Boxed: the nested futures would be too deep for the compiler.
        let reply = script.run(&self.connections, ScriptCall { then, ..ScriptCall::new(call) }, all).boxed();
        let late = |_| Err(timed_out(self.connections.display_url()));
        tokio::time::timeout(CALL_TIMEOUT, reply).await.unwrap_or_else(late)
    }

    /// Runs a script that may make tasks ready, and notifies waiting workers of this process.
    pub(super) async fn run_and_notify(
        &self,
        call: TaskCall,
        script: &Script,
        with: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<Reply> {
        let mut reply = self.run_to_replicas(call, script, with).await?;
        let mut newly_ready = Reply::of(reply.next()?)?;
        while !newly_ready.is_empty() {
            let (queue, tasks) = (newly_ready.text()?, newly_ready.number()?);
            let queue = QueueName::new(queue).map_err(|_| unexpected_reply())?;
            self.notifier.local.notify(&queue, usize::try_from(tasks).unwrap_or(0));
        }
        Ok(reply)
    }

    /// Runs a script that writes, and waits for replicas if they must acknowledge the write.
    /// Returns an error if they do not: the caller may repeat the call, as after any lost answer.
    pub(super) async fn run_to_replicas(
        &self,
        call: TaskCall,
        script: &Script,
        with: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<Reply> {
        if self.wait_replicas == 0 {
            return Reply::of(self.run(call, script, with).await?);
        }
        // Since Redis 7.2, `WAIT` covers only the writes of its own connection. A repeated call finds its
        // change made, perhaps on another connection, and writes nothing; so this command does.
        let mark = redis::cmd("SET").arg(format!("{}sync", self.base)).arg("").take();
        let wait = redis::cmd("WAIT").arg(self.wait_replicas).arg(REPLICA_TIMEOUT_MILLIS).take();
        let mut replies = Reply::of(self.run_then(call, script, with, &[mark, wait]).await?)?;
        let (reply, _mark, replicas) = (replies.list()?, replies.next()?, replies.number()?);
        if replicas < i64::from(self.wait_replicas) {
            let (wanted, store) = (self.wait_replicas, self.connections.display_url());
            let message = format!(
                "{replicas} of {wanted} replicas of the store {store} have acknowledged a change of tasks"
            );
            let hint = "retry; check the replicas, or require fewer with ?wait_replicas=…";
            return Err(Error::store(StoreErrorKind::Unavailable, message, hint));
        }
        Ok(reply)
    }

    pub(super) async fn read(&self, with: impl Fn(&mut Cmd) + Send + Sync) -> Result<Read> {
        let mut reply = Reply::of(self.run(TaskCall::Get, &READ, with).await?)?;
        let (now, stored) = (reply.time()?, reply.stored()?);
        let examined = usize::try_from(reply.number()?).map_err(|_| unexpected_reply())?;
        Ok(Read { now, stored, examined, all: i64::try_from(examined).ok() == Some(reply.number()?) })
    }
}

pub(super) struct Read {
    pub(super) now: Timestamp,
    pub(super) stored: Vec<Stored>,
    /// Number of requested or found ids that were read: the script stops when its reply is large.
    pub(super) examined: usize,
    /// Whether these were all ids.
    pub(super) all: bool,
}

/// Position in a sorted set at which a script continues the search of an earlier one.
pub(super) struct Position {
    score: String,
    /// Number of members with this score to skip.
    skipped: i64,
}

impl Position {
    pub(super) fn start() -> Self {
        Self { score: "-inf".to_owned(), skipped: 0 }
    }

    pub(super) fn write(&self, cmd: &mut Cmd) {
        cmd.arg(&self.score).arg(self.skipped);
    }
}

/// Converts a boolean to the form that scripts take.
pub(super) const fn flag(value: bool) -> &'static str {
    if value { "1" } else { "" }
}

/// Unread rest of a reply.
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(super) fn of(value: Value) -> Result<Self> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            _ => Err(unexpected_reply()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    pub(super) fn next(&mut self) -> Result<Value> {
        self.0.next().ok_or_else(unexpected_reply)
    }

    pub(super) fn list(&mut self) -> Result<Self> {
        Self::of(self.next()?)
    }

    pub(super) fn number(&mut self) -> Result<i64> {
        match self.next()? {
            Value::Int(number) => Ok(number),
            _ => Err(unexpected_reply()),
        }
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(unexpected_reply()),
        }
    }

    pub(super) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| unexpected_reply())
    }

    pub(super) fn time(&mut self) -> Result<Timestamp> {
        u64::try_from(self.number()?).map(Timestamp::from_micros).map_err(|_| unexpected_reply())
    }

    /// Reads the position at which the next script continues; `None` at the end.
    pub(super) fn position(&mut self) -> Result<Option<Position>> {
        let (score, skipped) = (self.text()?, self.number()?);
        Ok((!score.is_empty()).then_some(Position { score, skipped }))
    }

    /// Reads tasks: id, record and payload of each.
    pub(super) fn stored(&mut self) -> Result<Vec<Stored>> {
        let mut list = self.list()?;
        let mut found = Vec::with_capacity(list.0.len() / 3);
        while !list.is_empty() {
            let (id, record, payload) = (list.bytes()?, list.bytes()?, list.bytes()?);
            found.push(Stored::read(&id, record, payload)?);
        }
        Ok(found)
    }
}

pub(super) fn unexpected_reply() -> Error {
    unreadable("the reply of a script")
}
