//! Shared connection of this process, and the paths of operations to it.
//!
//! A caller that finds the connection free uses it on its own thread: a transaction that does not
//! wait for the disk takes a few dozen microseconds, less than waking another thread would. All
//! other operations (the connection is in use, the disk must be waited for, another process is
//! writing) go to a writer thread, which commits the operations that arrive during one transaction
//! together in the next: group commit.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use super::batch::{Answer, Ledger};
use super::connection::{Patience, open};
use super::file::StoreFile;
use super::options::SqliteOptions;
use super::tasks::{Aftermath, Call, Errand, Errands, Shelf, Syncer, answer_all, errand};
use super::trouble::{explain, is_busy};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{LockName, LockOp, Outcome};
use crate::store::wake::{Doorbell, Reach, Waiters};
use crate::store::{BootInstant, Clock};

/// Maximum number of operations in one transaction.
const MAX_BATCH: usize = 256;

/// Maximum number of tasks in one transaction, except for a single call with more tasks. Bounds the
/// wait of lock operations.
const MAX_TASKS: usize = 128;

/// Maximum number of tasks of a call that may run on the caller's thread.
const FEW_TASKS: usize = 4;

/// Period after a queued job in which no caller uses the connection on its own thread. Contention
/// tends to continue, and the writer thread is awake by now and commits the operations of several
/// callers in one transaction.
const CROWDED: Duration = Duration::from_millis(2);

/// Period in which the writer thread polls for the next job before it sleeps.
const AWAKE: Duration = Duration::from_micros(50);

/// Connection of this process.
pub(super) struct Writer {
    desk: Arc<Desk>,
    clock: Clock,
    thread: OnceLock<mpsc::Sender<Job>>,
}

/// State that the callers share with the writer thread.
pub(super) struct Desk {
    /// Notifier of workers that wait for tasks.
    pub(super) door: Doorbell,
    waiters: Waiters,
    syncer: Syncer,
    file: StoreFile,
    ledger: Mutex<Ledger>,
    patience: Patience,
    /// Number of jobs on their way to the writer thread. A later caller must not overtake them.
    waiting: AtomicUsize,
    /// Time until which all operations go to the writer thread, in microseconds of the boot clock.
    crowded_until: AtomicU64,
}

enum Job {
    Apply(Apply),
    Errand(Box<dyn Errand>),
    Run(Box<dyn FnOnce(&mut Ledger) + Send>),
}

struct Apply {
    name: LockName,
    op: LockOp,
    /// Time before the store could have granted anything: the TTL of a handed-over lease counts
    /// from it.
    since: BootInstant,
    reply: oneshot::Sender<Result<Outcome>>,
}

impl Writer {
    /// Opens the file.
    pub(super) fn open(options: &SqliteOptions) -> Result<Self> {
        let (file, ledger, patience) = open(options)?;
        let clock = ledger.clock.clone();
        let desk = Desk {
            door: Doorbell::default(),
            waiters: Waiters::default(),
            syncer: Syncer::new(file.path()),
            file,
            ledger: Mutex::new(ledger),
            patience,
            waiting: AtomicUsize::new(0),
            crowded_until: AtomicU64::new(0),
        };
        Ok(Self { desk: Arc::new(desk), clock, thread: OnceLock::new() })
    }

    /// Returns the canonical path of the file.
    pub(super) fn path(&self) -> PathBuf {
        self.desk.file.path().to_owned()
    }

    /// Returns the URL of the store for display.
    pub(super) fn url(&self) -> String {
        format!("sqlite:{}", self.desk.file.path().display())
    }

