//! Distinguishes a restart of the machine from events that resemble one.
//!
//! A restart ends every process of this machine, so the first writer after it frees their leases
//! and sets the engine's clock again. Both would be wrong without a restart: a live holder would
//! lose its lock, and leases would end early or late. So a restart must be proved. A boot id proves
//! nothing: container managers give each container an id of its own, and some processes see none.
//!
//! Writers leave a stamp: a reading of the kernel's boot clock and of the wall clock, at most
//! [`STAMP_INTERVAL`] old. The machine was restarted if the boot clock is behind the stamp. After a
//! restart the machine may also have been up for longer than before; then a restart is assumed if
//! the boot id is new, the wall clock has advanced by at least the previous uptime, and no process
//! that has written to the file has it open. In every other case the engine's clock continues,
//! nothing is freed, and leases end at their expiry time. Only the clock of a file without any
//! lease, such as a file that was moved to another machine, is set with less evidence.
//!
//! A restart may go unnoticed: a machine without a battery-backed clock may start with the same time
//! as before. So the first writer of a boot continues tokens above those that may have been issued
//! and lost, unless it knows that the boot is the same.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::error::clock_mismatch;
use super::file::Presence;
use super::locks::{EventNumbers, queries};
use super::schema::{MIN_TOKEN, RESERVED_UNTIL, meta, set_meta, set_token, to_integer, token};
use super::tasks;
use crate::error::{Error, StoreErrorKind};
use crate::model::{BootId, LockOp, LockRecord, Restarted, Timestamp};
use crate::store::{Boot, Clock};

/// Key of the boot ids seen since the last restart, separated by blanks, the newest last.
const BOOT_IDS: &str = "boot_ids";
/// Key of the kernel's boot clock at the last stamp; zero if only processes that did not know it have written.
const BOOTTIME: &str = "boottime";
/// Key of the offset of the wall clock from the boot clock at the last stamp of a process that knew
/// its boot.
const WALL_OFFSET: &str = "wall_offset";
/// Key of the offset of the engine's time from the kernel's boot clock.
const CLOCK_OFFSET: &str = "clock_offset";

/// Maximum number of stored boot ids.
const MAX_BOOT_IDS: usize = 64;

/// Age at which the next write renews the stamp. The newest write is therefore at most this much
/// later than the stamp.
pub(super) const STAMP_INTERVAL: Duration = Duration::from_mins(1);

/// Minimum difference, in microseconds, that counts as a change of the wall clock.
const MIN_WALL_CLOCK_CHANGE: i64 = 5_000_000;

/// Minimum lag of the boot clock, in microseconds, that proves a restart. Readings are taken under
/// the write lock, so within one boot the clock is never behind at all.
const MIN_BOOT_CLOCK_LAG: u64 = 1_000_000;

/// Boot in which the file was last written, as recorded in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RecordedBoot {
    pub(super) ids: Vec<BootId>,
    stamp: Option<Stamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    boottime: u64,
    wall_offset: i64,
    clock_offset: i64,
}

/// Evidence for a restart of the machine since the last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BootEvidence {
    FirstWrite,
    /// Same boot, with a known id.
    Same,
    /// Another id, and no evidence for a restart: most often a container of the same boot.
    NewId(BootId),
    Restarted,
    /// The machine was restarted if no process that has written to the file has it open.
    RestartedIfAlone,
    /// Unknown. No decision may depend on it.
    InDoubt,
}

