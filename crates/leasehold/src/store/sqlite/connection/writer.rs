//! Shared connection of this process, and the paths of operations to it.
//!
//! A caller that finds the connection free uses it on its own thread: a transaction that does not
//! wait for the disk takes a few dozen microseconds, less than waking another thread would. All
//! other operations (the connection is in use, the disk must be waited for, another process is
//! writing) go to a writer thread, which commits the operations that arrive during one transaction
//! together in the next: group commit. Maintenance always runs there, because it may wait for other
//! writers. Where processes take [turns](super::turn), the writer thread waits for the turn, and callers
//! use the connection themselves until it ends.
//!
//! The queue is a channel, not a [`BatchQueue`](crate::store::batch_queue): the writer thread sleeps in
//! it, and one queue keeps reads, lock operations and writes of tasks in order, although they form
//! different transactions.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use super::database::{BusyTimeout, Database};
use super::turn;
use super::wal_sync::WalSyncer;
use super::write_request::{Batch, CommitOutcome, WriteOptions, WriteRequest, answer_all, write_request};
use crate::error::Result;
use crate::model::{Lease, LockName, LockOp, Outcome};
use crate::store::batch_queue::{BatchSize, Pending, take_batch};
use crate::store::sqlite::error::{explain, is_busy, thread_ended, thread_error};
use crate::store::sqlite::file::StoreFile;
use crate::store::sqlite::locks::{Committed, OpResult};
use crate::store::sqlite::options::SqliteOptions;
use crate::store::sqlite::tasks::TaskTransaction;
use crate::store::support::mutex::lock;
use crate::store::wake::{QueueNotifier, Waiters};
use crate::store::{BootInstant, Clock};

/// Maximum number of operations in one transaction.
const MAX_BATCH_OPS: usize = 256;

/// Maximum number of tasks in one transaction, except for a single call with more tasks. Bounds the
/// wait of lock operations.
const MAX_BATCH_TASKS: BatchSize = BatchSize::count(128);

/// Maximum number of tasks of a call that may run on the caller's thread.
const MAX_INLINE_TASKS: usize = 4;

/// Period after a queued job in which no caller uses the connection on its own thread. Contention
/// tends to continue, and the writer thread is awake by now and commits the operations of several
/// callers in one transaction.
const CONTENTION_PERIOD: Duration = Duration::from_millis(2);

/// Period after which a read ends the round of the writer thread. Reads may arrive without end, and writes of
/// tasks, as well as answers that wait for the disk, come after them.
const MAX_READ_TIME: Duration = Duration::from_millis(5);

/// Period in which the writer thread polls for the next job before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(50);

pub(crate) struct Writer {
    pub(crate) shared: Arc<SharedConnection>,
    pub(crate) clock: Clock,
    thread: OnceLock<mpsc::Sender<Job>>,
    /// Held while the writer thread is being started.
    starting: Mutex<()>,
}

/// Connection and notifiers that the callers share with the writer thread.
pub(crate) struct SharedConnection {
    pub(crate) notifier: QueueNotifier,
    pub(crate) waiters: Waiters,
    wal_syncer: WalSyncer,
    file: StoreFile,
    database: Mutex<Database>,
    busy_timeout: BusyTimeout,
    /// Number of jobs on their way to the writer thread. A later caller must not overtake them.
    queued_jobs: AtomicUsize,
    /// Time until which all operations go to the writer thread, in microseconds of the boot clock.
    contended_until: AtomicU64,
    /// Whether a caller found on its own thread that the log is too long.
    has_long_log: AtomicBool,
}

enum Job {
    Apply(Apply),
    Write(Box<dyn WriteRequest>),
    Read(Box<dyn FnOnce(&mut Database) + Send>),
    /// Work that may wait for other writers.
    Maintain(Box<dyn FnOnce(&mut Database) + Send>),
    /// Starts a round: after each, the log is emptied if it is too long.
    ShrinkLog,
}

type Apply = Pending<LockCall, Result<Outcome>>;

struct LockCall {
    name: LockName,
    op: LockOp,
    /// Time before the store could have granted anything: the TTL of a handed-over lease counts
    /// from it.
    since: BootInstant,
}

