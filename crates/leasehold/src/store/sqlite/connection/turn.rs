//! Turns of the processes that write to one file at the same time.
//!
//! SQLite has one write lock and no queue for it: a process that finds it taken sleeps and tries
//! again. With many writers most of the time passes in such sleeps, and some writers are never
//! served. So processes that meet take turns, if their transactions are synced or follow each other
//! in quick succession. A turn is an exclusive `flock` of the folder of the database, for which the
//! kernel keeps a list of waiters and wakes them; the order is not strict. A process with the turn runs
//! many transactions, while its pages are in its cache. Its turn ends when it is long enough, when
//! no caller uses it, when the process waits for the disk, and when it has granted a lock to a
//! waiter, which may be in another process and writes next.
//!
//! The lock cannot be on a file of the database: each process that has written keeps a shared lock
//! of the log, and closing another descriptor of the database or of its shared memory would release
//! SQLite's own locks. The databases in a folder share its turns.
//!
//! A turn gives no right: SQLite's lock alone protects the file. So a process may go on without a
//! turn, and does if a turn does not come soon, for example because its holder is stopped. The kernel
//! ends the turn of a process that dies. A process that meets no other writer uses no turns, and
//! they cost it nothing.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::store::BootInstant;
use crate::store::support::mutex::lock;

/// Maximum length of a turn. A longer one would serve more transactions per change of the process,
/// and let the other processes wait longer.
const TURN: Duration = Duration::from_millis(2);

/// Period without a transaction after which a turn ends: a caller that was just answered often sends
/// another operation, and the next turn would cost it more.
pub(super) const IDLE_TIME: Duration = Duration::from_micros(50);

/// Number of transactions in quick succession from which they are a stream, and the maximum interval
/// between two of them. Single transactions that are not synced take less time than a wait for a turn.
const STREAM_FROM: u32 = 16;
const STREAM_GAP: Duration = Duration::from_millis(1);

/// Period after a meeting with another writer in which a process takes turns.
const CONTENTION_PERIOD: Duration = Duration::from_millis(10);

/// Maximum wait for a turn.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Turn of this process, and whether it needs one. Belongs to the connection.
pub(crate) struct Turn {
    gate: Arc<Gate>,
    ends_at: Option<BootInstant>,
    /// When the last transaction began.
    used_at: BootInstant,
    /// Number of transactions of which each followed the previous one within [`STREAM_GAP`].
    stream: u32,
    contended_until: BootInstant,
    /// Whether the last turn was ended because of its length: others may wait for the next.
    was_full: bool,
}

impl Turn {
    /// Returns the state of a process that has met no other writer of the database at `path`.
    pub(super) fn new(path: &Path) -> Self {
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        let gate = Gate { folder, state: Mutex::default(), changed: Condvar::new() };
        let now = BootInstant::now();
        Self {
            gate: Arc::new(gate),
            ends_at: None,
            used_at: now,
            stream: 0,
            contended_until: now,
            was_full: false,
        }
    }

    /// Records that another process was found to be writing.
    pub(super) fn met_writer(&mut self, now: BootInstant) {
        self.contended_until = now.plus(CONTENTION_PERIOD);
    }

    /// Records that a transaction is requested, at `now`.
    pub(super) fn record_request(&mut self, now: BootInstant) {
        let follows = now.after(self.used_at) < STREAM_GAP;
        self.stream = if follows { self.stream.saturating_add(1) } else { 0 };
        self.used_at = now;
    }

    /// Records that a transaction has begun.
    pub(super) fn record_begin(&mut self) {
        self.used_at = BootInstant::now();
    }

    /// Whether this process must wait for a turn before it writes.
    pub(super) fn is_needed(&self, now: BootInstant, is_synced: bool) -> bool {
        self.ends_at.is_none() && now < self.contended_until && (is_synced || self.stream >= STREAM_FROM)
    }

    pub(super) fn is_held(&self) -> bool {
        self.ends_at.is_some()
    }

