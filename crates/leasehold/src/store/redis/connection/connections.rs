//! Connections of this process to the servers: shared by all callers, opened again when they break.
//!
//! There are two connections. The inline connection lives on the runtime that connected: a single
//! caller there reaches the server without a change of threads. The background connection lives on
//! a thread of its own and serves all other callers: many concurrent callers, whose commands are
//! batched, and renewals, which no work of the caller may delay. With `wait_replicas` there is a third
//! one on that thread, opened by the first request that waits for replicas: while the server waits, it
//! executes no later command of the same connection, so renewals and heartbeats use another one.
//!
//! Commands on one connection stay in order. A call that was dropped or got no answer is in doubt: it
//! may still reach the server. So every later command for the same lease uses the same connection, and a
//! connection that is discarded is ended on the server before another one replaces it. Calls for one
//! lease do not wait for each other as in [`InOrder`](crate::store::in_order::InOrder): a connection
//! keeps their order without a wait for the previous answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, RedisError, RedisResult, Value};
use tokio::runtime::Handle;

use super::super::error::{explain, is_from_replica};
use super::connector::{ClientIdentity, Connection, Connector, OPEN_TIMEOUT, Request};
use crate::Result;
use crate::model::{LeaseId, Timestamp};
use crate::store::background::{Background, HomeRuntime};
use crate::store::support::mutex::lock;
use crate::store::{BootInstant, Clock};

/// Number of leases with calls in doubt at whose multiples those on replaced connections are dropped.
const PRUNE_IN_DOUBT_AT: usize = 10_000;
/// Age up to which a connection is kept although its server is a replica: a new one would lead to the same
/// server.
const KEEP_TO_REPLICA: Duration = Duration::from_secs(1);

pub(crate) struct Connections {
    connector: Arc<Connector>,
    inline: InlineConnection,
    background: Slot,
    replicated: Slot,
    background_thread: OnceLock<Option<Background>>,
    /// Leases with a call in doubt, and the connection that the call may still be on.
    in_doubt: Mutex<HashMap<LeaseId, (ConnectionKind, u64)>>,
    in_doubt_count: AtomicUsize,
}

/// Connection by the runtime on which it lives and the requests that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// On the runtime that connected.
    Inline,
    /// On the thread of this engine.
    Background,
    /// On the thread of this engine, for requests that wait for replicas.
    Replicated,
}

impl ConnectionKind {
    /// All kinds, each at the index that it is as a number.
    const ALL: [Self; 3] = [Self::Inline, Self::Background, Self::Replicated];
}

/// Slot of a connection, which is empty until it is needed and after it broke.
#[derive(Default)]
pub(super) struct Slot {
    connection: Mutex<Option<OpenConnection>>,
    /// Held while a connection is opened.
    opening: tokio::sync::Mutex<Opening>,
}

#[derive(Default)]
struct Opening {
    /// Number of connections that were opened so far.
    generation: u64,
    /// The previous connection, to be ended on the server before another one is used.
    previous: Option<ClientIdentity>,
    /// Last failure, shared by all callers that waited for this attempt.
    failed: Option<(BootInstant, RedisError)>,
}

/// Open connection and its number among those of its slot, beginning with 1.
#[derive(Clone)]
pub(super) struct OpenConnection {
    pub(super) generation: u64,
    pub(super) driver: Connection,
    opened_at: BootInstant,
}

