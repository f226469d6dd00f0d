//! The only file that reads clocks.
//!
//! Two kinds of time are kept apart. A [`BootInstant`] is a reading of this machine's boot clock,
//! which counts while the machine sleeps and never steps: holders measure their own deadlines with
//! it. A [`Timestamp`] is the engine's time, which decides when leases expire; a [`Clock`] produces
//! it for the engines that run on this machine.
#![expect(clippy::disallowed_methods, reason = "the other files call this one")]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::rand::{GetRandomFlags, getrandom};

use super::namespaces;
#[cfg(feature = "testing")]
use super::simulation;
use crate::model::{BootId, LeaseId, Timestamp};

/// Reading of this machine's boot clock, in microseconds. Meaningless on another machine or after a
/// restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// Reads the clock.
    pub fn now() -> Self {
        Self(boot_micros())
    }

    /// Converts microseconds that [`BootInstant::as_micros`] returned in another process of this
    /// machine.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the machine started.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns this instant plus `duration`.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Returns the time from `now` to this instant; zero if the instant has passed.
    pub fn after(self, now: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(now.0))
    }
}

/// Clock of an engine that runs on this machine.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    /// Boot clock plus an offset that made it equal the wall clock once. It never steps, unless the
    /// engine finds that the machine has been restarted.
    Boot { offset: AtomicI64 },
    /// Advances only when a test advances it.
    Manual(AtomicU64),
}

impl Clock {
    /// Returns the boot clock, set to the current wall-clock time.
    pub fn system() -> Self {
        Self::with_offset(wall_offset())
    }

    /// Returns the boot clock with the engine's time `offset` microseconds ahead of it.
    pub(crate) fn with_offset(offset: i64) -> Self {
        Self(Arc::new(Source::Boot { offset: AtomicI64::new(offset) }))
    }

    /// Sets the clock so that the engine's time is the kernel's boot clock plus `offset`, equal in
    /// every time namespace. No-op for a manual clock.
    #[cfg(feature = "sqlite")]
    pub(crate) fn follow_kernel(&self, offset: i64) {
        if let Source::Boot { offset: current } = &*self.0 {
            let namespace = namespaces::boottime_offset().unwrap_or(0) / 1_000;
            current.store(offset.saturating_sub(namespace), Ordering::SeqCst);
        }
    }

    /// Returns a clock that stands still until [`Clock::advance`] is called.
    pub fn manual(start: Timestamp) -> Self {
        Self(Arc::new(Source::Manual(AtomicU64::new(start.as_micros()))))
    }

    /// Returns the engine's time.
    pub fn now(&self) -> Timestamp {
        match &*self.0 {
            Source::Boot { offset } => {
                Timestamp::from_micros(boot_micros().saturating_add_signed(offset.load(Ordering::SeqCst)))
            }
            Source::Manual(micros) => Timestamp::from_micros(micros.load(Ordering::SeqCst)),
        }
    }

    /// Returns the engine's time and the instant at which it was read.
    pub(crate) fn read(&self) -> (BootInstant, Timestamp) {
        match &*self.0 {
            Source::Boot { offset } => {
                let moment = BootInstant::now();
                (
                    moment,
                    Timestamp::from_micros(moment.0.saturating_add_signed(offset.load(Ordering::SeqCst))),
                )
            }
            Source::Manual(_) => (BootInstant::now(), self.now()),
        }
    }

    /// Sets a manual clock back, as an administrator or a time server may do with a real clock.
    #[cfg(feature = "testing")]
    pub fn set_back(&self, duration: std::time::Duration) {
        if let Source::Manual(micros) = &*self.0 {
            micros.fetch_sub(u64::try_from(duration.as_micros()).unwrap_or(0), Ordering::SeqCst);
        }
    }

    /// Advances a manual clock; no-op for the system clock.
    pub fn advance(&self, duration: Duration) {
        if let Source::Manual(micros) = &*self.0 {
            micros.fetch_add(u64::try_from(duration.as_micros()).unwrap_or(0), Ordering::SeqCst);
        }
    }
}

/// Returns a new id for one lock request: sorted by time, globally unique.
pub(crate) fn new_lease_id() -> LeaseId {
    #[cfg(feature = "testing")]
    if let Some(id) = simulated_id() {
        return LeaseId::from_uuid(id);
    }
    let millis = u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX);
    let made =
        random_bytes().map(|random| uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid());
    LeaseId::from_uuid(made.unwrap_or_else(uuid::Uuid::now_v7))
}

/// Returns a new id for a task or a worker. The ids that one thread makes are in order, even within
/// one millisecond.
pub(crate) fn new_id() -> uuid::Uuid {
    #[cfg(feature = "testing")]
    if let Some(id) = simulated_id() {
        return id;
    }
    uuid::Uuid::now_v7()
}

#[cfg(feature = "testing")]
fn simulated_id() -> Option<uuid::Uuid> {
    let millis = u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX);
    let bytes = simulation::id_bytes()?;
    Some(uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid())
}

/// Microseconds for which a thread need not ask again whether it is in a forked child. A fork takes
/// longer, and the thread that forked has made its last id before that.
const SAME_PROCESS_FOR: u64 = 5;

/// Random bytes for the next ids of this thread.
struct RandomPool {
    /// Process that the bytes belong to: a forked child has the same pool as its parent, and would
    /// make the same ids from it.
    owner: u32,
    /// Reading of the machine's boot clock when the process was last determined.
    checked_at: u64,
    bytes: Vec<[u8; 10]>,
}

