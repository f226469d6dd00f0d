//! Runs scripts, and loads those that the server has forgotten.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};

use super::line::Order;
use super::link::Link;
use crate::model::LeaseId;
use crate::store::repeat::Repeat;

/// Script and the hash by which the server knows it.
pub(super) struct Script {
    text: String,
    hash: String,
}

/// Applies one operation to one lock.
pub(super) static APPLY: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("short.lua"), include_str!("apply.lua"))));
/// Applies several simple operations to several locks.
pub(super) static MANY: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("many.lua")));
/// Reads a lock's record and its waiters atomically.
pub(super) static READ: LazyLock<Script> = LazyLock::new(|| {
    Script::new("return { redis.call('GET', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1) }")
});
/// Reads the state of a lock that a waiter needs.
pub(super) static PEEK: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("peek.lua")));
/// Removes idle locks of one bucket.
pub(super) static FORGET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("forget.lua")));
/// Reads the history of one lock.
pub(super) static CHAIN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("chain.lua")));
/// Reads the history of one bucket.
pub(super) static BUCKET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("bucket.lua")));

impl Script {
    pub(super) fn new(text: &str) -> Self {
        let text = text.replace("-- ways.lua\n", include_str!("ways.lua"));
        Self { hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn hash(&self) -> &str {
        &self.hash
    }

    /// Runs the script. A restarted server does not have it any more; then the whole text is sent.
    pub(super) async fn run(
        &self,
        link: &Link,
        call: Call<'_>,
        with: impl Fn(&mut Cmd),
    ) -> RedisResult<Value> {
        let cmd = |name: &str, script: &str| {
            let mut cmd = redis::cmd(name);
            cmd.arg(script);
            with(&mut cmd);
            cmd
        };
        let reply = call.send(link, &cmd("EVALSHA", &self.hash)).await;
        match reply {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                call.send(link, &cmd("EVAL", &self.text)).await
            }
            reply => reply,
        }
    }
}

/// Lease for which a script runs, and the command that follows it.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) lease: Option<&'a LeaseId>,
    pub(super) then: Option<&'a Cmd>,
    pub(super) repeat: Repeat,
}

impl Call<'_> {
    /// Returns a call that belongs to no lease and has no second command.
    pub(super) fn plain(repeat: impl Into<Repeat>) -> Self {
        Self { lease: None, then: None, repeat: repeat.into() }
    }
}

impl Call<'_> {
    async fn send(&self, link: &Link, cmd: &Cmd) -> RedisResult<Value> {
        let order = Order { cmd, then: self.then, repeat: self.repeat };
        match self.lease {
            Some(lease) => link.send_for(lease, order).await,
            None => link.send(order).await,
        }
    }
}
