//! Connection on the caller's own runtime, for a caller without concurrent callers: it reaches the
//! server without a thread switch.
//!
//! It is opened only after its caller has made several calls without concurrent ones; a caller that
//! takes a single lock does not need it. It carries one fast-path statement at a time, and only if
//! no [`BatchingConnection`](super::batching_connection::BatchingConnection) has work. Only its caller depends
//! on it: concurrent calls take a batching connection, which runs on a thread of the store, so a
//! blocked runtime delays no renewal. The one exception is a call for the same lease: it waits until
//! the statement is done, and a statement that does not end (its caller was dropped, or its runtime
//! is blocked) is first terminated on the server. So two connections never work for one lease.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::fast_path;
use crate::model::{LeaseId, LockName, LockOp, Outcome};
use crate::store::BootInstant;
use crate::store::background::HomeRuntime;
use crate::store::postgres::connection::{
    Backend, CLOSE_DEDICATED_AFTER, ConnectionOwner, Connector, OPERATION_TIMEOUT, RETRY_DELAY, Session,
    with_timeout,
};
use crate::store::postgres::error::{PgError, Retry};
use crate::store::support::mutex::lock;

/// Number of consecutive calls without a concurrent one after which the connection is opened and
/// used. Concurrent callers are faster on a batching connection, where their operations share one
/// statement and one commit.
const OPEN_AFTER: u32 = 16;
/// Time that a call waits for another one of the same lease before that one is terminated.
const TERMINATE_AFTER: Duration = Duration::from_millis(500);

/// Slot for the connection on the caller's runtime.
#[derive(Debug)]
pub(crate) struct InlineConnection {
    connector: Arc<Connector>,
    /// Runtime that the connection lives on.
    home: HomeRuntime,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: Option<OpenConnection>,
    /// Number of consecutive calls without a concurrent one.
    uncontended: u32,
    /// Whether the connection is being opened. Stays `true` if the runtime has no sockets: then the
    /// connection is never opened.
    opening: bool,
    in_flight: Option<InFlightStatement>,
}

/// Open connection, with the handles to terminate it from another thread and on the server.
#[derive(Debug, Clone)]
struct OpenConnection {
    session: Arc<Session>,
    driver: AbortHandle,
    backend: Backend,
}

#[derive(Debug, Clone)]
struct InFlightStatement {
    lease: LeaseId,
    done: CancellationToken,
    connection: OpenConnection,
}

impl OpenConnection {
    /// Opens a connection on the current runtime. Returns `None` behind a pooler, where the client
    /// cannot know which server process a statement was sent to.
    async fn open(connector: &Connector) -> Result<Option<Self>, PgError> {
        let (session, driver) = connector.open_on_current_runtime().await?;
        let backend = session.backend.clone().filter(|_| !connector.is_pooled());
        Ok(backend.map(|backend| Self { session, driver, backend }))
    }
}

impl InlineConnection {
    pub(crate) fn new(connector: Arc<Connector>) -> Arc<Self> {
        Arc::new(Self { connector, home: HomeRuntime::current(), state: Mutex::default() })
    }

    /// Returns the connection for a read by a caller on its runtime, if no statement is in flight.
    pub(crate) fn idle_session(self: &Arc<Self>) -> Option<Arc<Session>> {
        if !self.home.is_current() {
            return None;
        }
        let state = lock(&self.state);
        let session = state.open.as_ref().map(|connection| &connection.session);
        session.filter(|session| state.in_flight.is_none() && !session.is_closed()).cloned()
    }

    /// Takes the connection for one statement, if it is open, idle, and on the caller's runtime.
    pub(crate) fn try_enter(self: &Arc<Self>, lease: LeaseId) -> Option<InlineTurn> {
        if !self.home.is_current() || self.connector.is_pooled() || !self.connector.abandoned.is_empty() {
            return None;
        }
        let mut state = lock(&self.state);
        if state.in_flight.is_some() {
            state.uncontended = 0;
            return None;
        }
        state.uncontended = state.uncontended.saturating_add(1);
        if state.uncontended < OPEN_AFTER {
            return None;
        }
        match state.open.clone().filter(|connection| !connection.session.is_closed()) {
            Some(connection) => {
                let done = CancellationToken::new();
                state.in_flight = Some(InFlightStatement { lease, done, connection: connection.clone() });
                Some(InlineTurn { owner: self.clone(), connection, answered: false })
            }
            None => {
                if !std::mem::replace(&mut state.opening, true) {
                    tokio::spawn(self.clone().open_connection());
                }
                None
            }
        }
    }

