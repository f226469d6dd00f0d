//! The thread that keeps guards alive. It has a runtime of its own, so that no work of the caller can starve a
//! renewal, and a guard that is dropped anywhere can still be released.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio_util::task::TaskTracker;

use super::guard::Core;
use super::renewal::renew;
use crate::error::{Error, Result, Trouble};
use crate::store::Moment;

/// Sleeps are cut into pieces of this length: timers stand still while the machine sleeps, the boot clock does not.
const NAP: Duration = Duration::from_millis(250);
/// How long the thread goes on after the last handle is gone, to do what dropped guards have left to be done.
const LAST_CALL: Duration = Duration::from_secs(5);

pub(super) struct Keeper {
    handle: Handle,
    tasks: TaskTracker,
    diary: Arc<Diary>,
    /// Dropped with the keeper, which ends the thread.
    _alive: oneshot::Sender<()>,
}

/// Which guard is to be renewed when.
#[derive(Default)]
pub(super) struct Diary {
    pages: Mutex<Pages>,
    bell: Notify,
}

#[derive(Default)]
struct Pages {
    due: BTreeMap<(Moment, u64), Weak<Core>>,
    entries: u64,
    /// When the thread will look next; an entry before that has to wake it.
    next_look: Option<Moment>,
}

/// An entry in the diary, to take it out again.
pub(super) type Entry = (Moment, u64);

impl Keeper {
    pub(super) fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(cannot_start)?;
        let (alive, ended) = oneshot::channel::<()>();
        let (handle, tasks, diary) = (runtime.handle().clone(), TaskTracker::new(), Arc::<Diary>::default());
        let (their_tasks, their_diary) = (tasks.clone(), diary.clone());
        let thread = std::thread::Builder::new().name("leasehold-keeper".to_owned());
        thread
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = their_diary.keep(&their_tasks) => {}
                        _ = ended => {}
                    }
                    their_tasks.close();
                    let _ = tokio::time::timeout(LAST_CALL, their_tasks.wait()).await;
                });
            })
            .map_err(cannot_start)?;
        Ok(Self { handle, tasks, diary, _alive: alive })
    }

    /// Does something in the background.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, &self.handle);
    }

    /// Does something in the background that nobody waits for.
    pub(super) fn spawn_detached(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Waits until everything that [`spawn`](Self::spawn) was given is done.
    pub(super) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    pub(super) fn diary(&self) -> &Arc<Diary> {
        &self.diary
    }
}

impl Diary {
    /// Enters a guard to be renewed at `due`.
    pub(super) fn enter(&self, due: Moment, guard: Weak<Core>) -> Entry {
        let mut pages = self.pages();
        pages.entries += 1;
        let entry = (due, pages.entries);
        pages.due.insert(entry, guard);
        let too_late = pages.next_look.is_none_or(|look| due < look);
        if too_late {
            pages.next_look = Some(due);
            self.bell.notify_one();
        }
        entry
    }

    /// Takes an entry out. The thread may wake once for nothing; that is cheaper than waking it now.
    pub(super) fn strike(&self, entry: Entry) {
        self.pages().due.remove(&entry);
    }

    async fn keep(self: &Arc<Self>, tasks: &TaskTracker) {
        loop {
            let now = Moment::now();
            let (due, next) = self.take_due(now);
            for guard in due {
                tasks.spawn(renew(guard, self.clone()));
            }
            match next {
                Some(next) => {
                    let nap = next.after(now).min(NAP);
                    let _ = tokio::time::timeout(nap, self.bell.notified()).await;
                }
                None => self.bell.notified().await,
            }
        }
    }

    fn take_due(&self, now: Moment) -> (Vec<Arc<Core>>, Option<Moment>) {
        let mut pages = self.pages();
        let later = pages.due.split_off(&(now.plus(Duration::from_micros(1)), 0));
        let due = std::mem::replace(&mut pages.due, later);
        pages.next_look = pages.due.first_key_value().map(|((moment, _), _)| *moment);
        (due.into_values().filter_map(|guard| guard.upgrade()).collect(), pages.next_look)
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cannot_start(error: std::io::Error) -> Error {
    let message = "the thread that renews leases cannot be started";
    Error::store(Trouble::Unavailable, message, "let this user have more threads").because(error)
}