impl Connections {
    /// Opens the inline connection, so that errors show immediately.
    pub(crate) async fn open(connector: Connector) -> Result<Self, (RedisError, Arc<Connector>)> {
        let connections = Self {
            connector: Arc::new(connector),
            inline: InlineConnection::new(),
            background: Slot::default(),
            replicated: Slot::default(),
            background_thread: OnceLock::new(),
            in_doubt: Mutex::default(),
            in_doubt_count: AtomicUsize::new(0),
        };
        match connections.connection(ConnectionKind::Inline).await {
            Ok(_) => Ok(connections),
            Err(error) => Err((error, connections.connector)),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.connector.is_cluster()
    }

    pub(crate) const fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    /// Returns the runtime of the background connection, for other background work. `None` if its
    /// thread cannot be started.
    pub(crate) fn background_runtime(&self) -> Option<&Handle> {
        self.background_thread.get_or_init(start_background_thread).as_ref().map(Background::handle)
    }

    pub(crate) fn current(&self) -> Option<Connection> {
        self.background.current().or_else(|| self.inline.slot.current()).map(|connection| connection.driver)
    }

    /// Sends a command that belongs to no lease.
    pub(crate) async fn send(&self, request: Request<'_>) -> RedisResult<Value> {
        self.send_on(self.choose_for(request), request, &AtomicU64::new(0)).await
    }

    /// Sends a command that belongs to no lease, and reads its reply.
    pub(crate) async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T> {
        self.read(self.send(cmd.into()).await)
    }

    /// Converts a reply.
    pub(crate) fn read<T: FromRedisValue>(&self, reply: RedisResult<Value>) -> Result<T> {
        let read = reply.and_then(|reply| Ok(redis::from_redis_value(reply)?));
        read.map_err(|error| explain(self.display_url(), error))
    }

    pub(crate) fn display_url(&self) -> &str {
        &self.connector.display_url
    }

    /// Returns the time of this clock, or of the server.
    pub(crate) async fn now(&self, clock: Option<&Clock>) -> Result<Timestamp> {
        if let Some(clock) = clock {
            return Ok(clock.now());
        }
        let (seconds, micros): (u64, u64) = self.query(&redis::cmd("TIME")).await?;
        Ok(Timestamp::from_micros(seconds * 1_000_000 + micros))
    }

    /// Sends a command for this lease, after all earlier commands for it.
    pub(crate) async fn send_for(&self, lease: &LeaseId, request: Request<'_>) -> RedisResult<Value> {
        let kind = self.in_doubt_connection(lease).unwrap_or_else(|| self.choose_for(request));
        let generation = AtomicU64::new(0);
        let mut call = LeaseCall { connections: self, lease, kind, generation, answered: false };
        let reply = self.send_on(kind, request, &call.generation).await;
        // Any reply of the server is an answer, also a refusal; otherwise the outcome is unknown.
        call.answered = reply.as_ref().err().is_none_or(|error| error.code().is_some());
        reply
    }

    fn choose_for(&self, request: Request<'_>) -> ConnectionKind {
        if request.waits_for_replicas() { ConnectionKind::Replicated } else { self.choose() }
    }

    fn choose(&self) -> ConnectionKind {
        if self.inline.is_preferred() { ConnectionKind::Inline } else { ConnectionKind::Background }
    }

    /// Sends a command. If the connection turns out to be dead, sends it again on a new one,
    /// provided that it may be sent twice or was not begun.
    async fn send_on(
        &self,
        kind: ConnectionKind,
        request: Request<'_>,
        generation: &AtomicU64,
    ) -> RedisResult<Value> {
        let _in_progress = self.begin_call();
        let connection = self.connection(kind).await?;
        generation.store(connection.generation, Ordering::Relaxed);
        let reply = connection.driver.send(request).await;
        let Err(error) = &reply else { return reply };
        let dead = self.discard_if_broken(kind, &connection, error);
        // A Cluster's connection retries by itself.
        if !dead || self.is_cluster() || !request.may_be_sent_again(error) {
            return reply;
        }
        tracing::debug!(%error, "the connection to Redis is broken; the command is sent again on a new one");
        let connection = self.connection(kind).await?;
        generation.store(connection.generation, Ordering::Relaxed);
        connection.driver.send(request).await
    }

    /// Discards the connection after a fatal error or a timeout, or if its server is a replica and it was not
    /// opened a moment ago. Returns whether it is dead, so that a retry on another one makes sense.
    pub(super) fn discard_if_broken(
        &self,
        kind: ConnectionKind,
        connection: &OpenConnection,
        error: &RedisError,
    ) -> bool {
        // Another server may be the master now: the Sentinels know it, or the name in the URL leads to it.
        let moved = !self.is_cluster()
            && is_from_replica(error)
            && BootInstant::now().after(connection.opened_at) > KEEP_TO_REPLICA;
        let dead = error.is_unrecoverable_error() || moved;
        if dead || error.is_timeout() {
            self.slot(kind).discard(connection);
        }
        dead
    }

    /// Counts a call in progress until the returned guard is dropped.
    pub(super) fn begin_call(&self) -> InProgress<'_> {
        self.inline.begin_call()
    }

