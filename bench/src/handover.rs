//! Latency of hand-overs and fairness of the queue, from the turns of the clients.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use crate::measure::{Turn, Window};

#[derive(Debug)]
pub(crate) struct HandOvers {
    /// Time from the start of a release until the next holder has the lock. A client that acquires the lock
    /// again right after its own release is not counted.
    pub(crate) latency: Histogram<u64>,
    /// Number of turns of each client, by its number.
    pub(crate) shares: BTreeMap<u32, u64>,
    /// Maximum number of turns that one client requested and acquired while another client was waiting.
    pub(crate) overtaken: u64,
    /// Time for which the lock was held, in nanoseconds.
    pub(crate) held: u64,
}

impl HandOvers {
    pub(crate) fn of(mut turns: Vec<Turn>, clients: u32, window: Window) -> Result<Self> {
        turns.sort_by_key(|turn| turn.token);
        let mut found = Self { latency: Histogram::new(3)?, shares: BTreeMap::new(), overtaken: 0, held: 0 };
        found.shares.extend((0..clients).map(|client| (client, 0)));
        for at in 1..turns.len() {
            let (before, turn) = (turns[at - 1], turns[at]);
            ensure!(turn.token != before.token, "token {} was granted twice", turn.token);
            ensure!(
                turn.acquired >= before.released,
                "two clients held the lock at once: {before:?}, {turn:?}"
            );
            if (window.from..window.until).contains(&turn.acquired) {
                if turn.client != before.client {
                    found.latency.record(turn.acquired - before.released)?;
                }
                found.held += turn.released.min(window.until) - turn.acquired;
                *found.shares.entry(turn.client).or_default() += 1;
                found.overtaken = found.overtaken.max(overtaken(&turns[..at], turn));
            }
        }
        Ok(found)
    }
}

/// Returns the maximum number of turns that one other client requested after this one had queued, and acquired
/// before it.
fn overtaken(before: &[Turn], turn: Turn) -> u64 {
    let mut by = BTreeMap::<u32, u64>::new();
    let while_waiting = before.iter().rev().take_while(|other| other.acquired > turn.queued);
    for other in while_waiting.filter(|other| other.requested > turn.queued) {
        *by.entry(other.client).or_default() += 1;
    }
    by.into_values().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { from: 0, until: 1000 };

    fn turn(token: u64, client: u32, requested: u64, acquired: u64) -> Turn {
        Turn { token, client, requested, queued: requested, acquired, released: acquired }
    }

    #[test]
    fn turns_in_order_are_fair() {
        let turns = vec![turn(3, 0, 21, 40), turn(1, 0, 10, 20), turn(2, 1, 11, 30)];
        let found = HandOvers::of(turns, 2, WINDOW).unwrap();
        assert_eq!((found.overtaken, found.shares), (0, BTreeMap::from([(0, 1), (1, 1)])));
        assert_eq!((found.latency.len(), found.latency.max()), (2, 10));
    }

    #[test]
    fn a_second_turn_before_a_waiter_is_detected() {
        let turns = vec![turn(1, 0, 12, 20), turn(2, 0, 21, 30), turn(3, 1, 11, 40)];
        let found = HandOvers::of(turns, 2, WINDOW).unwrap();
        assert_eq!((found.overtaken, found.latency.len()), (2, 1));
    }

    #[test]
    fn two_holders_at_once_are_an_error() {
        let turns = vec![turn(1, 0, 10, 30), turn(2, 1, 11, 20)];
        assert!(HandOvers::of(turns, 2, WINDOW).is_err());
    }
}
