//! Connections, as far as the batcher uses them, and what the checks want to know of them.

use std::collections::BTreeSet;

use redis::{RedisError, RedisResult};
use shuttle::future::{JoinHandle, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;

use super::connector::{Connection, Sent};
use crate::model::LeaseId;

#[derive(Default)]
pub(crate) struct Connections {
    pub(super) sent: Sent,
    /// Leases with a call in doubt.
    pub(super) in_doubt: Mutex<BTreeSet<LeaseId>>,
    runtime: Runtime,
}

/// Runs senders as tasks.
#[derive(Default)]
pub(super) struct Runtime(pub(super) Mutex<Vec<JoinHandle<()>>>);

impl Runtime {
    pub(super) fn spawn(&self, sender: impl Future<Output = ()> + Send + 'static) {
        let sender = spawn(sender);
        self.0.lock().expect("no panic").push(sender);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    Background,
}

pub(super) struct OpenConnection {
    pub(super) generation: u64,
    pub(super) driver: Connection,
}

pub(super) struct InProgress;

#[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "the functions are those of the library")]
impl Connections {
    pub(super) fn background_runtime(&self) -> Option<&Runtime> {
        Some(&self.runtime)
    }

    pub(super) fn begin_call(&self) -> InProgress {
        InProgress
    }

    pub(super) async fn connection(&self, _: ConnectionKind) -> RedisResult<OpenConnection> {
        yield_now().await;
        if thread_rng().gen_ratio(1, 8) {
            return Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)));
        }
        Ok(OpenConnection { generation: 1, driver: Connection(self.sent.clone()) })
    }

    pub(super) fn discard_if_broken(&self, _: ConnectionKind, _: &OpenConnection, _: &RedisError) {}

    pub(super) fn clear_in_doubt(&self, lease: &LeaseId) {
        self.in_doubt.lock().expect("no panic").remove(lease);
    }

    pub(super) fn mark_in_doubt(&self, lease: &LeaseId, _: ConnectionKind, _: u64) {
        self.in_doubt.lock().expect("no panic").insert(*lease);
    }

    /// Waits for the end of all senders.
    pub(super) async fn senders_end(&self) {
        loop {
            let Some(sender) = self.runtime.0.lock().expect("no panic").pop() else { return };
            sender.await.expect("no panic");
        }
    }
}