/// Returns ten random bytes. The pool requests the bytes of 25 ids at a time: 250 bytes, which
/// `getrandom` always returns in full.
fn random_bytes() -> Option<[u8; 10]> {
    thread_local! {
        static POOL: RefCell<RandomPool> =
            const { RefCell::new(RandomPool { owner: 0, checked_at: 0, bytes: Vec::new() }) };
    }
    POOL.with_borrow_mut(|pool| {
        let now = machine_boot_micros();
        if now.abs_diff(pool.checked_at) >= SAME_PROCESS_FOR {
            pool.checked_at = now;
            // A system call, which costs more than the rest of an id.
            let me = std::process::id();
            if pool.owner != me {
                pool.owner = me;
                pool.bytes.clear();
            }
        }
        if pool.bytes.is_empty() {
            let mut fresh = [[0; 10]; 25];
            let asked = getrandom(fresh.as_flattened_mut(), GetRandomFlags::empty());
            if asked == Ok(fresh.as_flattened().len()) {
                pool.bytes.extend_from_slice(&fresh);
            }
        }
        pool.bytes.pop()
    })
}

/// Returns the difference between the wall clock and the boot clock, in microseconds.
fn wall_offset() -> i64 {
    i64::try_from(since_1970().as_micros()).unwrap_or(i64::MAX).saturating_sub_unsigned(boot_micros())
}

fn since_1970() -> Duration {
    #[cfg(feature = "testing")]
    if let Some(wall) = simulation::wall_clock(tokio::time::Instant::now) {
        return wall;
    }
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn boot_micros() -> u64 {
    #[cfg(feature = "testing")]
    if let Some(boot) = simulation::boot_clock(tokio::time::Instant::now) {
        return u64::try_from(boot.as_micros()).unwrap_or(u64::MAX);
    }
    machine_boot_micros()
}

#[cfg(target_os = "linux")]
fn machine_boot_micros() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000 + nanos / 1_000
}

/// Monotonic clock, for systems without a boot clock: it may stand still while the machine sleeps.
#[cfg(not(target_os = "linux"))]
fn machine_boot_micros() -> u64 {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<(Instant, Duration)> = LazyLock::new(|| (Instant::now(), since_1970()));
    let (start, wall) = *START;
    u64::try_from((wall + start.elapsed()).as_micros()).unwrap_or(u64::MAX)
}

/// Identity and clocks of the current kernel boot, as this process sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// Boot id that this process sees; `None` if it sees none. One boot may have several ids:
    /// container managers put their own id over the kernel's.
    pub id: Option<BootId>,
    /// Kernel's boot clock in microseconds, which is the same in every time namespace.
    pub clock: u64,
    /// Wall clock.
    pub wall: Timestamp,
    /// Whether `clock` is certainly the kernel's. A process that cannot read the offset of its time
    /// namespace cannot know.
    pub is_certain: bool,
}

impl Boot {
    /// Reads both clocks and the boot id.
    pub fn read() -> Self {
        let offset = namespaces::boottime_offset();
        let clock = boot_micros().saturating_add_signed(-offset.unwrap_or(0) / 1_000);
        let wall = Timestamp::from_micros(u64::try_from(since_1970().as_micros()).unwrap_or(u64::MAX));
        Self { id: boot_id(), clock, wall, is_certain: offset.is_some() }
    }

    /// Returns the difference between the wall clock and the kernel's boot clock, in microseconds.
    /// Both clocks are slewed alike, so the difference changes only when the wall clock is set, or at
    /// a restart.
    #[cfg(feature = "sqlite")]
    pub(crate) fn wall_offset(&self) -> i64 {
        i64::try_from(self.wall.as_micros()).unwrap_or(i64::MAX).saturating_sub_unsigned(self.clock)
    }
}

/// Returns the boot id that this process sees; `None` if it sees none.
pub(crate) fn boot_id() -> Option<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    uuid::Uuid::parse_str(text.trim()).ok().map(BootId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_clock_reads_like_a_wall_clock_and_never_steps() {
        let clock = Clock::system();
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let off = clock.now().as_micros().abs_diff(u64::try_from(wall.as_micros()).unwrap());
        assert!(off < 1_000_000, "{off} µs off");
        assert!(clock.now() <= clock.now());
    }

    #[test]
    fn a_manual_clock_moves_only_by_hand() {
        let clock = Clock::manual(Timestamp::from_micros(5));
        assert_eq!(clock.now(), clock.now());
        clock.advance(Duration::from_micros(7));
        assert_eq!(clock.now().as_micros(), 12);
    }

    #[test]
    fn ids_are_unique_and_sorted_by_time() {
        let ids: Vec<_> = (0..1000).map(|_| new_lease_id()).collect();
        let unique: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len());
        let millis = |id: &LeaseId| id.as_uuid().get_timestamp().unwrap().to_unix();
        assert!(ids.is_sorted_by_key(millis));
        assert_eq!(ids[0].as_uuid().get_version_num(), 7);
    }

    #[test]
    fn a_moment_never_wraps() {
        let now = BootInstant::now();
        assert_eq!(now.plus(Duration::from_secs(1)).after(now), Duration::from_secs(1));
        assert_eq!(now.after(now.plus(Duration::MAX)), Duration::ZERO);
    }
}
