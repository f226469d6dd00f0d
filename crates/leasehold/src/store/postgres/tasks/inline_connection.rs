//! Connection on the caller's own runtime, for a lone caller that adds tasks: it reaches the server
//! without a thread switch.
//!
//! It is opened only after several calls without a concurrent one, and carries one statement at a
//! time. Concurrent callers share the statements of the insert batcher, on the thread of the pool.
//! If the statement fails, its caller takes the insert batcher, too: adding tasks is repeatable.

use std::sync::{Arc, Mutex};

use crate::store::BootInstant;
use crate::store::background::HomeRuntime;
use crate::store::postgres::connection::{
    CLOSE_DEDICATED_AFTER, Connector, OPERATION_TIMEOUT, RETRY_DELAY, STATEMENT_TIMEOUT, Session,
    with_timeout,
};
use crate::store::postgres::error::{PgError, Retry};
use crate::store::support::mutex::lock;

/// Number of calls without a concurrent one after which the connection is opened and used.
const OPEN_AFTER: u32 = 16;

#[derive(Debug)]
pub(super) struct InlineConnection {
    connector: Arc<Connector>,
    /// Runtime that the connection lives on.
    home: HomeRuntime,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Arc<Session>>,
    /// Number of calls without a concurrent one, lowered by each concurrent call.
    uncontended: u32,
    is_opening: bool,
    in_use: bool,
}

impl State {
    /// Not to zero: the insert batcher may still be about to end after the last call of a lone caller.
    fn lower_uncontended(&mut self) {
        self.uncontended = self.uncontended.min(OPEN_AFTER).saturating_sub(OPEN_AFTER / 4);
    }
}

impl InlineConnection {
    pub(super) fn new(connector: Arc<Connector>) -> Arc<Self> {
        Arc::new(Self { connector, home: HomeRuntime::current(), state: Mutex::default() })
    }

    /// Takes the connection for one statement, if it is open, not in use, and on the caller's
    /// runtime. If it has to be opened, `open` does so.
    pub(super) fn try_enter<F>(self: &Arc<Self>, open: impl FnOnce() -> F) -> Option<InlineTurn>
    where
        F: Future<Output = Result<Session, PgError>> + Send + 'static,
    {
        let can_use =
            self.home.is_current() && !self.connector.is_pooled() && self.connector.abandoned.is_empty();
        if !can_use {
            return None;
        }
        let mut state = lock(&self.state);
        if state.in_use {
            state.lower_uncontended();
            return None;
        }
        state.uncontended = state.uncontended.saturating_add(1);
        if state.uncontended < OPEN_AFTER {
            return None;
        }
        if let Some(session) = state.session.clone().filter(|session| !session.is_closed()) {
            state.in_use = true;
            return Some(InlineTurn { owner: self.clone(), session, is_answered: false });
        }
        if !std::mem::replace(&mut state.is_opening, true) {
            tokio::spawn(self.clone().keep(open()));
        }
        None
    }

    /// Waits until the connection is open, and keeps it. Calls that arrive meanwhile take the insert
    /// batcher.
    async fn keep(self: Arc<Self>, opening: impl Future<Output = Result<Session, PgError>> + Send) {
        let opened = with_timeout(OPERATION_TIMEOUT, opening).await;
        // Without a known server process, an abandoned statement could not be terminated.
        let opened = opened.ok().filter(|session| session.backend.is_some());
        if opened.is_none() {
            tokio::time::sleep(RETRY_DELAY).await;
        }
        let mut state = lock(&self.state);
        state.is_opening = false;
        state.session = opened.map(Arc::new);
    }

    /// Lowers the count of calls without a concurrent one because of a concurrent call.
    pub(super) fn lower_uncontended(&self) {
        lock(&self.state).lower_uncontended();
    }

    /// Closes the connection if it has been idle for long. Returns the number of open connections.
    pub(super) fn release_idle(&self, now: BootInstant) -> usize {
        let mut state = lock(&self.state);
        let is_idle = |session: &Arc<Session>| session.idle_for(now) >= CLOSE_DEDICATED_AFTER;
        if !state.in_use && state.session.as_ref().is_some_and(is_idle) {
            state.session = None;
        }
        usize::from(state.session.is_some())
    }
}

/// Exclusive use of the connection for one statement. If it is dropped before the answer has arrived,
/// the connection is abandoned: the server ends it before the next statement of this process.
pub(super) struct InlineTurn {
    owner: Arc<InlineConnection>,
    session: Arc<Session>,
    is_answered: bool,
}

impl InlineTurn {
    /// Executes the work. After an error the connection is not used again.
    pub(super) async fn run<T, F>(mut self, work: impl FnOnce(Arc<Session>) -> F) -> Result<T, PgError>
    where
        F: Future<Output = Result<T, PgError>>,
    {
        let done = with_timeout(STATEMENT_TIMEOUT, work(self.session.clone())).await;
        match &done {
            Ok(_) => self.is_answered = true,
            Err(error) => {
                self.owner.connector.observe_error(error);
                self.is_answered = !matches!(error, PgError::Timeout) && error.retry() != Retry::IfIdempotent;
                self.session.discard();
            }
        }
        done
    }
}

impl Drop for InlineTurn {
    fn drop(&mut self) {
        if !self.is_answered {
            self.owner.connector.abandoned.add(self.session.backend.as_ref());
            self.session.discard();
        }
        let mut state = lock(&self.owner.state);
        state.in_use = false;
        if self.session.is_closed() {
            state.session = None;
        }
    }
}
