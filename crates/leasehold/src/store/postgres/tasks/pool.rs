//! The few connections that there are for tasks. They are not those of the locks, and neither is the thread that they live
//! on: however much is done with tasks, a lock's renewal does not wait for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::link::Link;
use super::text::Texts;
use crate::error::Result;
use crate::store::background::Background;
use crate::store::postgres::gate::Gate;
use crate::store::postgres::session::{DEADLINE, within};
use crate::store::postgres::trouble::{Again, Fail};

/// How long one try may take: the callers' patience ends a little later.
const STEP: Duration = Duration::from_millis(4500);
/// So often others may be in the way.
const TRIES: u32 = 4;

/// Whether something may be done twice, if nobody knows whether it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::postgres) enum Repeat {
    Safe,
    Unsafe,
}

/// The connections.
#[derive(Debug)]
pub(in crate::store::postgres) struct Pool {
    pub(super) gate: Arc<Gate>,
    pub(super) texts: Texts,
    room: Semaphore,
    idle: Mutex<Vec<Arc<Link>>>,
    home: Mutex<Option<Arc<Background>>>,
}

impl Pool {
    pub(in crate::store::postgres) fn new(gate: Arc<Gate>) -> Arc<Self> {
        Arc::new(Self {
            texts: Texts::new(&gate.options.schema),
            room: Semaphore::new(gate.options.pool),
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
        repeat: Repeat,
        work: W,
    ) -> Result<T>
    where
        T: Send + 'static,
        W: Fn(Arc<Link>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, Fail>> + Send,
    {
        let pool = self.clone();
        let tried = async move {
            let done = within(DEADLINE, pool.tries(repeat, &work)).await;
            done.map_err(|fail| fail.explain(&pool.gate.place))
        };
        self.home()?.run(tried).await
    }

    async fn tries<T, F>(&self, repeat: Repeat, work: &(impl Fn(Arc<Link>) -> F + Sync)) -> Result<T, Fail>
    where
        F: Future<Output = Result<T, Fail>> + Send,
    {
        let _room = self.room.acquire().await.map_err(|_| Fail::Late)?;
        let mut tries = 0;
        loop {
            let link = self.take().await?;
            // After an error a transaction may be open: the link goes, and the transaction with it.
            let fail = match within(STEP, Box::pin(work(link.clone()))).await {
                Ok(done) => {
                    self.idle().push(link);
                    return Ok(done);
                }
                Err(fail) => fail,
            };
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
        loop {
            let idle = self.idle().pop();
            match idle {
                Some(link) if link.is_closed() => {}
                Some(link) => return Ok(link),
                None => return self.open().await.map(Arc::new),
            }
        }
    }

    /// One more connection. To be called where it is to live.
    pub(super) async fn open(&self) -> Result<Link, Fail> {
        Link::open(&self.gate, self.texts.clone()).await
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
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
