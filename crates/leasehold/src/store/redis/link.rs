//! Connections of this process to the servers: shared by all callers, opened again when they break.
//!
//! There are two connections. The near one lives on the runtime that connected: a single caller
//! there reaches the server without a change of threads. The far one lives on a thread of its own
//! and serves all other callers: many concurrent callers, whose commands it batches, and renewals,
//! which no work of the caller may delay. Commands on one connection stay in order. A call that was
//! dropped or got no answer may still be on its way, so every later command for the same lease uses
//! the same connection; and a connection that is given up is ended on the server before another one
//! replaces it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::runtime::{Handle, Id};

use super::group::Group;
use super::line::{Conn, OPEN, Opener, Order, Peer};
use crate::model::LeaseId;
use crate::store::BootInstant;
use crate::store::background::Background;

/// Number of calls in progress from which further calls use the far connection.
const BUSY: usize = 3;
/// Maximum number of recorded calls without an answer.
const MAX_ASTRAY: usize = 10_000;

/// Connections that all callers share.
pub(super) struct Link {
    opener: Arc<Opener>,
    home: Option<Id>,
    near: Place,
    far: Place,
    host: OnceLock<Option<Background>>,
    under_way: AtomicUsize,
    /// Calls that got no answer, and the connection that they may still be on.
    astray: Mutex<HashMap<LeaseId, (Which, u64)>>,
    astray_count: AtomicUsize,
    pub(super) group: Group,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Near,
    Far,
}

/// Slot of a connection.
#[derive(Default)]
struct Place {
    line: Mutex<Option<Line>>,
    /// Held while a connection is opened.
    opening: tokio::sync::Mutex<Opening>,
}

#[derive(Default)]
struct Opening {
    count: u64,
    /// The previous connection, to be ended on the server.
    before: Option<Peer>,
    /// Last failure, shared by all callers that waited for this attempt.
    failed: Option<(BootInstant, RedisError)>,
}

#[derive(Clone)]
pub(super) struct Line {
    pub(super) number: u64,
    pub(super) conn: Conn,
}

