//! Telling a restart of the machine from what only looks like one.
//!
//! A restart ends every process of this machine, so the first writer after it frees their leases and sets the engine's
//! clock anew. Both would be wrong without one: a live holder would lose its lock, and leases would end early or late. So
//! a restart is proved. A boot id proves nothing: container managers give each container an id of its own, and some
//! processes see none.
//!
//! Writers leave a stamp: a reading of the kernel's boot clock and of the wall clock, at most [`STAMP_EVERY`] old. The
//! machine was restarted if the boot clock is behind the stamp. It may also have been up for longer than before: then the
//! boot id is a new one, the wall clock has moved on by at least the time that the machine had been up, and no process
//! that has written to the file has it open. In every other case the engine's clock goes on as it is, nothing is freed,
//! and leases end by their time. Only a file without any lease, such as one that was moved to another machine, gets its
//! clock set with less.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::schema::{CEILING, FLOOR, meta, set_meta, set_token, token};
use super::tables;
use super::tail::Numbers;
use super::tasks;
use crate::error::{Error, Trouble};
use crate::model::{BootId, LockOp, LockRecord, Restarted, Timestamp};
use crate::store::{Boot, Clock};

/// Boot ids seen since the last restart, separated by blanks, the newest last.
const IDS: &str = "boot_ids";
/// The kernel's boot clock at the last stamp.
const BOOTTIME: &str = "boottime";
/// How far the wall clock was from the boot clock at the last stamp of a process that knew its boot.
const WALL_OFFSET: &str = "wall_offset";
/// How far the engine's time is from the kernel's boot clock.
const CLOCK_OFFSET: &str = "clock_offset";

/// More boot ids than this are not remembered.
const MOST_IDS: usize = 64;

/// A stamp that is older than this is renewed by the next write. So the newest write is no more than this after the stamp.
pub(super) const STAMP_EVERY: Duration = Duration::from_mins(1);

/// A wall clock that has moved by less than this has not moved, in microseconds.
const NOTICEABLE: i64 = 5_000_000;

/// A boot clock that is behind by more than this is behind beyond doubt, in microseconds. Readings are taken under the write
/// lock, so within one boot it is never behind at all.
const BEYOND_DOUBT: u64 = 1_000_000;

/// What the file says about the boot in which it was last written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) ids: Vec<BootId>,
    stamp: Option<Stamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    boottime: u64,
    wall_offset: i64,
    clock_offset: i64,
}

/// Whether the machine has been restarted since the last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nobody has written yet.
    FirstWrite,
    /// The same boot, seen with an id that is known.
    Same,
    /// The same boot, seen with another id: a container.
    NewId(BootId),
    /// A restart, beyond doubt.
    Restarted,
    /// A restart, if no process that has written to the file has it open.
    RestartedIfAlone,
    /// Not known. Nothing may depend on it.
    InDoubt,
}

impl Known {
    pub(super) fn load(conn: &Connection) -> rusqlite::Result<Self> {
        let ids: Option<String> = meta(conn, IDS)?;
        let ids = ids.unwrap_or_default();
        let ids = ids.split_whitespace().filter_map(|id| uuid::Uuid::parse_str(id).ok()).map(BootId);
        let boottime: Option<i64> = meta(conn, BOOTTIME)?;
        let stamp = match (boottime, meta(conn, WALL_OFFSET)?, meta(conn, CLOCK_OFFSET)?) {
            (Some(boottime), Some(wall_offset), Some(clock_offset)) => {
                Some(Stamp { boottime: u64::try_from(boottime).unwrap_or(0), wall_offset, clock_offset })
            }
            _ => None,
        };
        Ok(Self { ids: ids.collect(), stamp })
    }

    pub(super) fn judge(&self, now: &Boot) -> Verdict {
        let Some(stamp) = self.stamp else { return Verdict::FirstWrite };
        if now.clock.saturating_add(BEYOND_DOUBT) < stamp.boottime {
            return if now.is_certain { Verdict::Restarted } else { Verdict::InDoubt };
        }
        let Some(id) = now.id else { return Verdict::InDoubt };
        if self.ids.contains(&id) {
            return Verdict::Same;
        }
        // After a restart the wall clock is ahead by the time that the machine had been up before, and by the time that it
        // was off. A wall clock that was merely set is seldom moved ahead by as much.
        let moved = now.wall_offset().saturating_sub(stamp.wall_offset);
        match u64::try_from(moved) {
            Ok(ahead) if moved > NOTICEABLE && ahead >= stamp.boottime => Verdict::RestartedIfAlone,
            _ => Verdict::NewId(id),
        }
    }