impl Writer {
    pub(crate) fn open(options: &SqliteOptions) -> Result<Self> {
        let (file, database, busy_timeout) = Database::open(options)?;
        let clock = database.clock.clone();
        let shared = SharedConnection {
            notifier: QueueNotifier::default(),
            waiters: Waiters::default(),
            wal_syncer: WalSyncer::new(file.path()),
            file,
            database: Mutex::new(database),
            busy_timeout,
            queued_jobs: AtomicUsize::new(0),
            contended_until: AtomicU64::new(0),
            has_long_log: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared), clock, thread: OnceLock::new(), starting: Mutex::default() })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.shared.file.path().to_owned()
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.shared.file.path().display())
    }

    /// Whether nothing was written through this connection so far. Another process may then detect
    /// a restart of the machine and set the clock.
    pub(crate) fn is_reader(&self) -> bool {
        self.shared.try_read(|database| database.write_state.is_none()) == Some(true)
    }

    /// Applies one operation: immediately, or in one batch with other waiting operations.
    pub(crate) async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let since = BootInstant::now();
        let done = self.shared.apply_inline(name, op, since);
        self.shrink_log_if_long();
        if let Some(done) = done {
            return done;
        }
        let (apply, answer) = Pending::new(LockCall { name: name.clone(), op: op.clone(), since });
        self.send(Job::Apply(apply))?;
        answer.await.unwrap_or_else(|_| Err(thread_ended()))
    }

    /// Reads the tables, between transactions. `work` must not take the write lock: it may run on the
    /// thread of the caller, which must not wait for other writers.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Database) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let explain = |error| explain(self.shared.file.path(), error);
        let (reply, answer) = oneshot::channel();
        let now = BootInstant::now();
        self.shared.file.check_in_place(now)?;
        let work = move |database: &mut Database| database.refresh_boot().and_then(|()| work(database));
        if let Some(mut database) = self.shared.lock_if_idle(now) {
            let done = work(&mut database);
            database.turn.end();
            return done.map_err(explain);
        }
        self.send(Job::Read(Box::new(move |database| drop(reply.send(work(database))))))?;
        answer.await.map_err(|_| thread_ended())?.map_err(explain)
    }

    /// Runs `work`, which may take the write lock, between transactions and on the writer thread.
    pub(crate) async fn maintain<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Database) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.shared.file.check_in_place(BootInstant::now())?;
        let (reply, answer) = oneshot::channel();
        let work = move |database: &mut Database| database.refresh_boot().and_then(|()| work(database));
        self.send(Job::Maintain(Box::new(move |database| drop(reply.send(work(database))))))?;
        let done = answer.await.map_err(|_| thread_ended())?;
        done.map_err(|error| explain(self.shared.file.path(), error))
    }

    /// Runs `work` on tasks or documents, in one batch with other waiting calls, and returns once
    /// the result has been synced.
    pub(crate) async fn transact<T: Send + 'static>(
        &self,
        options: WriteOptions,
        work: impl FnMut(&mut TaskTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (request, answer) = write_request(options, work);
        let left = self.shared.try_inline(request);
        self.shrink_log_if_long();
        if let Some(request) = left {
            self.send(Job::Write(request))?;
        }
        answer.await.unwrap_or_else(|_| Err(thread_ended()))
    }

    /// Lets the writer thread empty the log, if a caller found that it is too long.
    fn shrink_log_if_long(&self) {
        let has_long_log = &self.shared.has_long_log;
        if has_long_log.load(Ordering::Relaxed) && has_long_log.swap(false, Ordering::Relaxed) {
            let _ = self.send(Job::ShrinkLog); // Retried after the next commit.
        }
    }

    /// Reads tasks or documents.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut TaskTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run(move |database| {
            let now = database.clock.now();
            read(&mut TaskTransaction::new(&database.conn, &mut database.queues, now))
        })
        .await
    }

    fn send(&self, job: Job) -> Result<()> {
        // First: a job that cannot be sent must not count as queued.
        let jobs = self.start()?;
        self.shared.queued_jobs.fetch_add(1, Ordering::SeqCst);
        // Batching gains little for tasks, so a task call does not keep lock operations from
        // running on their callers' threads.
        if !matches!(job, Job::Write(_)) {
            self.shared
                .contended_until
                .store(BootInstant::now().plus(CONTENTION_PERIOD).as_micros(), Ordering::Relaxed);
        }
        jobs.send(job).map_err(|_| thread_ended())
    }

    /// Returns the channel to the writer thread, which the first job starts. If the thread cannot be
    /// started, the next job tries again.
    fn start(&self) -> Result<&mpsc::Sender<Job>> {
        if let Some(jobs) = self.thread.get() {
            return Ok(jobs);
        }
        let _starting = lock(&self.starting);
        if let Some(jobs) = self.thread.get() {
            return Ok(jobs);
        }
        let (jobs, queue) = mpsc::channel();
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("leasehold-sqlite".to_owned());
        thread.spawn(move || shared.run_writer_thread(&queue)).map_err(thread_error)?;
        Ok(self.thread.get_or_init(|| jobs))
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("path", &self.shared.file.path()).finish_non_exhaustive()
    }
}