impl RecordedBoot {
    pub(super) fn load(conn: &Connection) -> rusqlite::Result<Self> {
        let ids: Option<String> = meta(conn, BOOT_IDS)?;
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

    /// Compares the recorded boot with the one in which this process runs.
    pub(super) fn evidence(&self, now: &Boot) -> BootEvidence {
        let Some(stamp) = self.stamp else { return BootEvidence::FirstWrite };
        if now.clock.saturating_add(MIN_BOOT_CLOCK_LAG) < stamp.boottime {
            return if now.is_certain { BootEvidence::Restarted } else { BootEvidence::InDoubt };
        }
        let Some(id) = now.id else { return BootEvidence::InDoubt };
        if self.ids.contains(&id) {
            return BootEvidence::Same;
        }
        // After a restart the wall clock is ahead by the previous uptime and by the time that the
        // machine was off. A wall clock that was merely set is seldom moved ahead by as much.
        let moved = now.wall_offset().saturating_sub(stamp.wall_offset);
        match u64::try_from(moved) {
            Ok(ahead) if moved > MIN_WALL_CLOCK_CHANGE && ahead >= stamp.boottime => {
                BootEvidence::RestartedIfAlone
            }
            _ => BootEvidence::NewId(id),
        }
    }

    /// Whether the wall clock was set since the last stamp, or belongs to another machine.
    fn has_wall_clock_changed(&self, now: &Boot) -> bool {
        let changed = |stamp: Stamp| {
            now.wall_offset().abs_diff(stamp.wall_offset) > MIN_WALL_CLOCK_CHANGE.unsigned_abs()
        };
        self.stamp.is_some_and(changed)
    }

    /// Returns the offset of the engine's time from the kernel's boot clock, for this process.
    pub(super) fn clock_offset(&self, now: &Boot) -> i64 {
        match (self.stamp, self.evidence(now)) {
            (None, _) => now.wall_offset(),
            (Some(stamp), BootEvidence::Restarted) => stamp.offset_after_restart(now),
            (Some(stamp), _) => stamp.clock_offset,
        }
    }

    pub(super) fn stamp_due_in(&self, now: &Boot) -> Duration {
        let age = self.stamp.map(|stamp| Duration::from_micros(now.clock.saturating_sub(stamp.boottime)));
        STAMP_INTERVAL.saturating_sub(age.unwrap_or(STAMP_INTERVAL))
    }

    /// Whether the clocks of a process continue those of the last stamp, if there is one.
    fn agrees_with(&self, now: &Boot) -> bool {
        let is_behind = |stamp: Stamp| now.clock.saturating_add(MIN_BOOT_CLOCK_LAG) < stamp.boottime;
        !self.stamp.is_some_and(is_behind) && !self.has_wall_clock_changed(now)
    }

    /// Whether this process and those that have written may use different clocks: one of them does not know
    /// the offset of its time namespace, and the clocks do not agree.
    fn is_of_other_clock(&self, now: &Boot) -> bool {
        let is_uncertain = |stamp: Stamp| !now.is_certain || stamp.boottime == 0;
        self.stamp.is_some_and(is_uncertain) && !self.agrees_with(now)
    }

    /// Rejects a process that does not know the offset of its time namespace, if its clocks do not
    /// agree with the file: such a process would end leases too early or too late.
    pub(super) fn check_clock(&self, now: &Boot, path: &Path) -> Result<(), Error> {
        if now.is_certain || self.agrees_with(now) {
            return Ok(());
        }
        let message = format!(
            "the boot clock of this process does not agree with the store {}, and the offset of its time namespace is \
             unknown",
            path.display()
        );
        Err(Error::store(
            StoreErrorKind::Misconfigured,
            message,
            "mount /proc, so that /proc/self/timens_offsets can be read",
        ))
    }
}

impl Stamp {
    /// Returns a clock offset such that the engine's time equals the wall clock and is never behind
    /// any stored time.
    fn offset_after_restart(&self, now: &Boot) -> i64 {
        let newest =
            self.boottime.saturating_add(micros(STAMP_INTERVAL)).saturating_add_signed(self.clock_offset);
        let newest = to_integer(newest).saturating_sub_unsigned(now.clock);
        now.wall_offset().max(newest)
    }
}

pub(super) struct PreparedBoot {
    /// Whether the process knows its boot, so that its stamps are evidence for other processes.
    pub(super) knows_boot: bool,
    pub(super) known: RecordedBoot,
    /// Clock reading on which the decision was based.
    pub(super) now: Boot,
}

/// Prepares the file for the first write of this process, in a transaction of its own.
pub(super) fn prepare_first_write(
    conn: &mut Connection,
    presence: &Presence,
    read: impl FnOnce() -> Boot,
    clock: &Clock,
) -> rusqlite::Result<PreparedBoot> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Read while holding the write lock: an earlier reading may be older than the stamp of another
    // process.
    let now = read();
    let prepared =
        evaluate_boot(&tx, presence, &now, clock).and_then(|prepared| tx.commit().map(|()| prepared));
    if prepared.is_err() {
        presence.leave();
    }
    prepared
}