    pub(super) fn waiters(&self) -> Waiters {
        self.desk.waiters
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether nothing was written through this connection so far. Another process may then detect
    /// a restart of the machine and set the clock.
    pub(super) fn only_looks(&self) -> bool {
        self.desk.peek(|ledger| !ledger.has_entered()) == Some(true)
    }

    /// Applies one operation: immediately, or in one batch with other waiting operations.
    pub(super) async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let since = BootInstant::now();
        if let Some(done) = self.desk.apply_now(name, op, since) {
            return done;
        }
        let (reply, answer) = oneshot::channel();
        self.send(Job::Apply(Apply { name: name.clone(), op: op.clone(), since, reply }))?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Runs `work` on the tables, between transactions.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Ledger) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let explain = |error| explain(self.desk.file.path(), error);
        let (reply, answer) = oneshot::channel();
        let now = BootInstant::now();
        self.desk.file.is_still_there(now)?;
        let work = move |ledger: &mut Ledger| ledger.catch_up().and_then(|()| work(ledger));
        if let Some(mut ledger) = self.desk.take_if_free(now) {
            return work(&mut ledger).map_err(explain);
        }
        self.send(Job::Run(Box::new(move |ledger| drop(reply.send(work(ledger))))))?;
        answer.await.map_err(|_| gone())?.map_err(explain)
    }

    /// Runs `work` on tasks or documents, in one batch with other waiting calls, and returns once
    /// the result has been synced.
    pub(super) async fn transact<T: Send + 'static>(
        &self,
        call: Call,
        work: impl FnMut(&mut Shelf<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (errand, answer) = errand(call, work);
        if let Some(errand) = self.desk.do_now(errand) {
            self.send(Job::Errand(errand))?;
        }
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Reads tasks or documents.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Shelf<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run(move |ledger| ledger.look(look)).await
    }

    pub(super) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    fn send(&self, job: Job) -> Result<()> {
        self.desk.waiting.fetch_add(1, Ordering::SeqCst);
        // Batching gains little for tasks, so a task call does not keep lock operations from
        // running on their callers' threads.
        if !matches!(job, Job::Errand(_)) {
            self.desk.crowded_until.store(BootInstant::now().plus(CROWDED).as_micros(), Ordering::Relaxed);
        }
        let jobs = match self.thread.get() {
            Some(jobs) => jobs,
            None => {
                let (jobs, queue) = mpsc::channel();
                let desk = self.desk.clone();
                let mut starts = None;
                let jobs = self.thread.get_or_init(|| {
                    starts = Some((queue, desk));
                    jobs
                });
                if let Some((queue, desk)) = starts {
                    let thread = std::thread::Builder::new().name("leasehold-sqlite".to_owned());
                    thread.spawn(move || desk.work(&queue)).map_err(|error| {
                        let message = "the store's thread cannot be started";
                        let hint = "let this user have more threads";
                        Error::store(StoreErrorKind::Unavailable, message, hint).because(error)
                    })?;
                }
                jobs
            }
        };
        jobs.send(job).map_err(|_| gone())
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("path", &self.desk.file.path()).finish_non_exhaustive()
    }
}

impl Desk {
    /// Applies one operation on the caller's thread, if the caller need not wait for that.
    fn apply_now(&self, name: &LockName, op: &LockOp, since: BootInstant) -> Option<Result<Outcome>> {
        let mut ledger = self.take_if_free(since)?;
        if ledger.waits_for_the_disk() {
            return None;
        }
        if let Err(error) = self.file.is_still_there(since) {
            return Some(Err(error));
        }
        let tried = self.patience.with_little(|| ledger.commit_lightly(name, op));
        drop(ledger);
        match tried {
            Ok(None) => None,
            Ok(Some(Answer { outcome, handed_over })) => Some(self.file.is_unchanged().map(|()| {
                self.waiters.wake(name, handed_over, since, Reach::Machine);
                outcome
            })),
            // Nothing was written. The writer thread has a longer busy timeout.
            Err(error) if is_busy(&error) => None,
            Err(error) => Some(Err(explain(self.file.path(), error))),
        }
    }