    /// Whether the wall clock was set since the last stamp, or is another machine's.
    fn has_wall_moved(&self, now: &Boot) -> bool {
        let apart = |stamp: Stamp| now.wall_offset().abs_diff(stamp.wall_offset) > NOTICEABLE.unsigned_abs();
        self.stamp.is_some_and(apart)
    }

    /// How far the engine's time is from the kernel's boot clock, for this process.
    pub(super) fn clock_offset(&self, now: &Boot) -> i64 {
        match (self.stamp, self.judge(now)) {
            (None, _) => now.wall_offset(),
            (Some(stamp), Verdict::Restarted) => stamp.offset_after_restart(now),
            (Some(stamp), _) => stamp.clock_offset,
        }
    }

    /// How long until the next stamp is due.
    pub(super) fn stamp_due_in(&self, now: &Boot) -> Duration {
        let age = self.stamp.map(|stamp| Duration::from_micros(now.clock.saturating_sub(stamp.boottime)));
        STAMP_EVERY.saturating_sub(age.unwrap_or(STAMP_EVERY))
    }

    /// Refuses a process that does not know the offset of its time namespace, if its clocks do not agree with the file: it
    /// would end leases too early or too late.
    pub(super) fn check_clock(&self, now: &Boot, path: &Path) -> Result<(), Error> {
        let agrees = |stamp: Stamp| {
            let apart = now.wall_offset().abs_diff(stamp.wall_offset);
            now.clock.saturating_add(BEYOND_DOUBT) >= stamp.boottime && apart <= NOTICEABLE.unsigned_abs()
        };
        if now.is_certain || self.stamp.is_none_or(agrees) {
            return Ok(());
        }
        let message = format!(
            "the boot clock of this process does not agree with the store {}, and the offset of its time namespace is \
             unknown",
            path.display()
        );
        Err(Error::store(
            Trouble::Misconfigured,
            message,
            "mount /proc, so that /proc/self/timens_offsets can be read",
        ))
    }
}

impl Stamp {
    /// The engine's time is the wall clock's, and never behind any time that was stored.
    fn offset_after_restart(&self, now: &Boot) -> i64 {
        let newest =
            self.boottime.saturating_add(micros(STAMP_EVERY)).saturating_add_signed(self.clock_offset);
        let newest = i64::try_from(newest).unwrap_or(i64::MAX).saturating_sub_unsigned(now.clock);
        now.wall_offset().max(newest)
    }
}

/// Marks this process as one that has written to the file and has it open: a shared lock on the log, which SQLite itself
/// locks in another way. Taken and asked for only by a process that may write.
pub(super) struct Presence(File);

impl Presence {
    pub(super) fn new(database: &Path) -> io::Result<Self> {
        let mut log = database.as_os_str().to_owned();
        log.push("-wal");
        OpenOptions::new().read(true).write(true).open(log).map(Self)
    }

    /// Whether no other process that has written has the file open. Afterwards [`Presence::join`] must be called.
    fn is_alone(&self) -> bool {
        self.0.try_lock().is_ok()
    }

    /// Waits for nothing: the lock is held exclusively only under the write lock of the database.
    fn join(&self) -> io::Result<()> {
        self.0.lock_shared()
    }

    fn leave(&self) {
        let _ = self.0.unlock(); // It goes with the file at the latest.
    }
}

/// What a process knows once it may write.
pub(super) struct Entered {
    /// Whether the process knows its boot, so that its stamps are evidence for others.
    pub(super) knows_boot: bool,
    pub(super) known: Known,
    /// The reading that it was found out with.
    pub(super) now: Boot,
}

/// Prepares the file for the first write of this process, in a transaction of its own.
pub(super) fn enter(
    conn: &mut Connection,
    presence: &Presence,
    read: impl FnOnce() -> Boot,
    clock: &Clock,
) -> rusqlite::Result<Entered> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // With the write lock in hand: a reading from before may be older than the stamp of another process.
    let now = read();
    let entered = find_out(&tx, presence, &now, clock).and_then(|entered| tx.commit().map(|()| entered));
    if entered.is_err() {
        presence.leave();
    }
    entered
}

