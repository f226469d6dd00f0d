//! Simulation of the client: virtual time, seeded ids, pauses of a process, and planted mistakes.
//!
//! A simulation runs on one thread, in a paused current-thread runtime of Tokio: the clock advances
//! to the next timer when no task can run, so that hours pass in milliseconds and every run of a seed
//! is the same. While a [`Simulation`] exists, the clocks of its thread are virtual, ids are derived
//! from its seed, and clients that are created on it start no threads.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::store::support::mutex::lock;

/// Simulation on this thread, until it is dropped.
#[derive(Debug)]
pub struct Simulation(());

/// Mistake that is planted in the client, to see that a simulation finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// A guard renews its lease when it is over, instead of after a third of it.
    RenewsLate,
    /// A guard gives its lease up after one failed renewal.
    StopsRenewingAfterOneFailure,
    /// A guard is not lost when its lease ends.
    IgnoresTheDeadline,
    /// A grant that arrives after the end of its lease counts from its arrival.
    BelievesALateGrant,
    /// A loss of one of several locks is ignored while the others are acquired.
    IgnoresALossWhileAcquiring,
    /// A worker starts a task although its lease is over.
    StartsWithoutAValidLease,
    /// A worker believes to hold its tasks although no heartbeat arrives.
    WorksAfterLostHeartbeats,
    /// A worker measures the lease of a task from the response.
    MeasuresTasksFromTheResponse,
    /// A worker runs a task without holding its lock.
    RunsWithoutTheLock,
}

struct State {
    start: tokio::time::Instant,
    mutant: Option<Mutant>,
    ids: Cell<u16>,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
    static PROCESS: RefCell<Option<SimulatedProcess>> = const { RefCell::new(None) };
}

/// Boot clock at the begin of a simulation.
const START: Duration = Duration::from_hours(1);
/// Wall clock when the boot clock was zero: 2026-01-01.
const WALL: Duration = Duration::from_hours(490_896);

impl Simulation {
    /// Starts a simulation at this instant of a paused runtime, and seeds the random numbers of the
    /// thread.
    pub fn start(seed: u64, start: tokio::time::Instant, mutant: Option<Mutant>) -> Self {
        fastrand::seed(seed);
        STATE.set(Some(State { start, mutant, ids: Cell::new(0) }));
        Self(())
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        STATE.set(None);
    }
}

/// Returns whether this mistake is planted in the simulation of this thread.
pub(crate) fn is_planted(mutant: Mutant) -> bool {
    STATE.with_borrow(|state| state.as_ref().is_some_and(|state| state.mutant == Some(mutant)))
}

/// Returns whether the clocks of this thread are virtual.
pub(crate) fn is_running() -> bool {
    STATE.with_borrow(Option::is_some)
}

/// Returns the boot clock of the simulation of this thread.
pub(crate) fn boot_clock(now: impl FnOnce() -> tokio::time::Instant) -> Option<Duration> {
    STATE
        .with_borrow(|state| state.as_ref().map(|state| START + now().saturating_duration_since(state.start)))
}

/// Returns the wall clock of the simulation of this thread.
pub(crate) fn wall_clock(now: impl FnOnce() -> tokio::time::Instant) -> Option<Duration> {
    boot_clock(now).map(|boot| WALL + boot)
}

/// Returns the part of a new id after its time: a number, so that ids of one millisecond are in
/// order, and seeded random bytes.
pub(crate) fn id_bytes() -> Option<[u8; 10]> {
    STATE.with_borrow(|state| {
        let number = state.as_ref()?.ids.get().wrapping_add(1) & 0x0fff;
        state.as_ref()?.ids.set(number);
        let mut bytes = [0; 10];
        fastrand::fill(&mut bytes);
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        Some(bytes)
    })
}

/// Process of a simulation, which can be paused: none of its futures is polled then.
#[derive(Debug, Clone, Default)]
pub struct SimulatedProcess(Arc<PauseState>);

#[derive(Debug, Default)]
struct PauseState {
    is_paused: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl SimulatedProcess {
    /// Returns the result of `create`. The background work of a client that is created there belongs
    /// to this process.
    pub fn enter<T>(&self, create: impl FnOnce() -> T) -> T {
        let before = PROCESS.replace(Some(self.clone()));
        let created = create();
        PROCESS.set(before);
        created
    }

    /// Returns the process that this thread has entered; a process of its own if there is none.
    pub(crate) fn current() -> Self {
        PROCESS.with_borrow(Clone::clone).unwrap_or_default()
    }

    /// Pauses the process.
    pub fn pause(&self) {
        self.0.is_paused.store(true, Ordering::Relaxed);
    }

    /// Lets the process continue.
    pub fn resume(&self) {
        self.0.is_paused.store(false, Ordering::Relaxed);
        for waiting in std::mem::take(&mut *lock(&self.0.waiting)) {
            waiting.wake();
        }
    }

    /// Returns a future that runs only while the process is not paused.
    pub fn run<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        Pausable { process: self.clone(), work: Box::pin(work) }
    }
}

struct Pausable<F> {
    process: SimulatedProcess,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Pausable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if self.process.0.is_paused.load(Ordering::Relaxed) {
            lock(&self.process.0.waiting).push(context.waker().clone());
            return Poll::Pending;
        }
        self.work.as_mut().poll(context)
    }
}