impl Link {
    /// Opens the near connection, so that errors show immediately.
    pub(super) async fn open(opener: Opener) -> Result<Self, (RedisError, Arc<Opener>)> {
        let link = Self {
            opener: Arc::new(opener),
            home: here(),
            near: Place::default(),
            far: Place::default(),
            host: OnceLock::new(),
            under_way: AtomicUsize::new(0),
            astray: Mutex::default(),
            astray_count: AtomicUsize::new(0),
            group: Group::default(),
        };
        match link.line(Which::Near).await {
            Ok(_) => Ok(link),
            Err(error) => Err((error, link.opener)),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.opener.is_cluster()
    }

    pub(super) const fn opener(&self) -> &Arc<Opener> {
        &self.opener
    }

    /// Returns the runtime of the far connection, for background work. `None` if its thread cannot
    /// be started.
    pub(super) fn host(&self) -> Option<&Handle> {
        self.host.get_or_init(start_thread).as_ref().map(Background::handle)
    }

    /// Returns a connection, if one is open.
    pub(super) fn current(&self) -> Option<Conn> {
        self.far.current().or_else(|| self.near.current()).map(|line| line.conn)
    }

    /// Sends a command that belongs to no lease.
    pub(super) async fn send(&self, order: Order<'_>) -> RedisResult<Value> {
        self.send_on(self.choose(), order, &AtomicU64::new(0)).await
    }

    /// Sends a command for this lease, after all earlier commands for it.
    pub(super) async fn send_for(&self, lease: &LeaseId, order: Order<'_>) -> RedisResult<Value> {
        let which = self.line_of(lease).unwrap_or_else(|| self.choose());
        let mut call = Call { link: self, lease, which, line: AtomicU64::new(0), answered: false };
        let reply = self.send_on(which, order, &call.line).await;
        // Any reply of the server is an answer, also a refusal. After any other error the outcome
        // is unknown.
        call.answered = reply.as_ref().err().is_none_or(|error| error.code().is_some());
        reply
    }

    fn choose(&self) -> Which {
        if self.is_home() && self.under_way.load(Ordering::Relaxed) < BUSY { Which::Near } else { Which::Far }
    }

    fn is_home(&self) -> bool {
        self.home.is_some() && here() == self.home
    }

    /// Sends a command. If the connection turns out to be dead, sends it again on a new one,
    /// provided that it may be sent twice or was not begun.
    async fn send_on(&self, which: Which, order: Order<'_>, number: &AtomicU64) -> RedisResult<Value> {
        let _under_way = self.count();
        let line = self.line(which).await?;
        number.store(line.number, Ordering::Relaxed);
        let reply = line.conn.send(order).await;
        let Err(error) = &reply else {
            return reply;
        };
        let dead = self.give_up_if_broken(which, &line, error);
        // A Cluster's connection retries by itself.
        if !dead || self.is_cluster() || !order.may_be_sent_again(error) {
            return reply;
        }
        tracing::debug!(%error, "the connection to Redis is broken; once more on a new one");
        let line = self.line(which).await?;
        number.store(line.number, Ordering::Relaxed);
        line.conn.send(order).await
    }

    /// Gives up the connection after a fatal error or a timeout. Returns whether it is dead, so
    /// that a retry on another one makes sense.
    pub(super) fn give_up_if_broken(&self, which: Which, line: &Line, error: &RedisError) -> bool {
        let moved = self.opener.moves() && error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
        let dead = error.is_unrecoverable_error() || moved;
        if dead || error.is_timeout() {
            self.place(which).give_up(line);
        }
        dead
    }

    /// Counts a call in progress until the returned guard is dropped.
    pub(super) fn count(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(&self.under_way)
    }

    /// Whether a call for this lease should be batched: it uses the far connection anyway.
    pub(super) fn is_for_group(&self, lease: &LeaseId) -> bool {
        !self.is_cluster() && self.line_of(lease).unwrap_or_else(|| self.choose()) == Which::Far
    }

    pub(super) async fn line(&self, which: Which) -> RedisResult<Line> {
        match self.place(which).current() {
            Some(line) => Ok(line),
            None => Box::pin(self.new_line(which)).await,
        }
    }

    async fn new_line(&self, which: Which) -> RedisResult<Line> {
        let place = self.place(which);
        let asked = BootInstant::now();
        let mut opening = place.opening.lock().await;
        if let Some(line) = place.current() {
            return Ok(line);
        }
        if let Some((failed, error)) = &opening.failed
            && *failed >= asked
        {
            return Err(error.clone());
        }
        match self.open_at(which, opening.before.as_ref()).await {
            Ok((conn, peer)) => {
                opening.count += 1;
                opening.before = peer;
                let line = Line { number: opening.count, conn };
                *lock(&place.line) = Some(line.clone());
                Ok(line)
            }
            Err(error) => {
                opening.failed = Some((BootInstant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn open_at(&self, which: Which, before: Option<&Peer>) -> RedisResult<(Conn, Option<Peer>)> {
        let (opener, before) = (self.opener.clone(), before.cloned());
        let open = async move {
            let conn = opener.open().await?;
            if let Some(before) = before {
                conn.end(&before).await;
            }
            let peer = conn.peer().await;
            Ok((conn, peer))
        };
        let in_time = async move {
            let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
            tokio::time::timeout(OPEN, open).await.unwrap_or_else(late)
        };
        // A connection lives on the runtime that opened it. For callers outside the home runtime,
        // which may have ended or be busy, the near connection is opened on the far thread, too.
        let host = if which == Which::Near && self.is_home() { None } else { self.host() };
        match host {
            Some(host) => {
                host.spawn(in_time).await.unwrap_or_else(|gone| Err(std::io::Error::other(gone).into()))
            }
            None => in_time.await,
        }
    }

    const fn place(&self, which: Which) -> &Place {
        match which {
            Which::Near => &self.near,
            Which::Far => &self.far,
        }
    }

    /// Returns the connection on which a command for this lease may still be in progress.
    fn line_of(&self, lease: &LeaseId) -> Option<Which> {
        if self.astray_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let (which, number) = lock(&self.astray).get(lease).copied()?;
        // A replaced connection has been ended on the server: its commands can no longer take
        // effect.
        let replaced = self.place(which).current().is_some_and(|line| line.number != number);
        (!replaced).then_some(which)
    }

    pub(super) fn remember(&self, lease: &LeaseId, line: (Which, u64)) {
        let mut astray = lock(&self.astray);
        if astray.len() >= MAX_ASTRAY {
            astray.clear();
        }
        astray.insert(*lease, line);
        self.astray_count.store(astray.len(), Ordering::Relaxed);
    }

    pub(super) fn forget(&self, lease: &LeaseId) {
        if self.astray_count.load(Ordering::Relaxed) > 0 {
            let mut astray = lock(&self.astray);
            astray.remove(lease);
            self.astray_count.store(astray.len(), Ordering::Relaxed);
        }
    }
}

impl Place {
    fn current(&self) -> Option<Line> {
        lock(&self.line).clone()
    }

    fn give_up(&self, broken: &Line) {
        let mut line = lock(&self.line);
        if line.as_ref().is_some_and(|line| line.number == broken.number) {
            *line = None;
        }
    }
}

/// Call for a lease. If it ends without an answer, the next call for that lease must use the same
/// connection.
struct Call<'a> {
    link: &'a Link,
    lease: &'a LeaseId,
    which: Which,
    line: AtomicU64,
    answered: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        match self.line.load(Ordering::Relaxed) {
            0 => {} // Never sent.
            _ if self.answered => self.link.forget(self.lease),
            number => self.link.remember(self.lease, (self.which, number)),
        }
    }
}

/// Guard that counts one call in progress until it is dropped.
pub(super) struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts the thread of the far connection, which ends with the link.
fn start_thread() -> Option<Background> {
    let thread = Background::start("leasehold-redis");
    let without = |error| tracing::debug!(%error, "callers have to do the work of the connection to Redis");
    thread.map_err(without).ok()
}

fn here() -> Option<Id> {
    Handle::try_current().ok().map(|handle| handle.id())
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