    /// Waits for a turn. Returns without one if it does not come soon.
    pub(super) fn wait(&mut self) {
        let Some(waited) = self.gate.take(!self.was_full) else { return };
        let now = BootInstant::now();
        if waited {
            self.met_writer(now);
        }
        self.ends_at = Some(now.plus(TURN));
    }

    /// Ends the turn, if there is one and its time is over.
    pub(super) fn end_if_over(&mut self, now: BootInstant) {
        if self.ends_at.is_some_and(|end| end <= now) {
            self.end();
            self.was_full = true;
        }
    }

    /// Ends the turn, if there is one and no transaction has begun for a while.
    pub(super) fn end_if_idle(&mut self, now: BootInstant) {
        if now.after(self.used_at) >= IDLE_TIME {
            self.end();
        }
    }

    /// Ends the turn and the stream: a lock was granted to a waiter, which may be in another process and writes
    /// next.
    pub(crate) fn hand_over(&mut self) {
        self.end();
        self.stream = 0;
    }

    /// Ends the turn, if there is one.
    pub(super) fn end(&mut self) {
        if self.ends_at.take().is_some() {
            self.was_full = false;
            self.gate.release();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
        let mut state = lock(&self.gate.state);
        state.closed = true;
        self.gate.changed.notify_all();
    }
}

/// Way to the turn. A thread of its own waits in the kernel, because such a wait has no timeout.
struct Gate {
    folder: PathBuf,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Folder, opened for the locks alone.
    file: Option<Arc<File>>,
    request: Request,
    has_thread: bool,
    /// Whether turns cannot be used: the file system has no such locks, or no thread can be started.
    failed: bool,
    closed: bool,
}

/// Request of the writer to the thread that waits for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Request {
    #[default]
    None,
    /// The writer waits.
    Waiting,
    /// The writer has stopped waiting; the thread has not.
    Abandoned,
    Granted,
}

impl Gate {
    /// Takes the turn, at once if it is free and `at_once` is set; returns whether that took a wait.
    fn take(self: &Arc<Self>, at_once: bool) -> Option<bool> {
        let mut state = lock(&self.state);
        // An earlier wait has not ended: the turn is held by a process that does not run.
        if state.failed || state.request == Request::Abandoned {
            return None;
        }
        let file = match &state.file {
            Some(file) => file.clone(),
            None => match File::open(&self.folder) {
                Ok(file) => state.file.insert(Arc::new(file)).clone(),
                Err(_) => return None,
            },
        };
        if at_once {
            match file.try_lock() {
                Ok(()) => return Some(false),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(_)) => {
                    state.failed = true;
                    return None;
                }
            }
        }
        if !state.has_thread {
            let (gate, thread) = (self.clone(), std::thread::Builder::new());
            state.has_thread = thread.name("leasehold-turn".to_owned()).spawn(move || gate.run()).is_ok();
            state.failed = !state.has_thread;
        }
        state.request = Request::Waiting;
        self.changed.notify_all();
        let waits = |state: &mut GateState| state.request == Request::Waiting && !state.failed;
        let waited = self.changed.wait_timeout_while(state, MAX_WAIT, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let granted = state.request == Request::Granted;
        state.request = if state.request == Request::Waiting { Request::Abandoned } else { Request::None };
        granted.then_some(true)
    }

    fn release(&self) {
        if let Some(file) = &lock(&self.state).file {
            let _ = file.unlock(); // Fails only if the file has no lock.
        }
    }

