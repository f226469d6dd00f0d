//! From turns to figures: how long a hand-over takes, and whether the queue is fair.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use crate::measure::{Turn, Window};

/// What the turns of one window say.
#[derive(Debug)]
pub(crate) struct HandOvers {
    /// From the call that releases to the next holder's knowing that it has the lock. A client that takes back what it
    /// has just released has handed nothing over.
    pub(crate) latency: Histogram<u64>,
    /// How many turns each client had, by its number.
    pub(crate) shares: BTreeMap<u32, u64>,
    /// The most turns that one client began to ask for and got while another was already waiting, and went on to.
    pub(crate) overtaken: u64,
    /// How long somebody had the lock, in nanoseconds.
    pub(crate) held: u64,
}

impl HandOvers {
    pub(crate) fn of(mut turns: Vec<Turn>, clients: u32, window: Window) -> Result<Self> {
        turns.sort_by_key(|turn| turn.token);
        let mut found = Self { latency: Histogram::new(3)?, shares: BTreeMap::new(), overtaken: 0, held: 0 };
        found.shares.extend((0..clients).map(|client| (client, 0)));
        for at in 1..turns.len() {
            let (before, turn) = (turns[at - 1], turns[at]);
            ensure!(turn.token != before.token, "token {} was given twice", turn.token);
            ensure!(turn.got >= before.gave, "two clients had the lock at once: {before:?}, {turn:?}");
            if (window.from..window.until).contains(&turn.got) {
                if turn.client != before.client {
                    found.latency.record(turn.got - before.gave)?;
                }
                found.held += turn.gave.min(window.until) - turn.got;
                *found.shares.entry(turn.client).or_default() += 1;
                found.overtaken = found.overtaken.max(overtaken(&turns[..at], turn));
            }
        }
        Ok(found)
    }
}

/// The most turns that one other client began to ask for when this one was already waiting, and got before it.
fn overtaken(before: &[Turn], turn: Turn) -> u64 {
    let mut by = BTreeMap::<u32, u64>::new();
    let while_waiting = before.iter().rev().take_while(|other| other.got > turn.queued);
    for other in while_waiting.filter(|other| other.asked > turn.queued) {
        *by.entry(other.client).or_default() += 1;
    }
    by.into_values().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { from: 0, until: 1000 };

    fn turn(token: u64, client: u32, asked: u64, got: u64) -> Turn {
        Turn { token, client, asked, queued: asked, got, gave: got }
    }

    #[test]
    fn turns_in_order_are_fair() {
        let turns = vec![turn(3, 0, 21, 40), turn(1, 0, 10, 20), turn(2, 1, 11, 30)];
        let found = HandOvers::of(turns, 2, WINDOW).unwrap();
        assert_eq!((found.overtaken, found.shares), (0, BTreeMap::from([(0, 1), (1, 1)])));
        assert_eq!((found.latency.len(), found.latency.max()), (2, 10));
    }

    #[test]
    fn a_second_turn_before_one_who_waits_is_seen() {
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
