//! A connection on the caller's own runtime, for a caller that is alone: it reaches the server without changing threads.
//!
//! It is opened once its caller has come often and alone: whoever takes one lock and goes does not need it. It carries one hot
//! statement at a time, and only if no lane has anything to do. Nobody but its caller depends on it: whatever
//! comes meanwhile takes a lane, which lives on a thread of ours, so a runtime that is blocked holds up no renewal. The one
//! exception is a call for the same lease: it waits until the statement is over, and a statement that does not end (its
//! caller is gone, or its runtime is blocked) is ended on the server first. So two connections never work for one lease.

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
use crate::store::Moment;

/// A caller is alone if so many calls have come one after the other. Many callers are better off in a lane, where what they
/// ask goes in one statement and one commit.
const ALONE: u32 = 16;
/// How long a call waits for another one of the same lease before that one is ended.
const PATIENCE: Duration = Duration::from_millis(500);

/// The connection on the caller's runtime, or the place for it.
#[derive(Debug)]
pub(super) struct Near {
    gate: Arc<Gate>,
    /// The runtime that it lives on: the one that connected.
    runtime: Option<Id>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    line: Option<Line>,
    /// How many calls have come one after the other.
    alone: u32,
    /// Stays so if the runtime has no sockets: then there is none.
    opening: bool,
    /// Whose statement is under way.
    busy: Option<Busy>,
}

/// An open connection, and what it takes to end it from elsewhere.
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
    /// Opens one on the runtime that this is called on. None behind a pooler: nobody could tell which process of the
    /// server a statement went to.
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

    /// Whether the caller is where the connection lives.
    fn is_home(&self) -> bool {
        self.runtime.is_some() && here() == self.runtime
    }

    /// The connection for a caller on its runtime that only wants to read, if nothing is under way.
    pub(super) fn idle(self: &Arc<Self>) -> Option<Arc<Session>> {
        if !self.is_home() {
            return None;
        }
        let state = self.state();
        let line = state.line.as_ref().filter(|line| state.busy.is_none() && !line.session.is_closed());
        line.map(|line| line.session.clone())
    }

    /// Takes the connection for one statement, if it is there, idle, and on the caller's runtime.
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

    /// Closes the connection if it has not been used for long; says whether there is one.
    pub(super) fn close_idle(&self, now: Moment) -> usize {
        let mut state = self.state();
        let idle = |line: &Line| line.session.unused_for(now) >= LONG_IDLE;
        if state.busy.is_none() && state.line.as_ref().is_some_and(idle) {
            state.line = None;
        }
        usize::from(state.line.is_some())
    }

    /// Somebody else is under way, so nobody is alone.
    pub(super) fn crowded(&self) {
        self.state().alone = 0;
    }

    /// Whoever comes meanwhile takes a lane.
    async fn open(self: Arc<Self>) {
        let opened = within(DEADLINE, Box::pin(Line::open(&self.gate))).await;
        if !matches!(opened, Ok(Some(_))) {
            tokio::time::sleep(PAUSE).await;
        }
        let mut state = self.state();
        state.opening = false;
        state.line = opened.ok().flatten();
    }

    /// Ends when no statement for this lease is under way here.
    pub(super) async fn wait_for(&self, lease: &LeaseId) -> Result<(), Fail> {
        let busy = self.state().busy.clone().filter(|busy| busy.lease == *lease);
        let Some(busy) = busy else { return Ok(()) };
        if tokio::time::timeout(PATIENCE, busy.over.cancelled()).await.is_err() {
            self.end(&busy.line).await?;
        }
        Ok(())
    }

    /// After a call that went away: its statement may be on its way, or not even sent.
    async fn settle(near: Weak<Self>, line: Line) {
        // Answers come in order: whatever is asked now is answered when the statement is done.
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

    /// Ends a connection, here and on the server, and returns when nothing can come from it any more.
    async fn end(&self, line: &Line) -> Result<(), Fail> {
        // Its driver writes nothing any more, whenever its runtime gets to it.
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

/// Having the connection for one statement.
pub(super) struct Turn {
    near: Arc<Near>,
    line: Line,
    answered: bool,
}

impl Turn {
    /// None, and nothing has changed, if the rules have to decide.
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