fn find_out(tx: &Connection, presence: &Presence, now: &Boot, clock: &Clock) -> rusqlite::Result<Entered> {
    let known = Known::load(tx)?;
    let mut knows_boot = true;
    match known.judge(now) {
        Verdict::FirstWrite => {
            set_meta(tx, CLOCK_OFFSET, now.wall_offset())?;
            clock.follow_kernel(now.wall_offset());
            begin_boot(tx, now)?;
        }
        Verdict::Same => {}
        Verdict::NewId(_)
            if known.has_wall_moved(now) && presence.is_alone() && !is_in_use(tx, clock.now())? =>
        {
            set_clock(tx, &known, now, clock)?;
        }
        Verdict::NewId(id) => {
            let skip = (known.ids.len() + 1).saturating_sub(MOST_IDS);
            set_ids(tx, known.ids.iter().skip(skip).copied().chain([id]))?;
        }
        Verdict::Restarted => restart(tx, &known, now, clock)?,
        Verdict::RestartedIfAlone if presence.is_alone() => restart(tx, &known, now, clock)?,
        Verdict::RestartedIfAlone | Verdict::InDoubt => knows_boot = false,
    }
    let known = Known::load(tx)?;
    // Under the write lock, so that nobody can find out meanwhile that it is alone.
    presence.join().map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    Ok(Entered { knows_boot, known, now: *now })
}

/// Renews the stamp, inside a transaction. A boot clock that may not be the kernel's is no evidence, and neither is the wall
/// clock of a process that does not know its boot.
pub(super) fn stamp(conn: &Connection, now: &Boot, knows_boot: bool) -> rusqlite::Result<()> {
    if !now.is_certain {
        return Ok(());
    }
    let before: Option<i64> = meta(conn, BOOTTIME)?;
    set_meta(conn, BOOTTIME, before.unwrap_or(0).max(i64::try_from(now.clock).unwrap_or(i64::MAX)))?;
    if knows_boot {
        set_meta(conn, WALL_OFFSET, now.wall_offset())?;
    }
    Ok(())
}

/// The first write after a restart. The processes of the boot before are gone, and so are their leases; the last writes
/// may be gone too, so tokens go on above the ceiling that was on the disk.
fn restart(conn: &Connection, known: &Known, now: &Boot, clock: &Clock) -> rusqlite::Result<()> {
    set_clock(conn, known, now, clock)?;
    let time = clock.now();
    free_locks(conn, time)?;
    tasks::start_anew(conn, time)?;
    set_token(conn, FLOOR, token(conn, CEILING)?)
}

fn set_clock(conn: &Connection, known: &Known, now: &Boot, clock: &Clock) -> rusqlite::Result<()> {
    let offset = known.stamp.map_or_else(|| now.wall_offset(), |stamp| stamp.offset_after_restart(now));
    clock.follow_kernel(offset);
    set_meta(conn, CLOCK_OFFSET, offset)?;
    begin_boot(conn, now)
}

/// Whether there is a lease or a ticket whose end depends on the clock.
fn is_in_use(conn: &Connection, now: Timestamp) -> rusqlite::Result<bool> {
    let is_live = |record: &LockRecord| {
        let leases = record.holders.iter().map(|lease| lease.expires_at);
        leases.chain(record.waiters.iter().map(|ticket| ticket.expires_at)).any(|end| end > now)
    };
    Ok(tasks::is_any_leased(conn)?
        || tables::with_something_live(conn)?.iter().any(|row| is_live(&row.record)))
}

fn begin_boot(conn: &Connection, now: &Boot) -> rusqlite::Result<()> {
    set_ids(conn, now.id.into_iter())?;
    let evidence = if now.is_certain { now.clock } else { 0 };
    set_meta(conn, BOOTTIME, i64::try_from(evidence).unwrap_or(i64::MAX))?;
    set_meta(conn, WALL_OFFSET, now.wall_offset())
}

fn set_ids(conn: &Connection, ids: impl Iterator<Item = BootId>) -> rusqlite::Result<()> {
    let ids: Vec<String> = ids.map(|id| id.0.to_string()).collect();
    set_meta(conn, IDS, ids.join(" "))
}

fn free_locks(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    // All that has happened before is brought home, so that the numbers of what follows can go on from there.
    tables::gather(conn, now)?;
    let mut numbers = Numbers::after(tables::newest_event(conn)?);
    for mut row in tables::with_something_live(conn)? {
        let mut changed = false;
        for boot in boots_of(&row.record) {
            let applied = row.record.apply(&LockOp::Restarted(Restarted { boot }), now);
            row.tell(&applied.events, now, &mut numbers)?;
            changed |= applied.changed;
        }
        if changed {
            tables::save_tidy(conn, &mut row, now)?;
        }
    }
    Ok(())
}

