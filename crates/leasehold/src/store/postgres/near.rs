//! Connection on the caller's own runtime, for a caller without concurrent callers: it reaches the
//! server without a thread switch.
//!
//! It is opened only after its caller has made several calls without concurrent ones; a caller that
//! takes a single lock does not need it. It carries one fast-path statement at a time, and only if
//! no lane has work. Only its caller depends on it: concurrent calls take a lane, which runs on a
//! thread of the store, so a blocked runtime delays no renewal. The one exception is a call for the
//! same lease: it waits until the statement is over, and a statement that does not end (its caller
//! was dropped, or its runtime is blocked) is first ended on the server. So two connections never
//! work for one lease.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::abandoned::Backend;
use super::gate::{Gate, PAUSE};
use super::idle::LONG_IDLE;
use super::native;
use super::session::{DEADLINE, Session, within};
use super::trouble::{Again, Fail};
use crate::model::{LeaseId, LockName, LockOp, Outcome};
use crate::store::BootInstant;

/// Number of consecutive calls without a concurrent one after which the connection is opened and
/// used. Concurrent callers are faster on a lane, where their operations share one statement and
/// one commit.
const ALONE: u32 = 16;
/// Time that a call waits for another one of the same lease before that one is ended.
const PATIENCE: Duration = Duration::from_millis(500);

/// Slot for the connection on the caller's runtime.
#[derive(Debug)]
pub(super) struct Near {
    gate: Arc<Gate>,
    /// Runtime that the connection lives on: the one that connected the store.
    runtime: Option<Id>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    line: Option<Line>,
    /// Number of consecutive calls without a concurrent one.
    alone: u32,
    /// Whether the connection is being opened. Stays `true` if the runtime has no sockets: then the
    /// connection is never opened.
    opening: bool,
    /// Statement in flight, with its lease.
    busy: Option<Busy>,
}

/// Open connection, with the handles to end it from another thread and on the server.
#[derive(Debug, Clone)]
struct Line {
    session: Arc<Session>,
    driver: AbortHandle,
    backend: Backend,
}

#[derive(Debug, Clone)]
struct Busy {
    lease: LeaseId,
    over: CancellationToken,
    line: Line,
}

impl Line {
    /// Opens a connection on the current runtime. Returns `None` behind a pooler, where the client
    /// cannot know which server process a statement was sent to.
    async fn open(gate: &Gate) -> Result<Option<Self>, Fail> {
        let (session, driver) = gate.open_here().await?;
        let backend = session.backend().filter(|_| !gate.is_pooled()).cloned();
        Ok(backend.map(|backend| Self { session, driver, backend }))
    }
}

impl Near {
    pub(super) fn new(gate: Arc<Gate>) -> Arc<Self> {
        Arc::new(Self { gate, runtime: here(), state: Mutex::default() })
    }

    /// Whether the caller is on the runtime of the connection.
    fn is_home(&self) -> bool {
        self.runtime.is_some() && here() == self.runtime
    }

    /// Returns the connection for a read by a caller on its runtime, if no statement is in flight.
    pub(super) fn idle(self: &Arc<Self>) -> Option<Arc<Session>> {
        if !self.is_home() {
            return None;
        }
        let state = self.state();
        let line = state.line.as_ref().filter(|line| state.busy.is_none() && !line.session.is_closed());
        line.map(|line| line.session.clone())
    }

    /// Takes the connection for one statement, if it is open, idle, and on the caller's runtime.
    pub(super) fn enter(self: &Arc<Self>, lease: LeaseId) -> Option<Turn> {
        if !self.is_home() || self.gate.is_pooled() || !self.gate.abandoned.is_empty() {
            return None;
        }
        let mut state = self.state();
        if state.busy.is_some() {
            state.alone = 0;
            return None;
        }
        state.alone = state.alone.saturating_add(1);
        if state.alone < ALONE {
            return None;
        }
        match state.line.clone().filter(|line| !line.session.is_closed()) {
            Some(line) => {
                let over = CancellationToken::new();
                state.busy = Some(Busy { lease, over, line: line.clone() });
                Some(Turn { near: self.clone(), line, answered: false })
            }
            None => {
                if !std::mem::replace(&mut state.opening, true) {
                    tokio::spawn(self.clone().open());
                }
                None
            }
        }
    }

