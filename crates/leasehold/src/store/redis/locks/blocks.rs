//! Blocks of events, as `recent.lua` describes them: reads them, and moves the recent events of a bucket
//! to its stream when this process has appended many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use redis::Cmd;

use super::super::connection::Connections;
use super::super::error::unreadable;
use super::super::keys::{BUCKETS, Bucket, Keys, bucket_number};
use super::super::scripts::{MOVE_EVENTS, PRUNE, Reader, ScriptCall};
use super::codec;
use crate::error::Result;
use crate::model::{Event, LockName};
use crate::store::repeat::Repeat;

const BLOCK_FORMAT: u8 = 242;
const BLOCK_HEAD_SIZE: usize = 17;

/// Number of leases of one bucket that this process has ended, after which it moves the recent events:
/// two or three for each lease.
const MOVE_AFTER: u32 = 16;
/// Size below which recent events are not moved: another process has just moved them.
const MIN_MOVED: usize = 1_000;
/// Size above which maintenance moves the recent events, whichever process has written them.
const MAX_RECENT: usize = 8_000;

/// Position of an event among all: its time, its number within that millisecond, and its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EventPosition {
    pub(super) millis: u64,
    pub(super) seq: u64,
    pub(super) bucket: u64,
}

impl EventPosition {
    /// Returns the position in the form of the ids of a stream.
    pub(super) fn id(self) -> String {
        format!("{}-{}", self.millis, self.seq)
    }
}

/// Reads the events of a block, oldest first.
pub(super) fn events(block: &[u8], bucket: u64) -> Result<Vec<(EventPosition, Event)>> {
    let packed = packed_events(block, bucket).ok_or_else(|| unreadable("a part of the history"))?;
    packed.into_iter().map(|(position, event)| Ok((position, codec::event(event)?))).collect()
}

fn packed_events(block: &[u8], bucket: u64) -> Option<Vec<(EventPosition, &[u8])>> {
    let mut events = Vec::new();
    if block.is_empty() {
        return Some(events);
    }
    let mut from = Reader(block);
    from.byte().filter(|format| *format == BLOCK_FORMAT)?;
    let mut last = EventPosition { millis: from.number()?, seq: from.number()?, bucket };
    while !from.0.is_empty() {
        let (length, micros) = (from.u16()?, from.number()?);
        let millis = micros / 1000;
        last = if millis > last.millis {
            EventPosition { millis, seq: 0, bucket }
        } else {
            EventPosition { seq: last.seq + 1, ..last }
        };
        events.push((last, from.take(length.into())?));
    }
    Some(events)
}

/// Returns the beginning of a block whose events follow this position.
fn block_head(last: EventPosition) -> Vec<u8> {
    let mut head = vec![BLOCK_FORMAT];
    codec::double(&mut head, last.millis);
    codec::double(&mut head, last.seq);
    head
}

/// Moves recent events of buckets in the background. No caller waits for it.
pub(super) struct EventMover {
    connections: Arc<Connections>,
    keys: Arc<Keys>,
    /// Maximum number of events in each bucket.
    bucket_events: u32,
    /// For each bucket the number of operations of this process that end a lease or a ticket.
    operations: Vec<AtomicU32>,
}

impl EventMover {
    pub(super) fn new(connections: Arc<Connections>, keys: Arc<Keys>, bucket_events: u32) -> Arc<Self> {
        // Many processes may end only a few leases each: so each begins at a random number.
        let operations = (0..BUCKETS).map(|_| AtomicU32::new(fastrand::u32(..MOVE_AFTER))).collect();
        Arc::new(Self { connections, keys, bucket_events, operations })
    }

    /// Counts an operation that ends a lease or a ticket, and starts to move the events of its bucket if
    /// there may be many.
    pub(super) fn count(self: &Arc<Self>, name: &LockName) {
        let bucket = bucket_number(name.as_str());
        let before = self.operations[bucket].fetch_add(1, Ordering::Relaxed);
        if !before.wrapping_add(1).is_multiple_of(MOVE_AFTER) {
            return;
        }
        let Some(runtime) = self.connections.background_runtime() else { return };
        let mover = self.clone();
        runtime.spawn(async move {
            let Some(bucket) = mover.keys.buckets().nth(bucket) else { return };
            if let Err(error) = mover.move_events(bucket).await {
                tracing::debug!(%error, "recent events could not be moved; the next operations try it again");
            }
        });
    }

