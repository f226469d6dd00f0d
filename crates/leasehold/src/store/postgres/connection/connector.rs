//! Opening, pooling, closing and cancelling of connections.
//!
//! A process that waits, or that holds a lock and renews it, keeps one connection. An owner that has
//! not used its connection for a moment returns it to the pool, from which the next caller takes it.
//! A connection that stays in the pool for longer is closed, except for the last one: a renewal must
//! not depend on whether the server has a connection left. While a caller waits, the connection that
//! listens for notifications is the one that is kept; it carries the few operations of a waiter.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;
use tokio_postgres::tls::TlsConnect;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;

use super::late_statements::{AbandonedBackends, Backend};
use super::session::{OPERATION_TIMEOUT, Session, with_timeout};
use super::tls;
use crate::error::Result;
use crate::store::BootInstant;
use crate::store::background::Background;
use crate::store::postgres::columns::micros;
use crate::store::postgres::error::PgError;
use crate::store::postgres::options::{Pooler, PostgresOptions};
use crate::store::postgres::sql::SqlTexts;
use crate::store::support::connection::first_connection::FIRST_CONNECTION_TIMEOUT;
use crate::store::support::mutex::lock;
use crate::store::wake::Waiters;

/// Poll interval while there are connections that may have to be closed.
const IDLE_POLL: Duration = Duration::from_millis(500);
/// Time without use after which an owner returns its connection to the pool.
pub(crate) const RELEASE_AFTER: Duration = Duration::from_millis(500);
/// Time without use after which a connection of the pool is closed.
const CLOSE_AFTER: Duration = Duration::from_secs(2);
/// Time without use after which a connection on a caller's runtime, or one for tasks, is closed.
pub(crate) const CLOSE_DEDICATED_AFTER: Duration = Duration::from_secs(5);
/// Maximum time to open a connection, shorter than that of the operation that needs the connection.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(4);
/// Delay before a failed connection is opened again.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Timeouts that the server enforces. They are shorter than the client's, so that a statement
/// cannot take effect after the client has given up. A client that falls silent in the middle of a
/// transaction does not keep its row locked for long.
const SERVER_TIMEOUTS: &str = "-c statement_timeout=4000 -c idle_in_transaction_session_timeout=5000 \
                        -c default_transaction_isolation=read\\ committed";

/// Planner settings of a connection for tasks: statements are planned once, along the indexes that were
/// made for them. Statistics of a table that was empty at planning time, or that has grown a thousandfold
/// since, must not make the planner sort the backlog.
const PLANNER_SETTINGS: [&str; 6] = [
    "enable_seqscan=off",
    "enable_bitmapscan=off",
    "enable_hashjoin=off",
    "enable_mergejoin=off",
    "jit=off",
    "plan_cache_mode=force_generic_plan",
];

/// Setting that each connection begins with, with a random value. A pooler that ignores startup settings
/// gives no sign of it, except that the value is missing.
const MARKER: &str = "leasehold.direct";

/// Returns the planner settings of a connection for tasks as statements, for tests.
#[cfg(feature = "testing")]
pub(crate) fn planner_statements() -> String {
    PLANNER_SETTINGS.map(|setting| format!("SET {setting};")).concat()
}

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Locks: many callers share the connection, so a statement waits only briefly for a row that
    /// another session has locked.
    Locks,
    Tasks,
    /// Notifications of workers, which may be lost in a crash of the server.
    Notifications,
}

impl Purpose {
    /// Returns the startup settings beside [`SERVER_TIMEOUTS`]. No setting is changed later: behind a pooler
    /// that was not detected, other clients would get it.
    fn startup_settings(self) -> String {
        match self {
            Self::Locks => "-c lock_timeout=250".to_owned(),
            Self::Tasks => {
                let planner = PLANNER_SETTINGS.map(|setting| format!(" -c {setting}")).concat();
                format!("-c lock_timeout=2000{planner}")
            }
            Self::Notifications => format!("{} -c synchronous_commit=off", Self::Tasks.startup_settings()),
        }
    }
}

