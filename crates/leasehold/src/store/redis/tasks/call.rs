//! Running a script about tasks, and reading its answer.

use std::sync::LazyLock;

use futures_util::FutureExt;
use redis::{Cmd, Value};

use super::super::locks::WAIT_MILLIS;
use super::super::packed::unreadable;
use super::super::scripts::{Call, Script};
use super::super::trouble::explain;
use super::record::Stored;
use super::store::Tasks;
use crate::error::{Error, Result, Trouble};
use crate::model::{QueueName, Timestamp};

macro_rules! script {
    ($($name:ident = $file:literal;)+) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!(include_str!("common.lua"), include_str!($file))));)+
    };
}

script! {
    ENQUEUE = "enqueue.lua";
    LEASE = "lease.lua";
    BEAT = "beat.lua";
    SETTLE = "settle.lua";
    SWAP = "swap.lua";
    READ = "read.lua";
    RECOVER = "recover.lua";
    TIDY = "tidy.lua";
    QUEUES = "queues.lua";
}

impl Tasks {
    /// Runs a script with these arguments after those that all have.
    pub(super) async fn run(&self, script: &Script, with: impl Fn(&mut Cmd) + Send + Sync) -> Result<Value> {
        self.run_then(script, with, None).await
    }

    async fn run_then(
        &self,
        script: &Script,
        with: impl Fn(&mut Cmd) + Send + Sync,
        then: Option<&Cmd>,
    ) -> Result<Value> {
        let now = self.clock.as_ref().map(|clock| clock.now().as_micros().to_string()).unwrap_or_default();
        let publish = if self.link.is_cluster() { "SPUBLISH" } else { "PUBLISH" };
        let all = |cmd: &mut Cmd| {
            cmd.arg(1).arg(&self.key).arg(&now).arg(self.bell.channel()).arg(publish);
            with(cmd);
        };
        // Boxed: the compiler would have to look through too many futures within futures.
        let reply = script.run(&self.link, Call { lease: None, then }, all).boxed().await;
        reply.map_err(|error| explain(&self.shown, error))
    }

    /// Runs a script that may have made tasks ready, and wakes workers of this process that wait for them.
    pub(super) async fn run_and_ring(
        &self,
        script: &Script,
        with: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<Reply> {
        let mut reply = self.run_to_replicas(script, with).await?;
        let mut bells = Reply::of(reply.next()?)?;
        while !bells.is_empty() {
            let (queue, tasks) = (bells.text()?, bells.number()?);
            let queue = QueueName::new(queue).map_err(|_| wrong())?;
            self.bell.ring(&queue, usize::try_from(tasks).unwrap_or(0));
        }
        Ok(reply)
    }

    /// Runs a script that writes; if replicas have to acknowledge that, waits for them. If they do not, it is an error: it
    /// may be done again, as after any lost answer.
    async fn run_to_replicas(&self, script: &Script, with: impl Fn(&mut Cmd) + Send + Sync) -> Result<Reply> {
        if self.wait_replicas == 0 {
            return Reply::of(self.run(script, with).await?);
        }
        let wait = redis::cmd("WAIT").arg(self.wait_replicas).arg(WAIT_MILLIS).take();
        let mut both = Reply::of(self.run_then(script, with, Some(&wait)).await?)?;
        let (reply, replicas) = (both.list()?, both.number()?);
        if replicas < i64::from(self.wait_replicas) {
            let (wanted, store) = (self.wait_replicas, &self.shown);
            let message = format!(
                "{replicas} of {wanted} replicas of the store {store} have acknowledged a change of tasks"
            );
            let hint = "try again; look at the replicas, or ask for fewer with ?wait_replicas=…";
            return Err(Error::store(Trouble::Unavailable, message, hint));
        }
        Ok(reply)
    }

    /// Runs `READ`: the time, and the tasks that were found.
    pub(super) async fn read(
        &self,
        with: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<(Timestamp, Vec<Stored>)> {
        let mut reply = Reply::of(self.run(&READ, with).await?)?;
        Ok((reply.time()?, reply.stored()?))
    }
}

/// What is left of an answer.
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(super) fn of(value: Value) -> Result<Self> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            _ => Err(wrong()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    pub(super) fn next(&mut self) -> Result<Value> {
        self.0.next().ok_or_else(wrong)
    }

    pub(super) fn list(&mut self) -> Result<Self> {
        Self::of(self.next()?)
    }

    pub(super) fn number(&mut self) -> Result<i64> {
        match self.next()? {
            Value::Int(number) => Ok(number),
            _ => Err(wrong()),
        }
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(wrong()),
        }
    }

    pub(super) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| wrong())
    }

    pub(super) fn time(&mut self) -> Result<Timestamp> {
        u64::try_from(self.number()?).map(Timestamp::from_micros).map_err(|_| wrong())
    }

    /// Tasks: id, record and payload of each.
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

pub(super) fn wrong() -> Error {
    unreadable("the answer of a script")
}
