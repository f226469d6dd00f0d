//! Opening, pooling and cancelling of connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;
use tokio_postgres::tls::TlsConnect;
use tokio_postgres::{Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::abandoned::{Abandoned, Backend};
use super::idle::IDLE;
use super::options::{Pooler, PostgresOptions};
use super::session::{DEADLINE, Session, within};
use super::sql::Texts;
use super::tls;
use super::trouble::{Fail, lost_its_statements};
use crate::error::Result;
use crate::model::Timestamp;
use crate::store::BootInstant;
use crate::store::background::Background;
use crate::store::wake::Waiters;

/// Timeouts that the server enforces. They are shorter than the client's, so that a statement
/// cannot take effect after the client has given up. A client that falls silent in the middle of a
/// transaction does not keep its row locked for long.
const PATIENCE: &str = "-c statement_timeout=4000 -c idle_in_transaction_session_timeout=5000 \
                        -c default_transaction_isolation=read\\ committed";

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Locks: many callers share the connection, so a statement waits only briefly for a row that
    /// another session has locked.
    Locks,
    /// Tasks.
    Tasks,
}

impl Use {
    /// Returns the `lock_timeout` in milliseconds.
    const fn lock_timeout(self) -> u32 {
        match self {
            Self::Locks => 250,
            Self::Tasks => 2000,
        }
    }
}

/// Factory of connections, with the state that all connections of a store share.
pub(super) struct Gate {
    pub(super) options: PostgresOptions,
    pub(super) place: String,
    /// Runtime of all connections but one. A caller's runtime may be busy, have no sockets, or end;
    /// leases must still be renewed.
    home: Background,
    tls: MakeRustlsConnect,
    texts: Texts,
    pooled_texts: Texts,
    /// Whether the server is behind a pooler, as configured or as detected.
    pooled: AtomicBool,
    /// Abandoned connections, which must be ended on the server before any other statement is sent.
    pub(super) abandoned: Abandoned,
    /// Open connections that are not in use, the most recently used one last.
    spare: Mutex<Vec<Arc<Session>>>,
    pub(super) waiters: Waiters,
    /// Connection that listens for notifications.
    listening: Mutex<Listening>,
    /// Limits the number of locks that are set aside at once: each needs a connection.
    pub(super) aside: Semaphore,
    /// Notified of every connection that is opened.
    pub(super) opened: Arc<Notify>,
}

/// Connection that listens for notifications, and whether a caller has borrowed it.
#[derive(Default)]
struct Listening {
    session: Option<Arc<Session>>,
    lent: bool,
}

impl Gate {
    pub(super) fn new(options: PostgresOptions) -> Result<Self> {
        Ok(Self {
            home: Background::start("leasehold-postgres")?,
            tls: tls::connector(&options)?,
            texts: Texts::new(&options.schema, false),
            pooled_texts: Texts::new(&options.schema, true),
            abandoned: Abandoned::default(),
            place: options.place(),
            pooled: AtomicBool::new(options.pooler == Pooler::Transaction),
            spare: Mutex::default(),
            waiters: Waiters::default(),
            listening: Mutex::default(),
            opened: Arc::default(),
            aside: Semaphore::new(options.pool),
            options,
        })
    }

    /// Returns the runtime that the connections live on.
    pub(super) fn home(&self) -> &Handle {
        self.home.handle()
    }