fn evaluate_boot(
    tx: &Connection,
    presence: &Presence,
    now: &Boot,
    clock: &Clock,
) -> rusqlite::Result<PreparedBoot> {
    let known = RecordedBoot::load(tx)?;
    let evidence = known.evidence(now);
    let is_other_clock = known.is_of_other_clock(now);
    if is_other_clock && !(now.is_certain && presence.is_alone()) {
        return Err(clock_mismatch());
    }
    let mut knows_boot = true;
    match evidence {
        BootEvidence::FirstWrite => {
            set_meta(tx, CLOCK_OFFSET, now.wall_offset())?;
            clock.follow_kernel(now.wall_offset());
            record_boot(tx, now)?;
        }
        BootEvidence::RestartedIfAlone if presence.is_alone() => handle_restart(tx, &known, now, clock)?,
        _ if is_other_clock => replace_clock(tx, &known, now, clock)?,
        BootEvidence::Same => {}
        BootEvidence::NewId(_)
            if known.has_wall_clock_changed(now) && presence.is_alone() && !is_in_use(tx, clock.now())? =>
        {
            set_clock(tx, &known, now, clock)?;
        }
        BootEvidence::NewId(id) => {
            let skip = (known.ids.len() + 1).saturating_sub(MAX_BOOT_IDS);
            set_ids(tx, known.ids.iter().skip(skip).copied().chain([id]))?;
        }
        BootEvidence::Restarted => handle_restart(tx, &known, now, clock)?,
        BootEvidence::RestartedIfAlone | BootEvidence::InDoubt => knows_boot = false,
    }
    // The first writer of a boot is alone. It does this once for all: a later one must not raise the
    // minimum above tokens that the others issue.
    if matches!(evidence, BootEvidence::NewId(_) | BootEvidence::InDoubt) && presence.is_alone() {
        raise_min_token(tx)?;
    }
    let known = RecordedBoot::load(tx)?;
    // Under the write lock, so that no other process can meanwhile conclude that it is alone.
    presence.join().map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    Ok(PreparedBoot { knows_boot, known, now: *now })
}

/// Renews the stamp, inside a transaction. A boot clock that may not be the kernel's is no
/// evidence, and neither is the wall clock of a process that does not know its boot.
pub(super) fn stamp(conn: &Connection, now: &Boot, knows_boot: bool) -> rusqlite::Result<()> {
    if !now.is_certain {
        return Ok(());
    }
    let before: Option<i64> = meta(conn, BOOTTIME)?;
    set_meta(conn, BOOTTIME, before.unwrap_or(0).max(to_integer(now.clock)))?;
    if knows_boot {
        set_meta(conn, WALL_OFFSET, now.wall_offset())?;
    }
    Ok(())
}

/// Performs the first write after a restart. The processes of the previous boot are dead, so their
/// leases end.
fn handle_restart(
    conn: &Connection,
    known: &RecordedBoot,
    now: &Boot,
    clock: &Clock,
) -> rusqlite::Result<()> {
    set_clock(conn, known, now, clock)?;
    raise_min_token(conn)?;
    let time = clock.now();
    free_locks(conn, time)?;
    tasks::rebase_times(conn, time)
}

/// Continues tokens above the reservation that was on the disk: the last writes may be lost.
fn raise_min_token(conn: &Connection) -> rusqlite::Result<()> {
    set_token(conn, MIN_TOKEN, token(conn, RESERVED_UNTIL)?)
}

