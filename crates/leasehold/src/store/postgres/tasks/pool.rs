//! The few connections that there are for tasks. They are not those of the locks, and neither is the thread that they live
//! on: however much is done with tasks, a lock's renewal does not wait for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::link::Link;
use super::text::Texts;
use crate::error::Result;
use crate::store::Moment;
use crate::store::background::Background;
use crate::store::postgres::gate::Gate;
use crate::store::postgres::idle::LONG_IDLE;
use crate::store::postgres::session::{DEADLINE, within};
use crate::store::postgres::trouble::{Again, Fail};
use crate::store::repeat::Repeat;

/// How long one try may take: the callers' patience ends a little later.
const STEP: Duration = Duration::from_millis(4500);
/// So often others may be in the way.
const TRIES: u32 = 4;

/// The connections.
#[derive(Debug)]
pub(in crate::store::postgres) struct Pool {
    pub(super) gate: Arc<Gate>,
    pub(super) texts: Texts,
    room: Semaphore,
    /// One more, for heartbeats while all others are in use: they must not wait behind other work of this process.
    reserve: Semaphore,
    idle: Mutex<Vec<(Arc<Link>, Moment)>>,
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

    /// Where the server is, and as of when.
    pub(in crate::store::postgres) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Does something with a connection, to its end even if the caller does not wait for it; again with another one, if
    /// others were in the way or the connection turns out to be gone.
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

    /// The same for what must not wait until a connection is free.
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
            // After an error a transaction may be open: the link goes, and the transaction with it.
            let fail = match within(STEP, Box::pin(work(link.clone()))).await {
                Ok(done) => {
                    unanswered.link = None;
                    let mut idle = self.idle();
                    // The one in reserve is not kept.
                    if idle.len() < self.gate.options.pool {
                        idle.push((link, Moment::now()));
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
                // The others are of the same age.
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
        // What was given up must not come to pass after what follows.
        self.gate.abandoned.end_all(link.client()).await?;
        Ok(link)
    }

    /// One more connection. To be called where it is to live.
    pub(super) async fn open(&self) -> Result<Link, Fail> {
        Link::open(&self.gate, self.texts.clone()).await
    }

    /// Closes the connections that nobody has used for long; says how many are left.
    pub(in crate::store::postgres) fn close_idle(&self, now: Moment) -> usize {
        let mut idle = self.idle();
        idle.retain(|(link, used)| !link.is_closed() && now.after(*used) < LONG_IDLE);
        idle.len()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Arc<Link>, Moment)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread, started when it is first needed.
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

/// A connection on which something is under way. Unless its answer has come, the connection is given up.
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
