//! Race between processes for one lock: exactly one wins.

use std::collections::BTreeSet;

use super::process::Process;

const PROCESSES: usize = 2;
/// Clients of each process.
const CLIENTS: usize = 8;
const ROUNDS: usize = 200;

/// In each round, 16 clients in two processes request the same lock at once without waiting: exactly one gets it, with
/// a token above all earlier ones.
pub(super) fn one_winner_each(url: &str) {
    let mut racers: Vec<_> = (0..PROCESSES).map(|_| Process::racer(url)).collect();
    let mut newest = 0;
    let mut winners = BTreeSet::new();
    for round in 0..ROUNDS {
        for racer in &mut racers {
            racer.send("go");
        }
        let tokens: Vec<Vec<u64>> = racers.iter_mut().map(Process::tokens).collect();
        let [token] = tokens.concat()[..] else { panic!("round {round}: not one winner but {tokens:?}") };
        assert!(token > newest, "round {round}: token {token} after {newest}");
        newest = token;
        let winner = tokens.iter().position(|won| !won.is_empty());
        winners.extend(winner.map(|index| racers[index].id()));
        // All clients release the lock before the next round begins.
        for racer in &mut racers {
            racer.send("free");
            assert!(racer.tokens().is_empty());
        }
        // Another process gets the next command first.
        racers.rotate_left(1);
    }
    assert_eq!(winners.len(), PROCESSES, "one process won all {ROUNDS} rounds: there was no race");
}

/// 16 clients in two processes wait for the same lock, `turns` times each: one client holds it at a time, each token is
/// above the one before, and every client gets all its turns.
pub(super) fn one_at_a_time(url: &str, turns: usize) {
    let mut racers: Vec<_> = (0..PROCESSES).map(|_| Process::racer(url)).collect();
    for racer in &mut racers {
        racer.send(&format!("turns {turns}"));
    }
    let mut turns_taken: Vec<_> = racers.iter_mut().flat_map(Process::turns).collect();
    assert_eq!(turns_taken.len(), PROCESSES * CLIENTS * turns);
    turns_taken.sort_unstable();
    for pair in turns_taken.windows(2) {
        let [(before, _, released), (token, acquired, _)] = *pair else { unreachable!("two") };
        assert!(token > before, "token {token} was issued twice");
        assert!(acquired >= released, "{token} was acquired at {acquired}, {before} released at {released}");
    }
}

impl Process {
    fn racer(url: &str) -> Self {
        let mut racer = Self::start(&["race", url]);
        assert!(racer.tokens().is_empty(), "a new process holds no lock");
        racer
    }

    fn reply(&mut self) -> String {
        self.receive().expect("a process of the race has ended")
    }

    /// Returns the tokens that its clients hold.
    fn tokens(&mut self) -> Vec<u64> {
        self.reply().split_whitespace().map(|token| token.parse().unwrap()).collect()
    }

    /// Returns the turns of its clients: the token, and the times of acquisition and release in microseconds.
    fn turns(&mut self) -> Vec<(u64, u128, u128)> {
        let turn = |fields: &str| {
            let mut fields = fields.split(',');
            let mut next = || fields.next().unwrap();
            (next().parse().unwrap(), next().parse().unwrap(), next().parse().unwrap())
        };
        self.reply().split_whitespace().map(turn).collect()
    }
}
