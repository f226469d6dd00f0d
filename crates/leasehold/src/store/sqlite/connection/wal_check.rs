//! Reader of the write-ahead log for `leasehold doctor`: checks whether the log ends where it
//! should.
//!
//! SQLite reads the log up to the first frame with a wrong checksum and treats the rest as remains
//! of a crash. A damaged frame therefore silently drops every transaction after it. Such
//! transactions are detectable: they are frames of the same generation of the log, with a commit
//! mark, after the end.

use std::io::Read;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Log {
    /// The log does not exist or is empty.
    Empty,
    /// The log can be read up to the end of its last transaction.
    Intact { frames: usize },
    /// The header cannot be read: SQLite ignores the whole log.
    NoHeader,
    /// Committed transactions follow a frame that cannot be read.
    Damaged {
        frames: usize,
        /// Minimum number of commits that SQLite ignores.
        commits: usize,
    },
}

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// Maximum number of bytes to read. A log becomes longer only while a reader needs its old pages.
const MAX_BYTES: u64 = 256 << 20;

/// Reads the log at `path`. The caller must ensure that no process writes meanwhile.
pub(crate) fn read(path: &Path) -> std::io::Result<Log> {
    let mut bytes = Vec::new();
    match std::fs::File::open(path) {
        Ok(file) => file.take(MAX_BYTES).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Log::Empty),
        Err(error) => return Err(error),
    };
    Ok(check(&bytes))
}

fn check(log: &[u8]) -> Log {
    let Some((header, frames)) = log.split_at_checked(HEADER) else { return Log::Empty };
    if header.iter().all(|byte| *byte == 0) && frames.iter().all(|byte| *byte == 0) {
        return Log::Empty;
    }
    let big_endian = match number(header, 0) {
        0x377f_0682 => false,
        0x377f_0683 => true,
        _ => return Log::NoHeader,
    };
    let mut sum = checksum((0, 0), &header[..24], big_endian);
    let page = number(header, 8) as usize;
    if sum != (number(header, 24), number(header, 28))
        || !(512..=65_536).contains(&page)
        || !page.is_power_of_two()
    {
        return Log::NoHeader;
    }
    let salt = &header[16..24];
    let frames: Vec<&[u8]> = frames.chunks_exact(FRAME_HEADER + page).collect();
    let (mut valid, mut committed) = (0, 0);
    for frame in &frames {
        let next = checksum(checksum(sum, &frame[..8], big_endian), &frame[FRAME_HEADER..], big_endian);
        let is_valid = frame[8..16] == *salt && next == (number(frame, 16), number(frame, 20));
        if !is_valid || number(frame, 0) == 0 {
            break;
        }
        (sum, valid) = (next, valid + 1);
        if is_commit(frame) {
            committed = valid;
        }
    }
    // Frames with another salt belong to an earlier generation of the log, which SQLite overwrites
    // from the front.
    let behind =
        frames.iter().skip(valid + 1).filter(|frame| frame[8..16] == *salt && is_commit(frame)).count();
    // The unreadable frame may belong to another generation; then the frames after it do, too.
    match behind {
        0 => Log::Intact { frames: committed },
        commits => Log::Damaged { frames: committed, commits },
    }
}

/// Whether the frame ends a transaction: such a frame contains the size of the database.
fn is_commit(frame: &[u8]) -> bool {
    number(frame, 4) != 0
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

/// Computes the checksum of SQLite's file format over a multiple of eight bytes.
fn checksum((mut first, mut second): (u32, u32), bytes: &[u8], big_endian: bool) -> (u32, u32) {
    let (pairs, _) = bytes.as_chunks::<8>();
    for [a, b, c, d, e, f, g, h] in pairs {
        let word =
            |bytes: [u8; 4]| if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
        first = first.wrapping_add(word([*a, *b, *c, *d])).wrapping_add(second);
        second = second.wrapping_add(word([*e, *f, *g, *h])).wrapping_add(first);
    }
    (first, second)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a log of several transactions as SQLite writes it.
    fn log() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.pragma_update(None, "journal_mode", "WAL").unwrap();
        conn.execute_batch("CREATE TABLE t (x)").unwrap();
        for number in 0..5 {
            conn.execute("INSERT INTO t VALUES (?)", [number]).unwrap();
        }
        std::fs::read(folder.path().join("a.db-wal")).unwrap()
    }

    /// Returns the offset of frame `number`.
    fn frame(number: usize) -> usize {
        HEADER + number * (FRAME_HEADER + 4096)
    }

    #[test]
    fn a_complete_log_and_one_with_a_torn_end_are_intact() {
        let complete = log();
        let Log::Intact { frames } = check(&complete) else { panic!("{:?}", check(&complete)) };
        assert_eq!(frame(frames), complete.len());
        let torn = &complete[..complete.len() - 100];
        assert_eq!(check(torn), Log::Intact { frames: frames - 1 });
        // A crash kept part of the last frame from the disk; no earlier commit is lost.
        let mut torn = complete.clone();
        *torn.last_mut().unwrap() ^= 1;
        assert_eq!(check(&torn), Log::Intact { frames: frames - 1 });
        assert_eq!(check(&[]), Log::Empty);
        assert_eq!(check(&[0; 5000]), Log::Empty);
    }

    #[test]
    fn transactions_behind_a_damaged_frame_are_counted() {
        let mut damaged = log();
        let Log::Intact { frames } = check(&damaged) else { panic!() };
        damaged[frame(frames - 3) + 50] ^= 1;
        assert_eq!(check(&damaged), Log::Damaged { frames: frames - 3, commits: 2 });
    }

    #[test]
    fn a_log_without_a_header_is_detected() {
        let mut damaged = log();
        damaged[5] ^= 1;
        assert_eq!(check(&damaged), Log::NoHeader);
        assert_eq!(check(&[7; 5000]), Log::NoHeader);
    }

    /// After a checkpoint SQLite overwrites the log from the front; remains of the previous
    /// generation are not damage.
    #[test]
    fn remains_of_an_earlier_generation_are_not_damage() {
        let folder = tempfile::tempdir().unwrap();
        let conn = rusqlite::Connection::open(folder.path().join("a.db")).unwrap();
        conn.pragma_update(None, "journal_mode", "WAL").unwrap();
        conn.execute_batch("CREATE TABLE t (x)").unwrap();
        for number in 0..20 {
            conn.execute("INSERT INTO t VALUES (?)", [number]).unwrap();
        }
        conn.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
        conn.execute("INSERT INTO t VALUES (99)", []).unwrap();
        let found = read(&folder.path().join("a.db-wal")).unwrap();
        assert!(matches!(found, Log::Intact { frames: 1..=3 }), "{found:?}");
    }
}