/// The boots of all processes in a record: nobody of this boot has written yet. At least one, as the others get their whole
/// time again.
fn boots_of(record: &LockRecord) -> Vec<BootId> {
    let holders = record.holders.iter().map(|lease| &lease.ask);
    let asks = holders.chain(record.waiters.iter().map(|ticket| &ticket.ask));
    let mut boots: Vec<BootId> =
        asks.filter_map(|ask| ask.process.as_ref()).map(|process| process.boot).collect();
    boots.sort_unstable_by_key(|boot| boot.0);
    boots.dedup();
    if boots.is_empty() {
        boots.push(BootId(uuid::Uuid::nil()));
    }
    boots
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;
    /// Any day.
    const DAY: u64 = 1_700_000_000_000_000;

    fn id(number: u128) -> BootId {
        BootId(uuid::Uuid::from_u128(number))
    }

    /// A process that sees the boot id `number`, `up` hours after the start of the machine and `day` hours after [`DAY`].
    fn boot(number: u128, up: u64, day: u64) -> Boot {
        let wall = Timestamp::from_micros(DAY + day * HOUR);
        Boot { id: Some(id(number)), clock: up * HOUR, wall, is_certain: true }
    }

    /// The file was last written with boot id 1, ten hours after the start of the machine.
    fn known() -> Known {
        let wall_offset = boot(1, 10, 10).wall_offset();
        let stamp = Stamp { boottime: 10 * HOUR, wall_offset, clock_offset: wall_offset };
        Known { ids: vec![id(1)], stamp: Some(stamp) }
    }

    #[test]
    fn a_boot_clock_that_is_behind_proves_a_restart() {
        assert_eq!(known().judge(&boot(2, 1, 12)), Verdict::Restarted);
        // Whatever the wall clock says, and whichever id is shown.
        assert_eq!(known().judge(&boot(2, 1, 0)), Verdict::Restarted);
        assert_eq!(known().judge(&boot(1, 1, 12)), Verdict::Restarted);
        assert_eq!(known().judge(&Boot { id: None, ..boot(2, 1, 12) }), Verdict::Restarted);
        assert_eq!(known().judge(&Boot { is_certain: false, ..boot(2, 1, 12) }), Verdict::InDoubt);
    }

    #[test]
    fn another_boot_id_proves_nothing() {
        assert_eq!(known().judge(&boot(1, 11, 11)), Verdict::Same);
        assert_eq!(known().judge(&boot(2, 11, 11)), Verdict::NewId(id(2)));
        assert_eq!(known().judge(&Boot { id: None, ..boot(1, 11, 11) }), Verdict::InDoubt);
    }

    #[test]
    fn a_wall_clock_that_was_set_proves_nothing() {
        // Ahead by less than the machine had been up, and back.
        assert_eq!(known().judge(&boot(2, 11, 15)), Verdict::NewId(id(2)));
        assert_eq!(known().judge(&boot(2, 11, 3)), Verdict::NewId(id(2)));
        // By any time, seen with a known id.
        assert_eq!(known().judge(&boot(1, 11, 900)), Verdict::Same);
        assert_eq!(known().judge(&Boot { id: None, ..boot(1, 11, 900) }), Verdict::InDoubt);
    }

    #[test]
    fn a_machine_that_is_up_for_longer_than_before_needs_more_evidence() {
        assert_eq!(known().judge(&boot(2, 11, 30)), Verdict::RestartedIfAlone);
    }

    #[test]
    fn time_goes_on_from_the_wall_clock_and_never_falls_behind() {
        let time = |now: &Boot| now.clock.saturating_add_signed(known().clock_offset(now));
        let minute = 60_000_000;
        assert_eq!(time(&boot(2, 1, 12)), DAY + 12 * HOUR, "after a restart it is the wall clock's");
        assert_eq!(time(&boot(2, 1, 0)), DAY + 10 * HOUR + minute, "the wall clock was set back");
        for now in [boot(1, 11, 900), boot(2, 11, 15), boot(2, 11, 30), Boot { id: None, ..boot(1, 11, 3) }] {
            assert_eq!(time(&now), DAY + 11 * HOUR, "in doubt it goes on: {now:?}");
        }
    }

    #[test]
    fn a_process_without_a_known_time_namespace_must_agree_with_the_file() {
        let uncertain = |now: Boot| Boot { is_certain: false, ..now };
        let check = |now: Boot| known().check_clock(&now, Path::new("a.db"));
        check(uncertain(boot(1, 11, 11))).unwrap();
        Known::default().check_clock(&uncertain(boot(1, 11, 900)), Path::new("a.db")).unwrap();
        for now in [boot(1, 1, 11), boot(1, 12, 11), boot(1, 11, 12)] {
            check(now).unwrap();
            assert_eq!(check(uncertain(now)).unwrap_err().code(), "STORE_MISCONFIGURED");
        }
    }
}