    /// Waits in the kernel for each turn that is asked for.
    fn run(&self) {
        let is_idle = |state: &mut GateState| {
            matches!(state.request, Request::None | Request::Granted) && !state.closed
        };
        loop {
            let state = self.changed.wait_while(lock(&self.state), is_idle);
            let state = state.unwrap_or_else(PoisonError::into_inner);
            let Some(file) = state.file.clone().filter(|_| !state.closed) else { return };
            drop(state);
            let locked = loop {
                match file.lock() {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    done => break done,
                }
            };
            let mut state = lock(&self.state);
            state.failed = locked.is_err();
            if state.request == Request::Waiting && !state.failed && !state.closed {
                state.request = Request::Granted;
            } else {
                state.request = Request::None;
                let _ = file.unlock(); // Fails only if the file has no lock.
            }
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the turns of two processes that have met. Locks belong to the opened file, so two
    /// states of one process exclude each other as those of two processes do.
    fn two_that_met() -> (tempfile::TempDir, Turn, Turn) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let turn = || {
            let mut turn = Turn::new(&path);
            turn.met_writer(BootInstant::now().plus(Duration::from_mins(1)));
            turn
        };
        let (one, other) = (turn(), turn());
        (folder, one, other)
    }

    #[test]
    fn a_process_that_has_met_no_writer_needs_no_turn() {
        let folder = tempfile::tempdir().unwrap();
        let mut turn = Turn::new(&folder.path().join("missing/a.db"));
        let now = BootInstant::now();
        assert!(!turn.is_needed(now, true));
        turn.met_writer(now);
        assert!(turn.is_needed(now, true));
        assert!(!turn.is_needed(now.plus(CONTENTION_PERIOD), true));
        turn.wait();
        assert!(!turn.is_held(), "without a folder there are no turns");
    }

    #[test]
    fn of_transactions_that_are_not_synced_only_a_stream_needs_a_turn() {
        let (_folder, mut turn, _) = two_that_met();
        let start = BootInstant::now();
        let mut request_after = |wait: Duration| {
            let now = turn.used_at.plus(wait);
            turn.record_request(now);
            turn.is_needed(now, false)
        };
        assert!(!request_after(STREAM_GAP));
        for _ in 1..STREAM_FROM {
            assert!(!request_after(STREAM_GAP / 2));
        }
        assert!(request_after(STREAM_GAP / 2));
        assert!(!request_after(STREAM_GAP), "the stream has ended");
        assert!((0..STREAM_FROM).any(|_| request_after(STREAM_GAP / 2)));
        assert!(turn.is_needed(start, true));
        turn.hand_over();
        assert!(!turn.is_needed(start, false) && turn.is_needed(start, true));
    }

    #[test]
    fn an_idle_turn_ends() {
        let (_folder, mut turn, _) = two_that_met();
        while !turn.is_held() {
            turn.wait();
        }
        turn.record_begin();
        turn.end_if_idle(turn.used_at);
        assert!(turn.is_held());
        turn.end_if_idle(turn.used_at.plus(IDLE_TIME));
        assert!(!turn.is_held());
    }

    #[test]
    fn a_turn_passes_to_the_process_that_waits() {
        let (_folder, mut one, mut other) = two_that_met();
        one.wait();
        assert!(one.is_held() && !one.is_needed(BootInstant::now(), true));
        let waiting = std::thread::spawn(move || {
            // Long enough for any machine: each wait is limited.
            while !other.is_held() {
                other.wait();
            }
            other
        });
        one.end_if_over(BootInstant::now().plus(TURN));
        assert!(!one.is_held());
        let other = waiting.join().unwrap();
        assert!(other.is_held());
        drop(other);
        while !one.is_held() {
            one.wait();
        }
    }

    #[test]
    fn a_writer_does_not_wait_long_for_a_process_that_keeps_its_turn() {
        let (_folder, mut stopped, mut other) = two_that_met();
        stopped.wait();
        other.wait();
        assert!(!other.is_held());
        let begun = BootInstant::now();
        other.wait();
        assert!(!other.is_held());
        assert!(BootInstant::now().after(begun) < MAX_WAIT, "the second wait must be skipped");
        drop(stopped);
        while !other.is_held() {
            other.wait();
        }
    }

    #[test]
    fn the_thread_ends_after_its_store() {
        let (_folder, mut one, mut other) = two_that_met();
        one.wait();
        other.wait();
        assert!(one.is_held() && !other.is_held());
        let gate = Arc::downgrade(&other.gate);
        drop(other);
        assert!(gate.upgrade().is_some(), "the thread waits for the turn of the other process to end");
        drop(one);
        let end = BootInstant::now().plus(Duration::from_mins(1));
        while gate.upgrade().is_some() {
            assert!(BootInstant::now() < end, "the thread must end");
            std::thread::yield_now();
        }
    }
}