/// Connection that was just opened. It must be polled for the client to make progress.
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) driver: ConnectionDriver,
    /// Whether the connection leads to a server process of its own, which has the startup settings.
    pub(crate) is_direct: bool,
    /// That server process; `None` if it cannot be known.
    pub(crate) backend: Option<Backend>,
}

/// Factory of connections, with the state that all connections of a store share.
pub(crate) struct Connector {
    pub(crate) options: PostgresOptions,
    /// Database and its address, for messages.
    pub(crate) description: String,
    /// Runtime of all connections but one. A caller's runtime may be busy, have no sockets, or end;
    /// leases must still be renewed.
    background: Background,
    tls: MakeRustlsConnect,
    pub(crate) texts: Arc<SqlTexts>,
    pooled_texts: Arc<SqlTexts>,
    /// Whether the server is behind a pooler, as configured or as detected.
    pooled: AtomicBool,
    /// Abandoned connections, which must be ended on the server before any other statement is sent.
    pub(crate) abandoned: AbandonedBackends,
    /// Open connections that are not in use, the most recently used one last.
    idle: Mutex<Vec<Arc<Session>>>,
    pub(crate) waiters: Waiters,
    listening: Mutex<Listening>,
    /// Limits the number of locks with blocked rows that are served at once: each needs a connection.
    pub(crate) blocked_rows: Semaphore,
    /// Notified of every connection that is opened, or returned to the pool.
    pub(crate) opened: Arc<Notify>,
}

/// Connection that listens for notifications, and whether a caller has borrowed it.
#[derive(Default)]
struct Listening {
    session: Option<Arc<Session>>,
    borrowed: bool,
}

impl Connector {
    pub(crate) fn new(options: PostgresOptions) -> Result<Self> {
        Ok(Self {
            background: Background::start("leasehold-postgres")?,
            tls: tls::connector(&options)?,
            texts: SqlTexts::new(&options.schema, false),
            pooled_texts: SqlTexts::new(&options.schema, true),
            abandoned: AbandonedBackends::default(),
            description: options.description(),
            pooled: AtomicBool::new(options.pooler == Pooler::Transaction),
            idle: Mutex::default(),
            waiters: Waiters::default(),
            listening: Mutex::default(),
            opened: Arc::default(),
            blocked_rows: Semaphore::new(options.pool),
            options,
        })
    }

