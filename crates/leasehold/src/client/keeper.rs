//! Threads that keep guards alive. One watches the time: it starts renewals and marks guards as
//! lost at their deadline. The other has its own runtime and calls the store, so that no work of
//! the caller can starve a renewal, and a guard that is dropped anywhere can still be released.
//!
//! They are separate because a call of the store may block its thread, as SQLite does while the
//! disk is busy: the thread that watches deadlines never calls a store.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::guard::Core;
use super::renewal::renew;
use crate::error::{Error, Result, StoreErrorKind};
use crate::store::BootInstant;

/// Maximum length of one sleep: timers stop while the machine is suspended, the boot clock does not.
const NAP: Duration = Duration::from_millis(250);
/// Maximum time for which the thread continues after the last handle is dropped, to complete the
/// work of dropped guards.
const LAST_CALL: Duration = Duration::from_secs(5);

pub(super) struct Keeper {
    handle: Handle,
    tasks: TaskTracker,
    diary: Arc<Diary>,
    upkeep: Mutex<Option<Upkeep>>,
    /// Dropped with the keeper, which ends the thread.
    _alive: oneshot::Sender<()>,
}

/// Separate thread for work that may take long: recovery, schedules, retention. Heartbeats and
/// renewals never wait for it.
struct Upkeep {
    handle: Handle,
    /// Dropped with the keeper, which ends the thread.
    _alive: oneshot::Sender<()>,
}

/// Timers of the guards: for the next renewal or, while a renewal is in progress, for the deadline.
#[derive(Default)]
pub(super) struct Diary {
    pages: Mutex<Pages>,
    bell: Condvar,
}

#[derive(Default)]
struct Pages {
    due: BTreeMap<(BootInstant, u64), Weak<Core>>,
    entries: u64,
    /// Time at which the thread wakes next; an earlier timer has to wake it.
    next_look: Option<BootInstant>,
    /// Whether the keeper has been dropped.
    closed: bool,
}

/// Key of a timer, used to cancel it.
pub(super) type Entry = (BootInstant, u64);

impl Keeper {
    pub(super) fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(cannot_start)?;
        let (alive, ended) = oneshot::channel::<()>();
        let (handle, tasks, diary) = (runtime.handle().clone(), TaskTracker::new(), Arc::<Diary>::default());
        let their_tasks = tasks.clone();
        let thread = std::thread::Builder::new().name("leasehold-keeper".to_owned());
        thread
            .spawn(move || {
                runtime.block_on(async {
                    let _ = ended.await;
                    their_tasks.close();
                    let _ = tokio::time::timeout(LAST_CALL, their_tasks.wait()).await;
                });
            })
            .map_err(cannot_start)?;
        let keeper = Self {
            handle: handle.clone(),
            tasks: tasks.clone(),
            diary: diary.clone(),
            upkeep: Mutex::default(),
            _alive: alive,
        };
        let watch = std::thread::Builder::new().name("leasehold-watch".to_owned());
        watch.spawn(move || diary.keep(&tasks, &handle)).map_err(cannot_start)?;
        Ok(keeper)
    }

    /// Runs work in the background that may take long. Its thread starts with the first such work;
    /// if no thread can be started, the work runs on the thread of the renewals.
    pub(super) fn spawn_upkeep(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut upkeep = self.upkeep.lock().unwrap_or_else(PoisonError::into_inner);
        if upkeep.is_none() {
            let started = Upkeep::start();
            *upkeep = started.inspect_err(|error| tracing::warn!(%error, "no thread for upkeep")).ok();
        }
        upkeep.as_ref().map_or(&self.handle, |upkeep| &upkeep.handle).spawn(work);
    }

    /// Runs work in the background; [`finish`](Self::finish) waits for it.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, &self.handle);
    }

    /// Runs work in the background that [`finish`](Self::finish) does not wait for.
    pub(super) fn spawn_detached(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Returns the result of the work if it ends within `limit`. Uses the keeper's timer, because
    /// the caller's runtime may have none.
    pub(super) async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let first = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        if let Poll::Ready(done) = first {
            return Some(done);
        }
        let timer = {
            let _runtime = self.handle.enter();
            tokio::time::sleep(limit)
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = timer => None,
        }
    }

    /// Waits until all work that was passed to [`spawn`](Self::spawn) is done.
    pub(super) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    pub(super) fn diary(&self) -> &Arc<Diary> {
        &self.diary
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.diary.pages().closed = true;
        self.diary.bell.notify_one();
    }
}

impl Upkeep {
    fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(cannot_start)?;
        let (alive, ended) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("leasehold-upkeep".to_owned());
        let work = move || runtime.block_on(async { _ = ended.await });
        thread.spawn(work).map_err(cannot_start)?;
        Ok(Self { handle, _alive: alive })
    }
}

impl Diary {
    /// Schedules a guard for this time.
    pub(super) fn enter(&self, due: BootInstant, guard: Weak<Core>) -> Entry {
        let mut pages = self.pages();
        pages.entries += 1;
        let entry = (due, pages.entries);
        pages.due.insert(entry, guard);
        let too_late = pages.next_look.is_none_or(|look| due < look);
        if too_late {
            pages.next_look = Some(due);
            drop(pages);
            self.bell.notify_one();
        }
        entry
    }

    /// Cancels a timer. The thread may wake once without need, which is cheaper than waking it now.
    pub(super) fn strike(&self, entry: Entry) {
        self.pages().due.remove(&entry);
    }

    /// Watches the timers until the keeper is dropped. Never calls a store or waits for one.
    fn keep(self: &Arc<Self>, tasks: &TaskTracker, handle: &Handle) {
        loop {
            let due = {
                let mut pages = self.pages();
                loop {
                    if pages.closed {
                        return;
                    }
                    let now = BootInstant::now();
                    let due = pages.take_due(now);
                    if !due.is_empty() {
                        break due;
                    }
                    pages = match pages.next_look {
                        Some(next) => {
                            let nap = next.after(now).min(NAP);
                            let woken = self.bell.wait_timeout(pages, nap);
                            woken.unwrap_or_else(PoisonError::into_inner).0
                        }
                        None => self.bell.wait(pages).unwrap_or_else(PoisonError::into_inner),
                    };
                }
            };
            for guard in due.iter().filter_map(Weak::upgrade) {
                if guard.is_to_be_renewed(self, BootInstant::now()) {
                    tasks.spawn_on(renew(guard, self.clone()), handle);
                }
            }
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn take_due(&mut self, now: BootInstant) -> Vec<Weak<Core>> {
        let due = match self.due.first_key_value() {
            Some(((first, _), _)) if *first <= now => {
                let later = self.due.split_off(&(now.plus(Duration::from_micros(1)), 0));
                std::mem::replace(&mut self.due, later).into_values().collect()
            }
            _ => Vec::new(),
        };
        self.next_look = self.due.first_key_value().map(|((moment, _), _)| *moment);
        due
    }
}

fn cannot_start(error: std::io::Error) -> Error {
    let message = "the thread that renews leases cannot be started";
    Error::store(StoreErrorKind::Unavailable, message, "let this user have more threads").because(error)
}