    /// Resets the count of consecutive calls because of a concurrent call.
    pub(crate) fn reset_uncontended(&self) {
        lock(&self.state).uncontended = 0;
    }

    /// Opens the connection. Calls that arrive meanwhile take a batching connection.
    async fn open_connection(self: Arc<Self>) {
        let opened = with_timeout(OPERATION_TIMEOUT, Box::pin(OpenConnection::open(&self.connector))).await;
        if !matches!(opened, Ok(Some(_))) {
            tokio::time::sleep(RETRY_DELAY).await;
        }
        let mut state = lock(&self.state);
        state.opening = false;
        state.open = opened.ok().flatten();
    }

    /// Waits until no statement for this lease is in flight on this connection.
    pub(crate) async fn wait_for_lease(&self, lease: &LeaseId) -> Result<(), PgError> {
        let in_flight = lock(&self.state).in_flight.clone().filter(|in_flight| in_flight.lease == *lease);
        let Some(in_flight) = in_flight else { return Ok(()) };
        if tokio::time::timeout(TERMINATE_AFTER, in_flight.done.cancelled()).await.is_err() {
            self.terminate(&in_flight.connection).await?;
        }
        Ok(())
    }

    /// Frees the connection after a call was dropped: its statement may be in flight, or may not
    /// have been sent.
    async fn recover(owner: Weak<Self>, connection: OpenConnection) {
        // The server answers in order: the answer to this query implies that the statement is done.
        let mut recovered =
            with_timeout(TERMINATE_AFTER, async { Ok(connection.session.simple_query("").await?) }).await;
        while let Some(owner) = owner.upgrade() {
            if recovered.is_err() {
                recovered = with_timeout(OPERATION_TIMEOUT, owner.terminate(&connection)).await;
            }
            let Err(error) = &recovered else { return owner.finish() };
            tracing::debug!(?error, "a connection to PostgreSQL could not be terminated yet; retrying");
            drop(owner);
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Terminates a connection, locally and on the server, and returns once none of its statements can
    /// take effect.
    async fn terminate(&self, connection: &OpenConnection) -> Result<(), PgError> {
        // After the abort the driver writes nothing, even if its runtime resumes much later.
        connection.driver.abort();
        self.discard(connection);
        let session = self.connector.open().await?;
        let unless_done = session.discard_on_drop();
        connection.backend.terminate(&session.client).await?;
        unless_done.disarm();
        self.connector.return_idle(session);
        Ok(())
    }

    fn discard(&self, connection: &OpenConnection) {
        let mut state = lock(&self.state);
        if state.open.as_ref().is_some_and(|current| Arc::ptr_eq(&current.session, &connection.session)) {
            state.open = None;
        }
    }

    fn finish(&self) {
        if let Some(in_flight) = lock(&self.state).in_flight.take() {
            in_flight.done.cancel();
        }
    }
}

impl ConnectionOwner for InlineConnection {
    /// Closes the connection if it has been idle for [`CLOSE_DEDICATED_AFTER`].
    fn release_idle(&self, now: BootInstant) -> usize {
        let mut state = lock(&self.state);
        let is_idle = |connection: &OpenConnection| connection.session.idle_for(now) >= CLOSE_DEDICATED_AFTER;
        if state.in_flight.is_none() && state.open.as_ref().is_some_and(is_idle) {
            state.open = None;
        }
        usize::from(state.open.is_some())
    }
}

/// Exclusive use of the connection for one statement.
pub(crate) struct InlineTurn {
    owner: Arc<InlineConnection>,
    connection: OpenConnection,
    answered: bool,
}

impl InlineTurn {
    /// Executes one operation. Returns `None`, with nothing changed, if the operation needs the
    /// slow path.
    pub(crate) async fn execute(mut self, name: &LockName, op: &LockOp) -> Result<Option<Outcome>, PgError> {
        let done = fast_path::execute(&self.connection.session, &self.owner.connector, name, op).await;
        self.answered = true;
        if let Err(error) = &done {
            self.owner.connector.observe_error(error);
            if error.retry() != Retry::Never {
                self.owner.connector.abandoned.add(Some(&self.connection.backend));
                self.owner.discard(&self.connection);
            }
        }
        done
    }
}

impl Drop for InlineTurn {
    fn drop(&mut self) {
        if self.answered {
            self.owner.finish();
        } else {
            let recover = InlineConnection::recover(Arc::downgrade(&self.owner), self.connection.clone());
            self.owner.connector.runtime().spawn(recover);
        }
    }
}