    pub(crate) fn runtime(&self) -> &Handle {
        self.background.handle()
    }

    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Relaxed)
    }

    /// Returns the time to send with a statement; `None` if the server's own clock is
    /// authoritative.
    pub(crate) fn now(&self) -> Option<i64> {
        self.options.clock.as_ref().map(|clock| micros(clock.now()))
    }

    /// Returns the NOTIFY channel for waiters.
    pub(crate) fn channel(&self) -> String {
        format!("leasehold_{}", self.options.schema)
    }

    /// Returns the NOTIFY channel for workers. Its length stays within the limit for identifiers:
    /// see `MAX_SCHEMA_LENGTH`.
    pub(crate) fn task_channel(&self) -> String {
        format!("leasehold_{}_task", self.options.schema)
    }

    /// Returns a connection to the pool.
    pub(crate) fn return_idle(&self, session: Arc<Session>) {
        if self.is_listening(&session) {
            lock(&self.listening).borrowed = false;
        } else {
            lock(&self.idle).push(session);
            // It may be superfluous, and no owner has counted it if it was used for a blocked lock.
            self.opened.notify_one();
        }
    }

    /// Sets or clears the connection that listens for notifications.
    pub(crate) fn set_listening(&self, session: Option<Arc<Session>>) {
        *lock(&self.listening) = Listening { session, borrowed: false };
        // Idle connections may have become superfluous.
        self.opened.notify_one();
    }

    /// Returns the connection that listens for notifications, for one statement. Another caller may have
    /// borrowed it: see [`Session::transaction`].
    pub(crate) fn listening(&self) -> Option<Arc<Session>> {
        lock(&self.listening).session.clone().filter(|session| !session.is_closed())
    }

    pub(crate) fn is_listening(&self, session: &Arc<Session>) -> bool {
        lock(&self.listening).session.as_ref().is_some_and(|current| Arc::ptr_eq(current, session))
    }

    /// Returns the listening connection for exclusive use, unless another caller has borrowed it.
    fn borrow_listening(&self) -> Option<Arc<Session>> {
        let mut listening = lock(&self.listening);
        let free = !listening.borrowed;
        let session = listening.session.clone().filter(|session| free && !session.is_closed());
        listening.borrowed |= session.is_some();
        session
    }

    /// Returns an idle connection, or the listening connection if it is free.
    pub(crate) fn take_idle(&self) -> Option<Arc<Session>> {
        while let Some(session) = { lock(&self.idle).pop() } {
            if !session.is_closed() {
                return Some(session);
            }
        }
        self.borrow_listening()
    }

    /// Returns an idle connection, the listening connection if it is free, or a new connection.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<Arc<Session>, PgError> {
        match self.take_idle() {
            Some(session) => Ok(session),
            None => self.open_within(OPEN_TIMEOUT).await,
        }
    }

    /// Opens the first connection of a store, which may take longer: no statement of a caller waits for it.
    pub(crate) async fn open_first(self: &Arc<Self>) -> Result<Arc<Session>, PgError> {
        self.open_within(FIRST_CONNECTION_TIMEOUT).await
    }

    async fn open_within(self: &Arc<Self>, timeout: Duration) -> Result<Arc<Session>, PgError> {
        let connector = self.clone();
        let opening = self.runtime().spawn(async move { connector.open_here_within(timeout).await });
        // A caller that gave up leaves no connection behind.
        AbortOnDropHandle::new(opening).await.unwrap_or(Err(PgError::Timeout)).map(|(session, _)| session)
    }

    /// Opens a connection on the current runtime and returns it with the handle of its driver:
    /// sockets belong to the runtime that they were opened on.
    pub(crate) async fn open_on_current_runtime(&self) -> Result<(Arc<Session>, AbortHandle), PgError> {
        self.open_here_within(OPEN_TIMEOUT).await
    }

    async fn open_here_within(&self, timeout: Duration) -> Result<(Arc<Session>, AbortHandle), PgError> {
        let opening = async {
            let Opened { client, driver, is_direct, backend } = self.connect(Purpose::Locks).await?;
            let driver = drive(driver);
            Ok((Arc::new(self.session(client, is_direct, backend)), driver))
        };
        with_timeout(timeout, opening).await
    }

    /// Connects, and detects a pooler.
    pub(crate) async fn connect(&self, purpose: Purpose) -> Result<Opened, PgError> {
        self.opened.notify_one();
        if !self.is_pooled() {
            if let Some(opened) = self.connect_directly(purpose).await? {
                return Ok(opened);
            }
            tracing::debug!("PostgreSQL is behind a pooler: no prepared statements, no LISTEN");
            self.pooled.store(true, Ordering::Relaxed);
        }
        let (client, driver) = self.options.config.connect(self.tls.clone()).await?;
        Ok(Opened { client, driver, is_direct: false, backend: None })
    }

    /// Connects with the startup settings. Returns `None` if a pooler rejects or ignores them.
    async fn connect_directly(&self, purpose: Purpose) -> Result<Option<Opened>, PgError> {
        let mut config = self.options.config.clone();
        let configured = config.get_options().map(|configured| format!("{configured} ")).unwrap_or_default();
        let (settings, marker) = (purpose.startup_settings(), format!("{:016x}", fastrand::u64(..)));
        config.options(format!("{configured}{SERVER_TIMEOUTS} {settings} -c {MARKER}={marker}"));
        let (client, mut driver) = match config.connect(self.tls.clone()).await {
            Err(error) if rejects_startup_options(&error) => return Ok(None),
            connected => connected?,
        };
        let (found, backend) = while_polling(&mut driver, Backend::current(&client, MARKER)).await?;
        // It may have been detected meanwhile, by another connection.
        let is_direct = found == Some(marker) && !self.is_pooled();
        Ok(is_direct.then_some(Opened { client, driver, is_direct, backend }))
    }

    /// Wraps a connection in a session, with prepared statements if it is a direct one.
    pub(crate) fn session(&self, client: Client, prepared: bool, backend: Option<Backend>) -> Session {
        let texts = if prepared { &self.texts } else { &self.pooled_texts };
        Session::new(client, texts.clone(), prepared, backend)
    }

    /// Converts an error to one that names the database.
    pub(crate) fn map_error<T>(&self, done: Result<T, PgError>) -> Result<T> {
        done.map_err(|error| error.into_error(&self.description))
    }

    /// Requests cancellation of the statement that a connection executes. Best effort: the request
    /// may arrive too late.
    pub(crate) fn cancel(&self, session: &Session) {
        let (token, tls) = (session.client.cancel_token(), self.tls.clone());
        self.runtime().spawn(async move {
            let _ = tokio::time::timeout(OPERATION_TIMEOUT, token.cancel_query(tls)).await;
        });
    }

    /// Detects a pooler by its errors: behind a pooler, prepared statements go missing.
    pub(crate) fn observe_error(&self, error: &PgError) {
        if error.lost_prepared_statements() {
            self.pooled.store(true, Ordering::Relaxed);
        }
    }
}

