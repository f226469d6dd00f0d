//! Running a script that the server may have forgotten.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};

use super::line::Order;
use super::link::Link;
use crate::model::LeaseId;
use crate::store::repeat::Repeat;

/// A script and the name that the server knows it by.
pub(super) struct Script {
    text: String,
    hash: String,
}

/// One operation on one lock.
pub(super) static APPLY: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("short.lua"), include_str!("apply.lua"))));
/// Several operations on several locks, if they are simple.
pub(super) static MANY: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("many.lua")));
/// A lock's record and those who wait for it, as of the same moment.
pub(super) static READ: LazyLock<Script> = LazyLock::new(|| {
    Script::new("return { redis.call('GET', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1) }")
});
/// What a waiter needs to know of a lock.
pub(super) static PEEK: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("peek.lua")));
/// Removes idle locks of one bucket.
pub(super) static FORGET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("forget.lua")));
/// The history of one lock.
pub(super) static CHAIN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("chain.lua")));
/// The history of one bucket.
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

    /// Runs it. A server that has been restarted does not know it any more; then it is sent whole.
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

/// For whom a script is run, and what is sent right behind it.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) lease: Option<&'a LeaseId>,
    pub(super) then: Option<&'a Cmd>,
    pub(super) repeat: Repeat,
}

impl Call<'_> {
    /// For nobody in particular, with nothing behind it.
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