    /// Whether the server is behind a pooler.
    pub(super) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Relaxed)
    }

    /// Returns the time to send with a statement; `None` if the server's own clock is
    /// authoritative.
    pub(super) fn now(&self) -> Option<i64> {
        self.options.clock.as_ref().map(|clock| micros(clock.now()))
    }

    /// Returns the NOTIFY channel for waiters.
    pub(super) fn channel(&self) -> String {
        format!("leasehold_{}", self.options.schema)
    }

    /// Returns the NOTIFY channel for workers. Its length stays within the limit for identifiers:
    /// see `LONGEST_SCHEMA`.
    pub(super) fn task_channel(&self) -> String {
        format!("leasehold_{}_task", self.options.schema)
    }

    /// Returns a connection to the pool.
    pub(super) fn keep(&self, session: Arc<Session>) {
        if self.is_listening(&session) {
            lock(&self.listening).lent = false;
        } else {
            lock(&self.spare).push(session);
        }
    }

    /// Sets or clears the connection that listens for notifications.
    pub(super) fn listens_on(&self, session: Option<Arc<Session>>) {
        *lock(&self.listening) = Listening { session, lent: false };
        // Idle connections may have become superfluous.
        self.opened.notify_one();
    }

    /// Returns the connection that listens for notifications, for reads.
    pub(super) fn listening(&self) -> Option<Arc<Session>> {
        lock(&self.listening).session.clone().filter(|session| !session.is_closed())
    }

    pub(super) fn is_listening(&self, session: &Arc<Session>) -> bool {
        lock(&self.listening).session.as_ref().is_some_and(|listens| Arc::ptr_eq(listens, session))
    }

    /// Returns the listening connection for exclusive use, unless another caller has borrowed it.
    fn borrow_listening(&self) -> Option<Arc<Session>> {
        let mut listening = lock(&self.listening);
        let free = !listening.lent;
        let session = listening.session.clone().filter(|session| free && !session.is_closed());
        listening.lent |= session.is_some();
        session
    }

    /// Closes connections that have been idle for [`IDLE`], except for the last connection of all.
    /// Returns the number of connections that remain to be closed.
    pub(super) fn close_idle(&self, now: BootInstant) -> usize {
        let keep = usize::from(self.listening().is_none());
        let mut spare = lock(&self.spare);
        spare.retain(|session| !session.is_closed());
        let idle = spare.iter().take_while(|session| session.unused_for(now) >= IDLE).count();
        let close = idle.min(spare.len().saturating_sub(keep));
        spare.drain(..close);
        spare.len().saturating_sub(keep)
    }

    /// Returns an idle connection, the listening connection if it is free, or a new connection.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Arc<Session>, Fail> {
        while let Some(session) = { lock(&self.spare).pop() } {
            if !session.is_closed() {
                return Ok(session);
            }
        }
        if let Some(session) = self.borrow_listening() {
            return Ok(session);
        }
        let gate = self.clone();
        let opening = self.home().spawn(async move { gate.open_here().await });
        opening.await.unwrap_or(Err(Fail::Late)).map(|(session, _)| session)
    }

    /// Opens a connection on the current runtime and returns it with the handle of its driver:
    /// sockets belong to the runtime that they were opened on.
    pub(super) async fn open_here(&self) -> Result<(Arc<Session>, AbortHandle), Fail> {
        let opening = async {
            let named = !self.is_pooled();
            let (client, connection) = self.connect(Use::Locks).await?;
            let driver = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to PostgreSQL has ended");
                }
            });
            let named = named && !self.is_pooled();
            let backend = if named { Backend::of(&client).await? } else { None };
            let texts = if named { &self.texts } else { &self.pooled_texts };
            let session = Session::new(client, texts.clone(), named, backend);
            Ok((Arc::new(session), driver.abort_handle()))
        };
        within(DEADLINE.mul_f64(0.8), opening).await
    }

    /// Connects, and detects a pooler: a pooler rejects the startup settings.
    pub(super) async fn connect(&self, use_for: Use) -> Result<(tokio_postgres::Client, Wire), Fail> {
        self.opened.notify_one();
        if self.is_pooled() {
            return Ok(self.options.config.connect(self.tls.clone()).await?);
        }
        let mut config: Config = self.options.config.clone();
        let theirs = config.get_options().map(|theirs| format!("{theirs} ")).unwrap_or_default();
        config.options(format!("{theirs}{PATIENCE} -c lock_timeout={}", use_for.lock_timeout()));
        match config.connect(self.tls.clone()).await {
            Err(error) if refuses_settings(&error) => {
                tracing::debug!(%error, "a pooler stands before PostgreSQL: no prepared statements, no LISTEN");
                self.pooled.store(true, Ordering::Relaxed);
                Ok(self.options.config.connect(self.tls.clone()).await?)
            }
            connected => Ok(connected?),
        }
    }

    /// Wraps a direct connection to the server in a session with prepared statements.
    pub(super) fn session(&self, client: tokio_postgres::Client, backend: Option<Backend>) -> Session {
        Session::new(client, self.texts.clone(), true, backend)
    }

    /// Requests cancellation of the statement that a connection executes. Best effort: the request
    /// may arrive too late.
    pub(super) fn cancel(&self, session: &Session) {
        let (token, tls) = (session.client().cancel_token(), self.tls.clone());
        self.home().spawn(async move {
            let _ = tokio::time::timeout(DEADLINE, token.cancel_query(tls)).await;
        });
    }

    /// Detects a pooler by its errors: behind a pooler, prepared statements go missing.
    pub(super) fn learn(&self, fail: &Fail) {
        if let Fail::Said(error) = fail
            && lost_its_statements(error)
        {
            self.pooled.store(true, Ordering::Relaxed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connection task that must be polled for the client to make progress.
pub(super) type Wire = Connection<Socket, <tls::Connect as TlsConnect<Socket>>::Stream>;

fn refuses_settings(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| error.message().contains("unsupported startup parameter"))
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("url", &self.options.shown).finish_non_exhaustive()
    }
}

/// Converts a time to the value of its column.
pub(super) fn micros(time: Timestamp) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Delay before a failed listener tries again.
pub(super) const PAUSE: Duration = Duration::from_secs(2);