    fn take_if_free(&self, now: BootInstant) -> Option<MutexGuard<'_, Ledger>> {
        let crowded = now.as_micros() < self.crowded_until.load(Ordering::Relaxed);
        if crowded || self.waiting.load(Ordering::SeqCst) > 0 {
            return None;
        }
        match self.ledger.try_lock() {
            Ok(ledger) => Some(ledger),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn work(&self, queue: &mpsc::Receiver<Job>) {
        let (mut batch, mut errands) = (Vec::new(), VecDeque::new());
        loop {
            let mut next = if errands.is_empty() { next(queue) } else { queue.try_recv().ok() };
            if next.is_none() && errands.is_empty() {
                return;
            }
            let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(job) = next {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                match job {
                    Job::Apply(apply) => batch.push(apply),
                    Job::Errand(errand) => errands.push_back(errand),
                    Job::Run(run) => {
                        self.commit(&mut ledger, &mut batch);
                        run(&mut ledger);
                    }
                }
                next = if batch.len() < MAX_BATCH { queue.try_recv().ok() } else { None };
            }
            self.commit(&mut ledger, &mut batch);
            let mut lot = Errands::new();
            while let Some(errand) = errands.pop_front_if(|next| {
                let weight: usize = lot.iter().map(|errand| errand.weight()).sum();
                lot.is_empty() || weight + next.weight() <= MAX_TASKS
            }) {
                lot.push(errand);
            }
            let committed = self.do_errands(&mut ledger, lot);
            drop(ledger);
            self.answer(committed, errands.is_empty());
        }
    }

    /// Answers errands whose result must be synced first. If no other job is waiting, this thread
    /// does the sync: handing over to another thread costs more than it gains.
    fn answer(&self, committed: Errands, idle: bool) {
        let idle = idle && self.waiting.load(Ordering::SeqCst) == 0;
        let left = match committed {
            none if none.is_empty() => None,
            committed if idle => self.syncer.answer_here(committed),
            committed => Some(committed),
        };
        if let Some(committed) = left {
            self.syncer.answer(committed);
        }
    }

    /// Runs an errand on the caller's thread, if the caller need not wait for that; otherwise
    /// returns the errand.
    fn do_now(&self, errand: Box<dyn Errand>) -> Option<Box<dyn Errand>> {
        let now = BootInstant::now();
        if errand.weight() > FEW_TASKS {
            return Some(errand);
        }
        let Some(mut ledger) = self.take_if_free(now) else { return Some(errand) };
        let mut lot = vec![errand];
        if let Err(error) = self.file.is_still_there(now) {
            answer_all(lot, &Err(error));
            return None;
        }
        let done = self.patience.with_little(|| ledger.do_errands(&mut lot));
        drop(ledger);
        match done {
            // Nothing was written. The writer thread has a longer busy timeout.
            Err(error) if is_busy(&error) => lot.pop(),
            done => {
                // Never synced here: the caller's thread must not wait for the disk.
                self.answer(self.finish(lot, done), false);
                None
            }
        }
    }

    /// Runs errands; returns those whose result must be synced before they are answered.
    fn do_errands(&self, ledger: &mut Ledger, mut lot: Errands) -> Errands {
        if lot.is_empty() {
            return lot;
        }
        if let Err(error) = self.file.is_still_there(BootInstant::now()) {
            answer_all(lot, &Err(error));
            return Errands::new();
        }
        match ledger.do_errands(&mut lot) {
            // An error of one errand must not fail the others: run each in its own transaction.
            Err(error) if lot.len() > 1 && !is_busy(&error) => {
                let mut alone = |errand| {
                    let mut alone = vec![errand];
                    let done = ledger.do_errands(&mut alone);
                    self.finish(alone, done)
                };
                lot.into_iter().flat_map(&mut alone).collect()
            }
            done => self.finish(lot, done),
        }
    }

    /// Notifies workers that may find tasks and answers the errands that need no sync; returns the
    /// others.
    fn finish(&self, lot: Errands, done: rusqlite::Result<Aftermath>) -> Errands {
        let done = done.map_err(|error| explain(self.file.path(), error));
        match done.and_then(|done| self.file.is_unchanged().map(|()| done)) {
            Ok(Aftermath { news, waits }) => {
                news.ring(&self.door);
                if waits {
                    return lot;
                }
                answer_all(lot, &Ok(()));
            }
            Err(error) => answer_all(lot, &Err(error)),
        }
        Errands::new()
    }

    /// Reads the database if no other caller is using the connection.
    pub(super) fn peek<T>(&self, look: impl FnOnce(&Ledger) -> T) -> Option<T> {
        self.ledger.try_lock().ok().map(|ledger| look(&ledger))
    }

    fn commit(&self, ledger: &mut Ledger, batch: &mut Vec<Apply>) {
        if batch.is_empty() {
            return;
        }
        let ops = batch.iter().map(|apply| (&apply.name, &apply.op));
        let there = self.file.is_still_there(BootInstant::now());
        let answers = there
            .and_then(|()| ledger.commit(&ops).map_err(|error| explain(self.file.path(), error)))
            .and_then(|answers| self.file.is_unchanged().map(|()| answers));
        // A caller that has dropped its future is treated like one whose answer was lost.
        match answers {
            Ok(answers) => {
                for (apply, Answer { outcome, handed_over }) in batch.drain(..).zip(answers) {
                    self.waiters.wake(&apply.name, handed_over, apply.since, Reach::Machine);
                    let _ = apply.reply.send(Ok(outcome));
                }
            }
            Err(error) => {
                for apply in batch.drain(..) {
                    let _ = apply.reply.send(Err(error.clone()));
                }
            }
        }
    }
}

/// Returns the next job; `None` when no more can arrive. Polls for [`AWAKE`] first: a caller that
/// was just answered often sends another job, and waking this thread takes longer than that.
fn next(queue: &mpsc::Receiver<Job>) -> Option<Job> {
    let until = BootInstant::now().plus(AWAKE);
    loop {
        match queue.try_recv() {
            Ok(job) => return Some(job),
            Err(mpsc::TryRecvError::Disconnected) => return None,
            Err(mpsc::TryRecvError::Empty) if BootInstant::now() < until => std::thread::yield_now(),
            Err(mpsc::TryRecvError::Empty) => return queue.recv().ok(),
        }
    }
}

fn gone() -> Error {
    Error::store(StoreErrorKind::Broken, "the store's thread has ended", "please report this")
}
