//! The one connection of this process, and how operations get to it.
//!
//! Whoever finds it free uses it on the spot: a transaction that does not wait for the disk takes a few dozen
//! microseconds, less than waking another thread would. Everything else (somebody is using it, the disk has to be
//! waited for, another process is writing) goes to a thread of its own, and what arrives while that thread writes is
//! written together next: group commit.

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
use crate::error::{Error, Result, Trouble};
use crate::model::{LockName, LockOp, Outcome};
use crate::store::wake::{Doorbell, Reach, Waiters};
use crate::store::{Clock, Moment};

/// So many operations go into one transaction at most.
const MAX_BATCH: usize = 256;

/// So many tasks go into one transaction at most, or one call that is about more: locks do not wait for longer.
const MAX_TASKS: usize = 128;

/// A call about no more tasks than this takes a moment, and may be done on the spot.
const FEW_TASKS: usize = 4;

/// Where one had to wait, others will: for so long after it nobody uses the connection on the spot, because the thread
/// is awake by now and writes what several want in one transaction.
const CROWDED: Duration = Duration::from_millis(2);

/// For so long the thread looks for the next job before it sleeps.
const AWAKE: Duration = Duration::from_micros(50);

/// The connection of this process.
pub(super) struct Writer {
    desk: Arc<Desk>,
    clock: Clock,
    thread: OnceLock<mpsc::Sender<Job>>,
}

/// What the callers and the thread share.
pub(super) struct Desk {
    /// Who waits for tasks.
    pub(super) door: Doorbell,
    waiters: Waiters,
    syncer: Syncer,
    file: StoreFile,
    ledger: Mutex<Ledger>,
    patience: Patience,
    /// Jobs on their way to the thread: whoever comes now must not be faster than they.
    waiting: AtomicUsize,
    /// Until when everything goes to the thread, in microseconds of the boot clock.
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
    /// Before the store could have granted anything: what a handed-over lease is counted from.
    since: Moment,
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

    /// Where the file really is.
    pub(super) fn path(&self) -> PathBuf {
        self.desk.file.path().to_owned()
    }

    /// The store's address for people.
    pub(super) fn url(&self) -> String {
        format!("sqlite:{}", self.desk.file.path().display())
    }

    pub(super) fn waiters(&self) -> Waiters {
        self.desk.waiters
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether nothing was written through this connection so far. Another process may then find out that the machine was
    /// restarted, and set the clock.
    pub(super) fn only_looks(&self) -> bool {
        self.desk.peek(|ledger| !ledger.has_entered()) == Some(true)
    }

    /// Applies one operation: here and now, or together with whatever else is waiting.
    pub(super) async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let since = Moment::now();
        if let Some(done) = self.desk.apply_now(name, op, since) {
            return done;
        }
        let (reply, answer) = oneshot::channel();
        self.send(Job::Apply(Apply { name: name.clone(), op: op.clone(), since, reply }))?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Runs something with the tables, between transactions.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Ledger) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let explain = |error| explain(self.desk.file.path(), error);
        let (reply, answer) = oneshot::channel();
        let now = Moment::now();
        self.desk.file.is_still_there(now)?;
        let work = move |ledger: &mut Ledger| ledger.catch_up().and_then(|()| work(ledger));
        if let Some(mut ledger) = self.desk.take_if_free(now) {
            return work(&mut ledger).map_err(explain);
        }
        self.send(Job::Run(Box::new(move |ledger| drop(reply.send(work(ledger))))))?;
        answer.await.map_err(|_| gone())?.map_err(explain)
    }

    /// Does something with tasks or documents, together with whatever else is waiting, and comes back when it is on the
    /// disk.
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

    /// Looks at tasks or documents.
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
        // Tasks that are written together gain little by it, so they do not keep locks from being used on the spot.
        if !matches!(job, Job::Errand(_)) {
            self.desk.crowded_until.store(Moment::now().plus(CROWDED).as_micros(), Ordering::Relaxed);
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
                        Error::store(Trouble::Unavailable, message, hint).because(error)
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
    /// Applies one operation in the caller's own thread, if that does not make it wait.
    fn apply_now(&self, name: &LockName, op: &LockOp, since: Moment) -> Option<Result<Outcome>> {
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
            // Nothing was written. The thread has more patience.
            Err(error) if is_busy(&error) => None,
            Err(error) => Some(Err(explain(self.file.path(), error))),
        }
    }

    fn take_if_free(&self, now: Moment) -> Option<MutexGuard<'_, Ledger>> {
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

    /// Answers errands that have to be on the disk before. If nothing else is to be done, this thread can wait for that:
    /// changing to another one costs more than it brings.
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

    /// Does an errand in the caller's own thread, if that does not make it wait; else gives it back.
    fn do_now(&self, errand: Box<dyn Errand>) -> Option<Box<dyn Errand>> {
        let now = Moment::now();
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
            // Nothing was written. The thread has more patience.
            Err(error) if is_busy(&error) => lot.pop(),
            done => {
                // Never here: the caller has other things to do than to wait for the disk.
                self.answer(self.finish(lot, done), false);
                None
            }
        }
    }

    /// Does errands; those that have to be on the disk before they are answered are given back.
    fn do_errands(&self, ledger: &mut Ledger, mut lot: Errands) -> Errands {
        if lot.is_empty() {
            return lot;
        }
        if let Err(error) = self.file.is_still_there(Moment::now()) {
            answer_all(lot, &Err(error));
            return Errands::new();
        }
        match ledger.do_errands(&mut lot) {
            // The trouble of one is not that of the others.
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

    /// Wakes whoever may find something, and answers those who need not wait for the disk; the others are given back.
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

    /// Looks at something if nobody uses the connection just now.
    pub(super) fn peek<T>(&self, look: impl FnOnce(&Ledger) -> T) -> Option<T> {
        self.ledger.try_lock().ok().map(|ledger| look(&ledger))
    }

    fn commit(&self, ledger: &mut Ledger, batch: &mut Vec<Apply>) {
        if batch.is_empty() {
            return;
        }
        let ops = batch.iter().map(|apply| (&apply.name, &apply.op));
        let there = self.file.is_still_there(Moment::now());
        let answers = there
            .and_then(|()| ledger.commit(&ops).map_err(|error| explain(self.file.path(), error)))
            .and_then(|answers| self.file.is_unchanged().map(|()| answers));
        // A caller that has gone away is as one whose answer was lost.
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

/// The next job; none when there will be no more. Stays awake for a moment: whoever has just been answered often has
/// another one, and being woken takes longer than the moment.
fn next(queue: &mpsc::Receiver<Job>) -> Option<Job> {
    let until = Moment::now().plus(AWAKE);
    loop {
        match queue.try_recv() {
            Ok(job) => return Some(job),
            Err(mpsc::TryRecvError::Disconnected) => return None,
            Err(mpsc::TryRecvError::Empty) if Moment::now() < until => std::thread::yield_now(),
            Err(mpsc::TryRecvError::Empty) => return queue.recv().ok(),
        }
    }
}

fn gone() -> Error {
    Error::store(Trouble::Broken, "the store's thread has ended", "please report this")
}