impl SharedConnection {
    /// Applies one operation on the caller's thread, if the caller need not wait for that.
    fn apply_inline(&self, name: &LockName, op: &LockOp, since: BootInstant) -> Option<Result<Outcome>> {
        let mut database = self.lock_if_idle(since)?;
        if database.expects_sync() {
            return None;
        }
        if let Err(error) = self.file.check_in_place(since) {
            return Some(Err(error));
        }
        let result = self.busy_timeout.with_short_timeout(|| database.commit_without_sync(name, op));
        self.end_inline(database);
        match result {
            Ok(None) => None,
            Ok(Some(result)) => {
                if result.grants_lease()
                    && let Err(error) = self.file.check_unchanged()
                {
                    return Some(Err(error));
                }
                self.wake(name, result.handed_over, since);
                Some(Ok(result.outcome))
            }
            // Nothing was written. The writer thread has a longer busy timeout.
            Err(error) if is_busy(&error) => None,
            Err(error) => Some(Err(explain(self.file.path(), error))),
        }
    }

    /// Wakes the waiters of these leases, in this process and in others of this machine.
    fn wake(&self, lock: &LockName, granted: Vec<Lease>, since: BootInstant) {
        let elsewhere = self.waiters.wake_local(lock, granted, since);
        #[cfg(target_os = "linux")]
        elsewhere.iter().for_each(crate::store::wake::send_grant);
        let _ = elsewhere;
    }