fn set_clock(conn: &Connection, known: &RecordedBoot, now: &Boot, clock: &Clock) -> rusqlite::Result<()> {
    let offset = known.stamp.map_or_else(|| now.wall_offset(), |stamp| stamp.offset_after_restart(now));
    clock.follow_kernel(offset);
    set_meta(conn, CLOCK_OFFSET, offset)?;
    record_boot(conn, now)
}

/// Replaces the clock of processes that did not know the kernel's boot clock, unless a lease depends on it. No
/// other process that has written has the file open. Tasks keep their leases for the whole time again.
fn replace_clock(conn: &Connection, known: &RecordedBoot, now: &Boot, clock: &Clock) -> rusqlite::Result<()> {
    // Leases may have been granted by a clock that is ahead of the one that this process has used so far.
    if is_lock_in_use(conn, clock.now().min(now.wall))? {
        return Err(clock_mismatch());
    }
    set_clock(conn, known, now, clock)?;
    raise_min_token(conn)?;
    tasks::rebase_times(conn, clock.now())
}

/// Whether any lease, ticket or deadline has an end that depends on the clock.
fn is_in_use(conn: &Connection, now: Timestamp) -> rusqlite::Result<bool> {
    Ok(tasks::has_deadline(conn)? || is_lock_in_use(conn, now)?)
}

/// Whether any lease or ticket of a lock ends after `now`.
fn is_lock_in_use(conn: &Connection, now: Timestamp) -> rusqlite::Result<bool> {
    let is_live = |record: &LockRecord| {
        let leases = record.holders.iter().map(|lease| lease.expires_at);
        leases.chain(record.waiters.iter().map(|ticket| ticket.expires_at)).any(|end| end > now)
    };
    // A lock that cannot be read may be in use.
    let locks = queries::active_rows(conn)?;
    Ok(locks.has_unreadable || locks.rows.iter().any(|row| is_live(&row.record)))
}

fn record_boot(conn: &Connection, now: &Boot) -> rusqlite::Result<()> {
    set_ids(conn, now.id.into_iter())?;
    let evidence = if now.is_certain { now.clock } else { 0 };
    set_meta(conn, BOOTTIME, to_integer(evidence))?;
    set_meta(conn, WALL_OFFSET, now.wall_offset())
}

fn set_ids(conn: &Connection, ids: impl Iterator<Item = BootId>) -> rusqlite::Result<()> {
    let ids: Vec<String> = ids.map(|id| id.0.to_string()).collect();
    set_meta(conn, BOOT_IDS, ids.join(" "))
}

fn free_locks(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    // Moves all earlier events into the events table, so that the numbers of the next events
    // continue from there.
    queries::move_events_of(conn, u32::MAX, now)?;
    let mut numbers = EventNumbers::after(queries::newest_event(conn)?);
    let min_token = token(conn, MIN_TOKEN)?;
    // A lock that cannot be read must not keep the others from being used; it stays refused itself.
    for mut row in queries::active_rows(conn)?.rows {
        // A waiter that gets the lock here must not get a token that was issued before.
        row.record.token = row.record.token.max(min_token);
        let mut changed = false;
        for boot in boots_of(&row.record) {
            let applied = row.record.apply(&LockOp::Restarted(Restarted { boot }), now);
            row.append_events(&applied.events, now, &mut numbers)?;
            changed |= applied.changed;
        }
        if changed {
            queries::save_and_move_events(conn, &mut row, now)?;
        }
    }
    Ok(())
}

