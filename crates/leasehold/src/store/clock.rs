//! The one file that reads clocks.
//!
//! Two kinds of time are kept apart. A [`Moment`] is a reading of this machine's boot clock, which counts while the
//! machine sleeps and never steps: holders measure their own deadlines with it. A [`Timestamp`] is the engine's time,
//! which decides when leases end; a [`Clock`] makes it for the engines that live on this machine.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::rand::{GetRandomFlags, getrandom};

use super::namespaces;
use crate::model::{BootId, LeaseId, Timestamp};

/// A reading of this machine's boot clock, in microseconds. Means nothing on another machine or after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Reads the clock.
    pub fn now() -> Self {
        Self(boot_micros())
    }

    /// From microseconds, as [`Moment::as_micros`] gave them to another process of this machine.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the machine started.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This moment and then `duration`.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }

    /// How long until this moment from `now`; nothing if it has passed.
    pub fn after(self, now: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(now.0))
    }
}

/// The clock of an engine that lives on this machine.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    /// The boot clock, moved so that it reads like a wall clock did once. It never steps, unless the engine finds out
    /// that the machine has been restarted.
    Boot { offset: AtomicI64 },
    /// Moves only when a test moves it.
    Manual(AtomicU64),
}

impl Clock {
    /// The boot clock, set to what the wall clock says now.
    pub fn system() -> Self {
        Self::with_offset(wall_offset())
    }

    /// The boot clock, `offset` microseconds before the engine's time.
    pub(crate) fn with_offset(offset: i64) -> Self {
        Self(Arc::new(Source::Boot { offset: AtomicI64::new(offset) }))
    }

    /// Moves the boot clock so that the engine's time is the kernel's boot clock plus `offset`, in every time namespace
    /// alike. No-op for a manual clock.
    #[cfg(feature = "sqlite")]
    pub(crate) fn follow_kernel(&self, offset: i64) {
        if let Source::Boot { offset: current } = &*self.0 {
            let namespace = namespaces::boottime_offset().unwrap_or(0) / 1_000;
            current.store(offset.saturating_sub(namespace), Ordering::SeqCst);
        }
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual(start: Timestamp) -> Self {
        Self(Arc::new(Source::Manual(AtomicU64::new(start.as_micros()))))
    }

    /// The engine's time.
    pub fn now(&self) -> Timestamp {
        match &*self.0 {
            Source::Boot { offset } => {
                Timestamp::from_micros(boot_micros().saturating_add_signed(offset.load(Ordering::SeqCst)))
            }
            Source::Manual(micros) => Timestamp::from_micros(micros.load(Ordering::SeqCst)),
        }
    }

    /// The engine's time, and the moment that it was read at.
    pub(crate) fn read(&self) -> (Moment, Timestamp) {
        match &*self.0 {
            Source::Boot { offset } => {
                let moment = Moment::now();
                (
                    moment,
                    Timestamp::from_micros(moment.0.saturating_add_signed(offset.load(Ordering::SeqCst))),
                )
            }
            Source::Manual(_) => (Moment::now(), self.now()),
        }
    }

    /// Sets a manual clock back, as an administrator or a time server may do to a real one.
    #[cfg(feature = "testing")]
    pub fn set_back(&self, duration: std::time::Duration) {
        if let Source::Manual(micros) = &*self.0 {
            micros.fetch_sub(u64::try_from(duration.as_micros()).unwrap_or(0), Ordering::SeqCst);
        }
    }

    /// Moves a manual clock ahead; a real one minds its own business.
    pub fn advance(&self, duration: Duration) {
        if let Source::Manual(micros) = &*self.0 {
            micros.fetch_add(u64::try_from(duration.as_micros()).unwrap_or(0), Ordering::SeqCst);
        }
    }
}

/// A new id for one request: sorted by time, unique everywhere.
pub(crate) fn new_lease_id() -> LeaseId {
    let millis = u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX);
    let made =
        random_bytes().map(|random| uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid());
    LeaseId::from_uuid(made.unwrap_or_else(uuid::Uuid::now_v7))
}

/// A new id for a task or a worker. Those that one thread makes in a row are in order, also within a millisecond.
pub(crate) fn new_id() -> uuid::Uuid {
    uuid::Uuid::now_v7()
}

/// Ten random bytes. The system is asked for those of 25 ids at a time, which it always gives whole.
fn random_bytes() -> Option<[u8; 10]> {
    thread_local! {
        static POOL: RefCell<(u32, Vec<[u8; 10]>)> = const { RefCell::new((0, Vec::new())) };
    }
    POOL.with_borrow_mut(|(owner, pool)| {
        let me = std::process::id();
        if *owner != me || pool.is_empty() {
            // A fork has the same pool as its parent, and would make the same ids of it.
            *owner = me;
            pool.clear();
            let mut fresh = [[0; 10]; 25];
            let asked = getrandom(fresh.as_flattened_mut(), GetRandomFlags::empty());
            if asked == Ok(fresh.as_flattened().len()) {
                pool.extend_from_slice(&fresh);
            }
        }
        pool.pop()
    })
}

/// How far the wall clock is from the boot clock now, in microseconds.
fn wall_offset() -> i64 {
    i64::try_from(since_1970().as_micros()).unwrap_or(i64::MAX).saturating_sub_unsigned(boot_micros())
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(target_os = "linux")]
fn boot_micros() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000 + nanos / 1_000
}

/// Where there is no boot clock to be had, the monotonic one has to do: it may stand still while the machine sleeps.
#[cfg(not(target_os = "linux"))]
fn boot_micros() -> u64 {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<(Instant, Duration)> = LazyLock::new(|| (Instant::now(), since_1970()));
    let (start, wall) = *START;
    u64::try_from((wall + start.elapsed()).as_micros()).unwrap_or(u64::MAX)
}

/// What a process knows of the boot of the kernel that it runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// The boot id that this process sees; none where it sees none. One boot may have several: container managers put an
    /// id of their own over the kernel's.
    pub id: Option<BootId>,
    /// The kernel's boot clock in microseconds, which is the same in every time namespace.
    pub clock: u64,
    /// The wall clock.
    pub wall: Timestamp,
    /// Whether `clock` is the kernel's beyond doubt. A process that cannot read the offset of its time namespace does not
    /// know.
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

    /// How far the wall clock is from the kernel's boot clock, in microseconds. Both clocks are slewed alike, so it changes
    /// only when the wall clock is set, or with the boot.
    pub(crate) fn wall_offset(&self) -> i64 {
        i64::try_from(self.wall.as_micros()).unwrap_or(i64::MAX).saturating_sub_unsigned(self.clock)
    }
}

/// The boot id that this process sees; none where it sees none.
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
        let now = Moment::now();
        assert_eq!(now.plus(Duration::from_secs(1)).after(now), Duration::from_secs(1));
        assert_eq!(now.after(now.plus(Duration::MAX)), Duration::ZERO);
    }
}