    fn lock_if_idle(&self, now: BootInstant) -> Option<MutexGuard<'_, Database>> {
        let contended = now.as_micros() < self.contended_until.load(Ordering::Relaxed);
        if contended || self.queued_jobs.load(Ordering::SeqCst) > 0 {
            return None;
        }
        match self.database.try_lock() {
            Ok(database) => Some(database),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Ends the use of the connection on the thread of a caller.
    fn end_inline(&self, mut database: MutexGuard<'_, Database>) {
        if database.turn.is_held() {
            database.turn.end_if_over(BootInstant::now());
        }
        if database.has_long_log() {
            self.has_long_log.store(true, Ordering::Relaxed);
        }
        drop(database);
    }

    fn run_writer_thread(&self, queue: &mpsc::Receiver<Job>) {
        let (mut ops, mut requests) = (Vec::new(), VecDeque::<Box<dyn WriteRequest>>::new());
        let (mut has_turn, mut postponed) = (false, None);
        loop {
            let mut next = match postponed.take() {
                Some(job) => Some(job),
                None if requests.is_empty() => self.next_job(queue, has_turn),
                None => queue.try_recv().ok(),
            };
            if next.is_none() && requests.is_empty() {
                return;
            }
            let mut database = lock(&self.database);
            let mut unsynced = Vec::new();
            let (reads_until, mut is_over) = (BootInstant::now().plus(MAX_READ_TIME), false);
            while let Some(job) = next {
                if !matches!(job, Job::Apply(_) | Job::Write(_)) {
                    unsynced.extend(self.commit(&mut database, &mut ops));
                }
                if matches!(job, Job::Maintain(_)) && !unsynced.is_empty() {
                    // Their callers must not wait for other processes as well.
                    postponed = Some(job);
                    break;
                }
                self.queued_jobs.fetch_sub(1, Ordering::SeqCst);
                match job {
                    Job::Apply(apply) => ops.push(apply),
                    Job::Write(request) => requests.push_back(request),
                    Job::Read(run) | Job::Maintain(run) => {
                        run(&mut database);
                        is_over = BootInstant::now() >= reads_until;
                    }
                    Job::ShrinkLog => {}
                }
                next = if ops.len() < MAX_BATCH_OPS && !is_over { queue.try_recv().ok() } else { None };
            }
            unsynced.extend(self.commit(&mut database, &mut ops));
            let batch = take_batch(&mut requests, MAX_BATCH_TASKS, |request| BatchSize {
                count: request.options().weight,
                bytes: 0,
            });
            let committed = self.run_batch(&mut database, batch);
            if unsynced.is_empty() && committed.is_empty() {
                database.turn.end_if_over(BootInstant::now());
            } else {
                // Other processes write while this one waits for the disk.
                database.turn.end();
            }
            let has_long_log = database.has_long_log();
            has_turn = database.turn.is_held() && !has_long_log;
            if has_turn {
                // A turn is short: callers use it on their own threads.
                self.contended_until.store(0, Ordering::Relaxed);
            }
            drop(database);
            if unsynced.is_empty() {
                self.answer_after_sync(committed, requests.is_empty());
            } else {
                let done = self.wal_syncer.sync();
                for (apply, result) in unsynced {
                    self.answer(apply, result, &done);
                }
                answer_all(committed, &done);
            }
            if has_long_log {
                lock(&self.database).shrink_log();
            }
        }
    }

    /// Returns the next job; `None` when no more can arrive. Polls for [`SPIN_TIME`] first: a caller
    /// that was just answered often sends another job, and waking this thread takes longer than that.
    /// During a turn the callers use the connection themselves, and this thread ends the turn when they no
    /// longer do.
    fn next_job(&self, queue: &mpsc::Receiver<Job>, mut has_turn: bool) -> Option<Job> {
        while has_turn {
            match queue.recv_timeout(turn::IDLE_TIME) {
                Ok(job) => return Some(job),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let mut database = lock(&self.database);
                    database.turn.end_if_idle(BootInstant::now());
                    has_turn = database.turn.is_held();
                }
            }
        }
        let until = BootInstant::now().plus(SPIN_TIME);
        loop {
            match queue.try_recv() {
                Ok(job) => return Some(job),
                Err(mpsc::TryRecvError::Disconnected) => return None,
                Err(mpsc::TryRecvError::Empty) if BootInstant::now() < until => std::thread::yield_now(),
                Err(mpsc::TryRecvError::Empty) => break,
            }
        }
        queue.recv().ok()
    }

    /// Answers requests whose result must be synced first. If no other job is waiting, this thread
    /// does the sync: handing over to another thread costs more than it gains.
    fn answer_after_sync(&self, committed: Batch, idle: bool) {
        let idle = idle && self.queued_jobs.load(Ordering::SeqCst) == 0;
        let left = match committed {
            none if none.is_empty() => None,
            committed if idle => self.wal_syncer.try_sync_and_answer(committed),
            committed => Some(committed),
        };
        if let Some(committed) = left {
            self.wal_syncer.answer_after_sync(committed);
        }
    }

    /// Runs a request on the caller's thread, if the caller need not wait for that; otherwise
    /// returns the request.
    fn try_inline(&self, request: Box<dyn WriteRequest>) -> Option<Box<dyn WriteRequest>> {
        let now = BootInstant::now();
        if request.options().weight > MAX_INLINE_TASKS {
            return Some(request);
        }
        let Some(mut database) = self.lock_if_idle(now) else { return Some(request) };
        let mut batch = vec![request];
        if let Err(error) = self.file.check_in_place(now) {
            answer_all(batch, &Err(error));
            return None;
        }
        let done = self.busy_timeout.with_short_timeout(|| database.run_batch(&mut batch));
        if done.as_ref().is_ok_and(|done| done.needs_sync) {
            database.turn.end(); // Other processes write while this one waits for the disk.
        }
        self.end_inline(database);
        match done {
            // Nothing was written. The writer thread has a longer busy timeout.
            Err(error) if is_busy(&error) => batch.pop(),
            done => {
                // Never synced here: the caller's thread must not wait for the disk.
                self.answer_after_sync(self.notify_and_answer(batch, done), false);
                None
            }
        }
    }