/// Owner of connections that may be idle.
pub(crate) trait ConnectionOwner: Send + Sync {
    /// Returns idle connections to the pool, or closes them. Returns the number of connections that
    /// must be checked again.
    fn release_idle(&self, now: BootInstant) -> usize;
}

impl ConnectionOwner for Connector {
    /// Closes connections that have been idle for [`CLOSE_AFTER`], except for the last connection of
    /// all. Returns the number of connections that remain to be closed.
    fn release_idle(&self, now: BootInstant) -> usize {
        let keep = usize::from(self.listening().is_none());
        let mut idle = lock(&self.idle);
        idle.retain(|session| !session.is_closed());
        let unused = idle.iter().take_while(|session| session.idle_for(now) >= CLOSE_AFTER).count();
        let close = unused.min(idle.len().saturating_sub(keep));
        idle.drain(..close);
        idle.len().saturating_sub(keep)
    }
}

/// Closes idle connections for as long as the store is open. The owners return connections to the
/// connector, which comes last.
pub(crate) async fn close_idle_connections(
    connector: Weak<Connector>,
    owners: Vec<Weak<dyn ConnectionOwner>>,
) {
    let Some(opened) = connector.upgrade().map(|connector| connector.opened.clone()) else { return };
    loop {
        opened.notified().await;
        loop {
            let Some(connector) = connector.upgrade() else { break };
            let now = BootInstant::now();
            let owned: usize =
                owners.iter().filter_map(Weak::upgrade).map(|owner| owner.release_idle(now)).sum();
            if owned + connector.release_idle(now) == 0 {
                break;
            }
            drop(connector);
            tokio::time::sleep(IDLE_POLL).await;
        }
    }
}

/// Polls a connection until it ends, on the current runtime.
pub(crate) fn drive(connection: ConnectionDriver) -> AbortHandle {
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to PostgreSQL was closed");
        }
    });
    driver.abort_handle()
}

/// Polls a connection until this work of its client is done. Notifications that arrive meanwhile are lost.
pub(super) async fn while_polling<T>(
    driver: &mut ConnectionDriver,
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, PgError> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done?),
            message = next_message(driver) => drop(message?),
        }
    }
}

/// Polls a connection until it has a message for its owner.
pub(super) async fn next_message(driver: &mut ConnectionDriver) -> Result<AsyncMessage, PgError> {
    match poll_fn(|context| driver.poll_message(context)).await {
        Some(message) => Ok(message?),
        None => Err(PgError::Timeout),
    }
}

/// Connection task that must be polled for the client to make progress.
pub(crate) type ConnectionDriver = Connection<Socket, <tls::Connect as TlsConnect<Socket>>::Stream>;

fn rejects_startup_options(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| error.message().contains("unsupported startup parameter"))
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("url", &self.options.display_url).finish_non_exhaustive()
    }
}
