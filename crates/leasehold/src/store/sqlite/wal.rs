//! Reading the write-ahead log for `leasehold doctor`: whether it ends where it should.
//!
//! SQLite reads the log up to the first frame whose checksum is wrong, and takes the rest for what a crash has left. So a
//! damaged frame silently drops every transaction behind it. Whether there were any can be seen: frames of the same
//! generation of the log, with a commit mark, behind the end.

use std::io::Read;
use std::path::Path;

/// What the log consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Log {
    /// There is none, or nothing is in it.
    Empty,
    /// Frames up to the end of the last transaction that can be read.
    Intact {
        /// How many frames these are.
        frames: usize,
    },
    /// The header cannot be read: all of it is ignored.
    NoHeader,
    /// Behind a frame that cannot be read there are transactions that were committed.
    Damaged {
        /// How many frames can be read.
        frames: usize,
        /// How many commits are ignored, at the least.
        commits: usize,
    },
}

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// A log does not grow beyond a few megabytes. What is behind this is not looked at.
const MOST_BYTES: u64 = 256 << 20;

/// Reads the log at `path`. Nobody may write meanwhile.
pub(super) fn read(path: &Path) -> std::io::Result<Log> {
    let mut bytes = Vec::new();
    match std::fs::File::open(path) {
        Ok(file) => file.take(MOST_BYTES).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Log::Empty),
        Err(error) => return Err(error),
    };
    Ok(examine(&bytes))
}

fn examine(log: &[u8]) -> Log {
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
    // Frames with another salt are of an earlier generation of the log: they are written over from the front.
    let behind =
        frames.iter().skip(valid + 1).filter(|frame| frame[8..16] == *salt && is_commit(frame)).count();
    // The frame that cannot be read may have been of another generation; then what is behind it is, too.
    match behind {
        0 => Log::Intact { frames: committed },
        commits => Log::Damaged { frames: committed, commits },
    }
}

/// The last frame of a transaction has the size of the database in it.
fn is_commit(frame: &[u8]) -> bool {
    number(frame, 4) != 0
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

/// The checksum of SQLite's file format, over a multiple of eight bytes.
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

    /// A log of several transactions, as SQLite writes it.
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

    /// Where frame `number` begins.
    fn frame(number: usize) -> usize {
        HEADER + number * (FRAME_HEADER + 4096)
    }

    #[test]
    fn a_whole_log_is_intact_and_so_is_one_with_a_torn_end() {
        let whole = log();
        let Log::Intact { frames } = examine(&whole) else { panic!("{:?}", examine(&whole)) };
        assert_eq!(frame(frames), whole.len());
        let torn = &whole[..whole.len() - 100];
        assert_eq!(examine(torn), Log::Intact { frames: frames - 1 });
        // The last frame did not reach the disk as a whole: a crash, and nothing that was committed before is lost.
        let mut torn = whole.clone();
        *torn.last_mut().unwrap() ^= 1;
        assert_eq!(examine(&torn), Log::Intact { frames: frames - 1 });
        assert_eq!(examine(&[]), Log::Empty);
        assert_eq!(examine(&[0; 5000]), Log::Empty);
    }

    #[test]
    fn transactions_behind_a_damaged_frame_are_counted() {
        let mut damaged = log();
        let Log::Intact { frames } = examine(&damaged) else { panic!() };
        damaged[frame(frames - 3) + 50] ^= 1;
        assert_eq!(examine(&damaged), Log::Damaged { frames: frames - 3, commits: 2 });
    }

    #[test]
    fn a_log_without_a_header_is_told() {
        let mut damaged = log();
        damaged[5] ^= 1;
        assert_eq!(examine(&damaged), Log::NoHeader);
        assert_eq!(examine(&[7; 5000]), Log::NoHeader);
    }

    /// After a checkpoint the log is written over from the front; what is left of the generation before is not damage.
    #[test]
    fn what_is_left_of_an_earlier_generation_is_no_damage() {
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