/// Returns the boots of all processes in a record: no process of this boot has written yet. Returns
/// at least one boot, because surviving leases and tickets receive their full lifetime again.
fn boots_of(record: &LockRecord) -> Vec<BootId> {
    let holders = record.holders.iter().map(|lease| &lease.request);
    let requests = holders.chain(record.waiters.iter().map(|ticket| &ticket.request));
    let mut boots: Vec<BootId> =
        requests.filter_map(|request| request.process.as_ref()).map(|process| process.boot).collect();
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
    /// Start of the simulated wall clock.
    const DAY: u64 = 1_700_000_000_000_000;

    fn id(number: u128) -> BootId {
        BootId(uuid::Uuid::from_u128(number))
    }

    /// Returns the boot of a process that sees the boot id `number`, `up` hours after the start of
    /// the machine and `day` hours after [`DAY`].
    fn boot(number: u128, up: u64, day: u64) -> Boot {
        let wall = Timestamp::from_micros(DAY + day * HOUR);
        Boot { id: Some(id(number)), clock: up * HOUR, wall, is_certain: true }
    }

    /// Returns the state of a file that was last written with boot id 1, ten hours after the start
    /// of the machine.
    fn known() -> RecordedBoot {
        let wall_offset = boot(1, 10, 10).wall_offset();
        let stamp = Stamp { boottime: 10 * HOUR, wall_offset, clock_offset: wall_offset };
        RecordedBoot { ids: vec![id(1)], stamp: Some(stamp) }
    }

    #[test]
    fn only_a_boot_clock_that_is_behind_proves_a_restart() {
        let without_id = |boot: Boot| Boot { id: None, ..boot };
        for (now, expected) in [
            // The wall clock and the boot id do not matter if the boot clock is behind.
            (boot(2, 1, 12), BootEvidence::Restarted),
            (boot(2, 1, 0), BootEvidence::Restarted),
            (boot(1, 1, 12), BootEvidence::Restarted),
            (without_id(boot(2, 1, 12)), BootEvidence::Restarted),
            (Boot { is_certain: false, ..boot(2, 1, 12) }, BootEvidence::InDoubt),
            // Another boot id proves nothing.
            (boot(1, 11, 11), BootEvidence::Same),
            (boot(2, 11, 11), BootEvidence::NewId(id(2))),
            (without_id(boot(1, 11, 11)), BootEvidence::InDoubt),
            // A wall clock that was set, ahead by less than the previous uptime, and back.
            (boot(2, 11, 15), BootEvidence::NewId(id(2))),
            (boot(2, 11, 3), BootEvidence::NewId(id(2))),
            // By any amount, with a known id.
            (boot(1, 11, 900), BootEvidence::Same),
            (without_id(boot(1, 11, 900)), BootEvidence::InDoubt),
            // A machine that is up for longer than before needs more evidence.
            (boot(2, 11, 30), BootEvidence::RestartedIfAlone),
        ] {
            assert_eq!(known().evidence(&now), expected, "{now:?}");
        }
    }

    #[test]
    fn time_continues_from_the_wall_clock_and_never_goes_back() {
        let time = |now: &Boot| now.clock.saturating_add_signed(known().clock_offset(now));
        let minute = 60_000_000;
        assert_eq!(time(&boot(2, 1, 12)), DAY + 12 * HOUR, "the time is that of the wall clock");
        assert_eq!(time(&boot(2, 1, 0)), DAY + 10 * HOUR + minute, "the wall clock was set back");
        for now in [boot(1, 11, 900), boot(2, 11, 15), boot(2, 11, 30), Boot { id: None, ..boot(1, 11, 3) }] {
            assert_eq!(time(&now), DAY + 11 * HOUR, "without proof of a restart the time continues: {now:?}");
        }
    }

    #[test]
    fn a_process_without_a_known_time_namespace_must_agree_with_the_file() {
        let uncertain = |now: Boot| Boot { is_certain: false, ..now };
        let check = |now: Boot| known().check_clock(&now, Path::new("a.db"));
        check(uncertain(boot(1, 11, 11))).unwrap();
        RecordedBoot::default().check_clock(&uncertain(boot(1, 11, 900)), Path::new("a.db")).unwrap();
        for now in [boot(1, 1, 11), boot(1, 12, 11), boot(1, 11, 12)] {
            check(now).unwrap();
            assert_eq!(check(uncertain(now)).unwrap_err().code(), "STORE_MISCONFIGURED");
        }
    }
}
