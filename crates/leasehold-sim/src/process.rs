//! Process of a simulation: its client, its network, and whether it is paused, cut off or killed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::testing::SimulatedProcess;
use leasehold::{Error, StoreErrorKind};
use leasehold_torture::history::Event;

use crate::mutation::Memory;
use crate::world::{OpId, World, micros, millis, now};

/// Process of a simulation.
pub(crate) struct Process {
    pub(crate) number: u32,
    pub(crate) world: Arc<World>,
    pub(crate) pausing: SimulatedProcess,
    is_killed: AtomicBool,
    /// End of the time in which no message arrives.
    outage_until: AtomicU64,
    /// End of the last fault.
    disturbed_until: AtomicU64,
    /// End of the last pause.
    paused_until: AtomicU64,
    rng: Mutex<fastrand::Rng>,
    memory: Mutex<Memory>,
}

impl Process {
    pub(crate) fn new(world: Arc<World>, number: u32) -> Arc<Self> {
        let seed = world.plan.seed ^ (u64::from(number) << 32);
        Arc::new(Self {
            number,
            world,
            pausing: SimulatedProcess::default(),
            is_killed: AtomicBool::new(false),
            outage_until: AtomicU64::new(0),
            disturbed_until: AtomicU64::new(0),
            paused_until: AtomicU64::new(0),
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            memory: Mutex::default(),
        })
    }

    pub(crate) fn record(&self, event: Event) {
        if !self.is_killed() {
            self.world.record(self.number, event);
        }
    }

    pub(crate) fn new_op(&self) -> OpId {
        (self.number, self.world.new_op(self.number))
    }

    pub(crate) fn rng(&self) -> MutexGuard<'_, fastrand::Rng> {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Relaxed)
    }

    /// Ends the process: nothing that it does from now on reaches the store or the history.
    pub(crate) fn kill(&self) {
        self.fault("kill", Duration::ZERO);
        self.is_killed.store(true, Ordering::Relaxed);
    }

    /// Pauses the process for this time.
    pub(crate) async fn pause(&self, time: Duration) {
        self.fault("stop", time);
        self.paused_until.fetch_max(now() + micros(time), Ordering::Relaxed);
        self.pausing.pause();
        tokio::time::sleep(time).await;
        self.pausing.resume();
    }

    /// Loses all messages of the process for this time.
    pub(crate) fn cut_off(&self, time: Duration) {
        self.fault("black-hole", time);
        self.outage_until.fetch_max(now() + micros(time), Ordering::Relaxed);
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        now() < self.outage_until.load(Ordering::Relaxed)
    }

    /// Records a fault of the process that lasts for this time.
    pub(crate) fn fault(&self, fault: &str, time: Duration) {
        self.disturbed_until.fetch_max(now() + micros(time), Ordering::Relaxed);
        let fault = Event::Fault { worker: self.number, fault: fault.to_owned(), millis: millis(time) };
        self.world.record(0, fault);
    }

    /// Whether a fault has lasted until this time or later.
    pub(crate) fn is_disturbed_since(&self, at: u64) -> bool {
        self.disturbed_until.load(Ordering::Relaxed) >= at
    }

    /// Whether the process was paused at this time or later.
    pub(crate) fn is_paused_since(&self, at: u64) -> bool {
        self.paused_until.load(Ordering::Relaxed) >= at
    }

    /// Resolves when the process is not paused.
    pub(crate) async fn scheduled(&self) {
        self.pausing.run(async {}).await;
    }
}

/// Error of a call whose result is not known.
pub(crate) fn lost() -> Error {
    error(StoreErrorKind::Unavailable, "the network lost a message")
}

/// Error of a call of a killed process.
pub(crate) fn killed() -> Error {
    error(StoreErrorKind::Broken, "the process is killed")
}

fn error(kind: StoreErrorKind, message: &str) -> Error {
    Error::store(kind, message, "nothing: this is a simulation")
}