    /// Bounds the history by age: removes events before this time, and moves the recent events of all
    /// buckets that have many.
    pub(super) async fn prune(&self, oldest_millis: u64) -> Result<()> {
        let prune = self.keys.buckets().map(|bucket| async move {
            let with = |cmd: &mut Cmd| {
                add_keys(cmd, bucket);
                cmd.arg(oldest_millis).arg(MAX_RECENT);
            };
            let is_long: u8 = PRUNE.run(&self.connections, ScriptCall::new(Repeat::Safe), with).await?;
            if is_long == 1 { self.move_events(bucket).await } else { Ok(()) }
        });
        futures_util::future::try_join_all(prune).await.map(drop)
    }

    /// Moves the recent events of a bucket. Another process may do so at the same time: then nothing
    /// happens.
    async fn move_events(&self, bucket: &Bucket) -> Result<()> {
        let mut cmd = redis::cmd("GET");
        let recent: Option<Vec<u8>> = self.connections.query(cmd.arg(&bucket.recent)).await?;
        let mut recent = recent.unwrap_or_default();
        if recent.len() < MIN_MOVED {
            return Ok(());
        }
        let call = || ScriptCall::new(Repeat::Safe);
        if recent.first() != Some(&BLOCK_FORMAT) {
            recent = MOVE_EVENTS.run(&self.connections, call(), |cmd| add_keys(cmd, bucket)).await?;
        }
        let events = packed_events(&recent, 0).ok_or_else(|| unreadable("the recent events of locks"))?;
        let Some((last, _)) = events.last() else { return Ok(()) };
        let count = u32::try_from(events.len()).unwrap_or(u32::MAX);
        let with = |cmd: &mut Cmd| {
            add_keys(cmd, bucket);
            cmd.arg(&recent[..BLOCK_HEAD_SIZE]).arg(recent.len()).arg(last.id());
            cmd.arg(self.bucket_events.div_ceil(count)).arg(block_head(*last));
        };
        MOVE_EVENTS.run::<u32>(&self.connections, call(), with).await.map(drop)
    }
}

/// Adds the keys of the history of a bucket.
pub(super) fn add_keys(cmd: &mut Cmd, bucket: &Bucket) {
    cmd.arg(3).arg(&bucket.blocks).arg(&bucket.recent).arg(&bucket.events);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(after: (u64, u64), micros: &[u64]) -> Vec<u8> {
        let mut block = block_head(EventPosition { millis: after.0, seq: after.1, bucket: 0 });
        for micros in micros {
            block.extend(3_u16.to_be_bytes());
            codec::double(&mut block, *micros);
            block.extend(b"abc");
        }
        block
    }

    #[test]
    fn positions_rise_also_when_the_clock_goes_back() {
        let block = block((5, 8), &[5_000, 5_900, 7_001, 7_002, 4_000, 9_000]);
        let positions: Vec<_> = packed_events(&block, 3)
            .unwrap()
            .into_iter()
            .map(|(position, event)| {
                assert_eq!((event, position.bucket), (&b"abc"[..], 3));
                (position.millis, position.seq)
            })
            .collect();
        assert_eq!(positions, [(5, 9), (5, 10), (7, 0), (7, 1), (7, 2), (9, 0)]);
    }

    #[test]
    fn incomplete_blocks_are_rejected() {
        let block = block((5, 8), &[5_000]);
        assert_eq!(packed_events(&block, 0).unwrap().len(), 1);
        assert_eq!(packed_events(b"", 0).unwrap(), []);
        for length in (1..block.len()).filter(|length| *length != BLOCK_HEAD_SIZE) {
            assert!(packed_events(&block[..length], 0).is_none(), "{length} bytes");
        }
        assert!(events(&[7; 40], 0).is_err());
    }
}