    /// Closes the connection if it has been idle for [`LONG_IDLE`]. Returns the number of open
    /// connections, 0 or 1.
    pub(super) fn close_idle(&self, now: BootInstant) -> usize {
        let mut state = self.state();
        let idle = |line: &Line| line.session.unused_for(now) >= LONG_IDLE;
        if state.busy.is_none() && state.line.as_ref().is_some_and(idle) {
            state.line = None;
        }
        usize::from(state.line.is_some())
    }

    /// Resets the count of consecutive calls because of a concurrent call.
    pub(super) fn crowded(&self) {
        self.state().alone = 0;
    }

    /// Opens the connection. Calls that arrive meanwhile take a lane.
    async fn open(self: Arc<Self>) {
        let opened = within(DEADLINE, Box::pin(Line::open(&self.gate))).await;
        if !matches!(opened, Ok(Some(_))) {
            tokio::time::sleep(PAUSE).await;
        }
        let mut state = self.state();
        state.opening = false;
        state.line = opened.ok().flatten();
    }

    /// Waits until no statement for this lease is in flight on this connection.
    pub(super) async fn wait_for(&self, lease: &LeaseId) -> Result<(), Fail> {
        let busy = self.state().busy.clone().filter(|busy| busy.lease == *lease);
        let Some(busy) = busy else { return Ok(()) };
        if tokio::time::timeout(PATIENCE, busy.over.cancelled()).await.is_err() {
            self.end(&busy.line).await?;
        }
        Ok(())
    }

    /// Frees the connection after a call was dropped: its statement may be in flight, or may not
    /// have been sent.
    async fn settle(near: Weak<Self>, line: Line) {
        // The server answers in order: the answer to this query implies that the statement is done.
        let mut settled = within(PATIENCE, async { Ok(line.session.say("").await?) }).await;
        while let Some(near) = near.upgrade() {
            if settled.is_err() {
                settled = within(DEADLINE, near.end(&line)).await;
            }
            let Err(fail) = &settled else { return near.free() };
            tracing::debug!(?fail, "a connection to PostgreSQL could not be ended yet");
            drop(near);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Ends a connection, locally and on the server, and returns once none of its statements can
    /// take effect.
    async fn end(&self, line: &Line) -> Result<(), Fail> {
        // After the abort the driver writes nothing, even if its runtime resumes much later.
        line.driver.abort();
        self.forget(line);
        let session = self.gate.open().await?;
        line.backend.end(session.client()).await?;
        self.gate.keep(session);
        Ok(())
    }

    fn forget(&self, line: &Line) {
        let mut state = self.state();
        if state.line.as_ref().is_some_and(|current| Arc::ptr_eq(&current.session, &line.session)) {
            state.line = None;
        }
    }

    fn free(&self) {
        if let Some(busy) = self.state().busy.take() {
            busy.over.cancel();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exclusive use of the connection for one statement.
pub(super) struct Turn {
    near: Arc<Near>,
    line: Line,
    answered: bool,
}

impl Turn {
    /// Executes one operation. Returns `None`, with nothing changed, if the operation needs the
    /// slow path.
    pub(super) async fn statement(mut self, name: &LockName, op: &LockOp) -> Result<Option<Outcome>, Fail> {
        let done = native::one(&self.line.session, &self.near.gate, name, op).await;
        self.answered = true;
        if let Err(fail) = &done {
            self.near.gate.learn(fail);
            if fail.again() != Again::Never {
                self.near.gate.abandoned.add(Some(&self.line.backend));
                self.near.forget(&self.line);
            }
        }
        done
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.answered {
            self.near.free();
        } else {
            let settle = Near::settle(Arc::downgrade(&self.near), self.line.clone());
            self.near.gate.home().spawn(settle);
        }
    }
}

fn here() -> Option<Id> {
    Handle::try_current().ok().map(|handle| handle.id())
}
