//! Connection pool for tasks. The connections and their thread are separate from those of the
//! locks, so that the renewal of a lock never waits for work on tasks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::link::Link;
use super::text::Texts;
use crate::error::Result;
use crate::store::BootInstant;
use crate::store::background::Background;
use crate::store::postgres::gate::Gate;
use crate::store::postgres::idle::LONG_IDLE;
use crate::store::postgres::session::{DEADLINE, within};
use crate::store::postgres::trouble::{Again, Fail};
use crate::store::repeat::Repeat;

/// Timeout of one attempt; the callers' timeout is a little longer.
const STEP: Duration = Duration::from_millis(4500);
/// Maximum number of attempts if other transactions conflict.
const TRIES: u32 = 4;

/// Connections for tasks.
#[derive(Debug)]
pub(in crate::store::postgres) struct Pool {
    pub(super) gate: Arc<Gate>,
    pub(super) texts: Texts,
    room: Semaphore,
    /// One more connection, for heartbeats while all others are in use: heartbeats must not wait
    /// behind other work of this process.
    reserve: Semaphore,
    idle: Mutex<Vec<(Arc<Link>, BootInstant)>>,
    home: Mutex<Option<Arc<Background>>>,
}

impl Pool {
    pub(in crate::store::postgres) fn new(gate: Arc<Gate>) -> Arc<Self> {
        Arc::new(Self {
            texts: Texts::new(&gate.options.schema),
            room: Semaphore::new(gate.options.pool),
            reserve: Semaphore::new(1),
            idle: Mutex::default(),
            home: Mutex::default(),
            gate,
        })
    }

    /// Returns the gate, for the address of the server and the time.
    pub(in crate::store::postgres) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Executes work with a connection, to its end even if the caller is dropped. The work is
    /// repeated with another connection if transactions conflict or the connection turns out to be
    /// closed.
    pub(in crate::store::postgres) async fn run<T, W, F>(
        self: &Arc<Self>,
        repeat: impl Into<Repeat>,
        work: W,
    ) -> Result<T>
    where
        T: Send + 'static,
        W: Fn(Arc<Link>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, Fail>> + Send,
    {
        let (pool, repeat) = (self.clone(), repeat.into());
        let tried = async move {
            let done = within(DEADLINE, async {
                let _room = pool.room.acquire().await.map_err(|_| Fail::Late)?;
                pool.tries(repeat, &work).await
            });
            done.await.map_err(|fail| fail.explain(&pool.gate.place))
        };
        self.home()?.run(tried).await
    }

    /// Like [`run`](Self::run), for work that must not wait until a connection is free.
    pub(in crate::store::postgres) async fn run_at_once<T, W, F>(
        self: &Arc<Self>,
        repeat: impl Into<Repeat>,
        work: W,
    ) -> Result<T>
    where
        T: Send + 'static,
        W: Fn(Arc<Link>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, Fail>> + Send,
    {
        let (pool, repeat) = (self.clone(), repeat.into());
        let tried = async move {
            let done = within(DEADLINE, async {
                let _room = match pool.room.try_acquire() {
                    Ok(room) => room,
                    Err(_) => pool.reserve.acquire().await.map_err(|_| Fail::Late)?,
                };
                pool.tries(repeat, &work).await
            });
            done.await.map_err(|fail| fail.explain(&pool.gate.place))
        };
        self.home()?.run(tried).await
    }

    async fn tries<T, F>(&self, repeat: Repeat, work: &(impl Fn(Arc<Link>) -> F + Sync)) -> Result<T, Fail>
    where
        F: Future<Output = Result<T, Fail>> + Send,
    {
        let mut tries = 0;
        loop {
            let link = self.take().await?;
            let mut unanswered = Unanswered { gate: &self.gate, link: Some(link.clone()) };
            // After an error a transaction may be open: the connection is dropped, which ends the
            // transaction.
            let fail = match within(STEP, Box::pin(work(link.clone()))).await {
                Ok(done) => {
                    unanswered.link = None;
                    let mut idle = self.idle();
                    // The reserve connection is not kept.
                    if idle.len() < self.gate.options.pool {
                        idle.push((link, BootInstant::now()));
                    }
                    return Ok(done);
                }
                Err(fail) => fail,
            };
            if !matches!(fail, Fail::Late) && fail.again() != Again::Perhaps {
                unanswered.link = None;
            }
            drop(unanswered);
            self.gate.learn(&fail);
            tries += 1;
            let again = match fail.again() {
                Again::Surely => tries < TRIES,
                Again::Perhaps => repeat == Repeat::Safe && tries < 2,
                Again::Never => false,
            };
            if !again {
                return Err(fail);
            }
            if matches!(fail.again(), Again::Perhaps) {
                // The other connections are of the same age, and probably closed too.
                self.idle().clear();
            }
        }
    }

    async fn take(&self) -> Result<Arc<Link>, Fail> {
        let link = loop {
            let idle = self.idle().pop();
            match idle {
                Some((link, _)) if link.is_closed() => {}
                Some((link, _)) => break link,
                None => break Arc::new(self.open().await?),
            }
        };
        // An abandoned statement must not take effect after the statements that follow.
        self.gate.abandoned.end_all(link.client()).await?;
        Ok(link)
    }

    /// Opens another connection on the current runtime, where it lives.
    pub(super) async fn open(&self) -> Result<Link, Fail> {
        Link::open(&self.gate, self.texts.clone()).await
    }

    /// Closes connections that have been idle for [`LONG_IDLE`], and returns the number of those
    /// left.
    pub(in crate::store::postgres) fn close_idle(&self, now: BootInstant) -> usize {
        let mut idle = self.idle();
        idle.retain(|(link, used)| !link.is_closed() && now.after(*used) < LONG_IDLE);
        idle.len()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Arc<Link>, BootInstant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the background thread, which is started on first use.
    pub(super) fn home(&self) -> Result<Arc<Background>> {
        let mut home = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = &*home {
            return Ok(home.clone());
        }
        let started = Arc::new(Background::start("leasehold-tasks")?);
        *home = Some(started.clone());
        Ok(started)
    }
}

/// Connection with a statement in flight. Dropping it before the answer has arrived abandons the
/// connection.
struct Unanswered<'a> {
    gate: &'a Gate,
    link: Option<Arc<Link>>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            self.gate.abandoned.add(link.backend());
        }
    }
}