    /// Whether a call for this lease should be batched: batches are sent anyway, or the call uses the
    /// background connection in any case.
    pub(crate) fn should_batch(&self, lease: &LeaseId, batches_are_sent: bool) -> bool {
        let choose = || if batches_are_sent { ConnectionKind::Background } else { self.choose() };
        !self.is_cluster()
            && self.in_doubt_connection(lease).unwrap_or_else(choose) == ConnectionKind::Background
    }

    pub(super) async fn connection(&self, kind: ConnectionKind) -> RedisResult<OpenConnection> {
        match self.slot(kind).current() {
            Some(connection) => Ok(connection),
            None => Box::pin(self.open_connection(kind)).await,
        }
    }

    async fn open_connection(&self, kind: ConnectionKind) -> RedisResult<OpenConnection> {
        let slot = self.slot(kind);
        let requested_at = BootInstant::now();
        let mut opening = slot.opening.lock().await;
        if let Some(connection) = slot.current() {
            return Ok(connection);
        }
        if let Some((failed, error)) = &opening.failed
            && *failed >= requested_at
        {
            return Err(error.clone());
        }
        match self.open_on_runtime(kind, opening.previous.as_ref()).await {
            Ok((connection, identity)) => {
                opening.generation += 1;
                opening.previous = identity;
                let (generation, opened_at) = (opening.generation, BootInstant::now());
                let connection = OpenConnection { generation, driver: connection, opened_at };
                *lock(&slot.connection) = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                opening.failed = Some((BootInstant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn open_on_runtime(
        &self,
        kind: ConnectionKind,
        previous: Option<&ClientIdentity>,
    ) -> RedisResult<(Connection, Option<ClientIdentity>)> {
        let (connector, previous) = (self.connector.clone(), previous.cloned());
        let open = async move {
            let connection = connector.open().await?;
            if let Some(previous) = previous {
                connection.kill(&previous).await?;
            }
            let identity = connection.identity().await?;
            Ok((connection, identity))
        };
        let in_time = async move {
            let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
            tokio::time::timeout(OPEN_TIMEOUT, open).await.unwrap_or_else(late)
        };
        // A connection lives on the runtime that opened it. For callers outside the home runtime,
        // which may have ended or be busy, the inline connection is opened on the background thread,
        // too.
        let runtime = if kind == ConnectionKind::Inline && self.inline.is_at_home() {
            None
        } else {
            self.background_runtime()
        };
        match runtime {
            Some(runtime) => {
                runtime.spawn(in_time).await.unwrap_or_else(|gone| Err(std::io::Error::other(gone).into()))
            }
            None => in_time.await,
        }
    }

    const fn slot(&self, kind: ConnectionKind) -> &Slot {
        match kind {
            ConnectionKind::Inline => &self.inline.slot,
            ConnectionKind::Background => &self.background,
            ConnectionKind::Replicated => &self.replicated,
        }
    }

    /// Returns the connection on which a call for this lease is in doubt.
    fn in_doubt_connection(&self, lease: &LeaseId) -> Option<ConnectionKind> {
        if self.in_doubt_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let (kind, generation) = lock(&self.in_doubt).get(lease).copied()?;
        // A replaced connection has been ended on the server, with its commands.
        let replaced =
            self.slot(kind).current().is_some_and(|connection| connection.generation != generation);
        (!replaced).then_some(kind)
    }

    pub(super) fn mark_in_doubt(&self, lease: &LeaseId, kind: ConnectionKind, generation: u64) {
        let current =
            ConnectionKind::ALL.map(|kind| self.slot(kind).current().map(|connection| connection.generation));
        let mut in_doubt = lock(&self.in_doubt);
        // Only calls on replaced connections are dropped: those can no longer take effect. Calls on
        // a live connection stay until a later call for their lease is answered.
        if in_doubt.len() >= PRUNE_IN_DOUBT_AT && in_doubt.len().is_multiple_of(PRUNE_IN_DOUBT_AT) {
            in_doubt.retain(|_, (kind, generation)| {
                current[*kind as usize].is_none_or(|current| current == *generation)
            });
        }
        in_doubt.insert(*lease, (kind, generation));
        self.in_doubt_count.store(in_doubt.len(), Ordering::Relaxed);
    }

    pub(super) fn clear_in_doubt(&self, lease: &LeaseId) {
        if self.in_doubt_count.load(Ordering::Relaxed) > 0 {
            let mut in_doubt = lock(&self.in_doubt);
            in_doubt.remove(lease);
            self.in_doubt_count.store(in_doubt.len(), Ordering::Relaxed);
        }
    }
}

impl Slot {
    fn current(&self) -> Option<OpenConnection> {
        lock(&self.connection).clone()
    }

    fn discard(&self, broken: &OpenConnection) {
        let mut connection = lock(&self.connection);
        if connection.as_ref().is_some_and(|connection| connection.generation == broken.generation) {
            *connection = None;
        }
    }
}

/// Call for a lease. If it ends without an answer, it is in doubt, and the next call for that lease
/// must use the same connection.
struct LeaseCall<'a> {
    connections: &'a Connections,
    lease: &'a LeaseId,
    kind: ConnectionKind,
    /// Connection on which the call was sent; 0 if it was not sent.
    generation: AtomicU64,
    answered: bool,
}

impl Drop for LeaseCall<'_> {
    fn drop(&mut self) {
        match self.generation.load(Ordering::Relaxed) {
            0 => {} // Never sent.
            _ if self.answered => self.connections.clear_in_doubt(self.lease),
            generation => self.connections.mark_in_doubt(self.lease, self.kind, generation),
        }
    }
}

fn start_background_thread() -> Option<Background> {
    let thread = Background::start("leasehold-redis");
    let without = |error| tracing::debug!(%error, "the background thread of Redis cannot be started; connections use the runtimes of callers");
    thread.map_err(without).ok()
}

/// Number of calls in progress from which further calls use the background connection.
const MAX_INLINE_CALLS: usize = 3;

/// Slot for the connection on the caller's runtime.
struct InlineConnection {
    home: HomeRuntime,
    pub(super) slot: Slot,
    /// Number of calls in progress on all connections.
    in_progress: AtomicUsize,
}

impl InlineConnection {
    pub(super) fn new() -> Self {
        Self { home: HomeRuntime::current(), slot: Slot::default(), in_progress: AtomicUsize::new(0) }
    }

    /// Whether the caller should use this connection: only on its runtime, and only while few calls are
    /// in progress, because more are faster together on the background connection.
    pub(super) fn is_preferred(&self) -> bool {
        self.is_at_home() && self.in_progress.load(Ordering::Relaxed) < MAX_INLINE_CALLS
    }

    /// Whether the caller is on the runtime of the connection.
    pub(super) fn is_at_home(&self) -> bool {
        self.home.is_current()
    }

    /// Counts a call in progress until the returned guard is dropped.
    pub(super) fn begin_call(&self) -> InProgress<'_> {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        InProgress(&self.in_progress)
    }
}

/// Guard that counts one call in progress until it is dropped.
pub(super) struct InProgress<'a>(&'a AtomicUsize);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