    /// Runs requests; returns those whose result must be synced before they are answered.
    fn run_batch(&self, database: &mut Database, mut batch: Batch) -> Batch {
        if batch.is_empty() {
            return batch;
        }
        if let Err(error) = self.file.check_in_place(BootInstant::now()) {
            answer_all(batch, &Err(error));
            return Batch::new();
        }
        match database.run_batch(&mut batch) {
            // An error of one request must not fail the others: run each in its own transaction.
            Err(error) if batch.len() > 1 && !is_busy(&error) => {
                let mut alone = |request| {
                    let mut alone = vec![request];
                    let done = database.run_batch(&mut alone);
                    self.notify_and_answer(alone, done)
                };
                batch.into_iter().flat_map(&mut alone).collect()
            }
            done => self.notify_and_answer(batch, done),
        }
    }

    /// Notifies workers that may find tasks and answers the requests that need no sync; returns the
    /// others.
    fn notify_and_answer(&self, batch: Batch, done: rusqlite::Result<CommitOutcome>) -> Batch {
        let done = done.map_err(|error| explain(self.file.path(), error));
        match done.and_then(|done| self.file.check_unchanged().map(|()| done)) {
            Ok(CommitOutcome { wakeups, needs_sync }) => {
                wakeups.send(&self.notifier);
                if needs_sync {
                    return batch;
                }
                answer_all(batch, &Ok(()));
            }
            Err(error) => answer_all(batch, &Err(error)),
        }
        Batch::new()
    }

    /// Reads the database if no other caller is using the connection.
    pub(crate) fn try_read<T>(&self, read: impl FnOnce(&Database) -> T) -> Option<T> {
        self.database.try_lock().ok().map(|database| read(&database))
    }

    /// Commits lock operations and answers them; returns those whose result must be synced first.
    fn commit(&self, database: &mut Database, ops: &mut Vec<Apply>) -> Vec<(Apply, OpResult)> {
        if ops.is_empty() {
            return Vec::new();
        }
        let ops = std::mem::take(ops);
        if let Err(error) = self.file.check_in_place(BootInstant::now()) {
            Pending::answer_all(ops, &Err(error));
            return Vec::new();
        }
        let named_ops: Vec<_> = ops.iter().map(|apply| (&apply.name, &apply.op)).collect();
        match database.commit(&named_ops) {
            // An error of one operation, such as a lock that cannot be read, must not fail the others:
            // nothing was written, so each runs in its own transaction.
            Err(error) if ops.len() > 1 && !is_busy(&error) => {
                let mut alone = |apply: Apply| {
                    let done = database.commit(&[(&apply.name, &apply.op)]);
                    self.answer_synced(vec![apply], done)
                };
                ops.into_iter().flat_map(&mut alone).collect()
            }
            done => self.answer_synced(ops, done),
        }
    }

    /// Answers lock operations whose transaction has ended; returns those whose result must be synced
    /// first.
    fn answer_synced(&self, ops: Vec<Apply>, done: rusqlite::Result<Committed>) -> Vec<(Apply, OpResult)> {
        let done = done.map_err(|error| explain(self.file.path(), error));
        match done.and_then(|committed| self.file.check_unchanged().map(|()| committed)) {
            Ok(Committed { results, needs_sync: true }) => return ops.into_iter().zip(results).collect(),
            Ok(Committed { results, needs_sync: false }) => {
                for (apply, result) in ops.into_iter().zip(results) {
                    self.answer(apply, result, &Ok(()));
                }
            }
            Err(error) => Pending::answer_all(ops, &Err(error)),
        }
        Vec::new()
    }

    fn answer(&self, apply: Apply, OpResult { outcome, handed_over }: OpResult, done: &Result<()>) {
        if done.is_ok() {
            self.wake(&apply.name, handed_over, apply.since);
        }
        apply.answer(done.clone().map(|()| outcome));
    }
}

#[cfg(test)]
mod tests;
