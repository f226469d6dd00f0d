//! A race between processes: whoever wins, there is one of them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::{Error, Guard, Leasehold, StoreErrorKind};
use tokio::task::JoinSet;

const PROCESSES: usize = 2;
const CLIENTS: usize = 8;
const ROUNDS: usize = 200;
const LOCK: &str = "race";
/// Where a process of the race finds its store; not set in any other.
const STORE: &str = "LEASEHOLD_TEST_RACE_STORE";
/// Before what a process of the race says: the test runner talks on the same line.
const SAYS: &str = "race: ";

/// In each round, 16 clients in two processes ask for the same lock at once and do not wait: exactly one gets it, with a
/// token above all before.
pub(super) fn one_winner_each(url: &str) {
    let mut racers: Vec<_> = (0..PROCESSES).map(|_| Racer::start(url)).collect();
    let mut newest = 0;
    let mut winners = BTreeSet::new();
    for round in 0..ROUNDS {
        for racer in &mut racers {
            racer.say("go");
        }
        let tokens: Vec<Vec<u64>> = racers.iter_mut().map(Racer::tokens).collect();
        let [token] = tokens.concat()[..] else { panic!("round {round}: not one winner but {tokens:?}") };
        assert!(token > newest, "round {round}: token {token} after {newest}");
        newest = token;
        let winner = tokens.iter().position(|won| !won.is_empty());
        winners.extend(winner.map(|place| racers[place].child.id()));
        // All let go before the next round begins.
        for racer in &mut racers {
            racer.say("free");
            assert!(racer.tokens().is_empty());
        }
        // Another one hears the next word first.
        racers.rotate_left(1);
    }
    assert_eq!(winners.len(), PROCESSES, "one process won all {ROUNDS} rounds: that was no race");
}

/// 16 clients in two processes stand in line for the same lock, again and again: one has it at a time, each one's token is
/// above that of the one before, and everybody's turn comes, so many times.
pub(super) fn one_at_a_time(url: &str, turns: usize) {
    let mut racers: Vec<_> = (0..PROCESSES).map(|_| Racer::start(url)).collect();
    for racer in &mut racers {
        racer.say(&format!("turns {turns}"));
    }
    let mut had: Vec<_> = racers.iter_mut().flat_map(Racer::turns).collect();
    assert_eq!(had.len(), PROCESSES * CLIENTS * turns);
    had.sort_unstable();
    for pair in had.windows(2) {
        let [(before, _, gave), (token, got, _)] = *pair else { unreachable!("two") };
        assert!(token > before, "token {token} was given twice");
        assert!(got >= gave, "token {token} came at {got}, {before} went at {gave}");
    }
}

/// A process of the race: this test binary once more, with one test.
struct Racer {
    child: Child,
    says: BufReader<std::process::ChildStdout>,
}

impl Racer {
    fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "engines::race::a_process_of_the_race"])
            .env(STORE, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let mut racer = Self { child, says };
        assert!(racer.tokens().is_empty(), "it has just begun");
        racer
    }

    fn say(&mut self, word: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{word}").unwrap();
    }

    /// The tokens that its clients have won.
    fn tokens(&mut self) -> Vec<u64> {
        self.hear().split_whitespace().map(|token| token.parse().unwrap()).collect()
    }

    /// The turns that its clients had: the token, and from when to when, in microseconds.
    fn turns(&mut self) -> Vec<(u64, u128, u128)> {
        let turn = |words: &str| {
            let mut words = words.split(',');
            let mut next = || words.next().unwrap();
            (next().parse().unwrap(), next().parse().unwrap(), next().parse().unwrap())
        };
        self.hear().split_whitespace().map(turn).collect()
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "a process of the race has ended");
            if let Some((_, said)) = line.split_once(SAYS) {
                return said.to_owned();
            }
        }
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing unless it was started for a race.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_the_race() {
    let Ok(url) = std::env::var(STORE) else { return };
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Leasehold::connect(&url).await.unwrap());
    }
    let mut held = Vec::new();
    report(&held);
    while let Some(word) = tokio::task::block_in_place(hear) {
        if let Some(turns) = word.strip_prefix("turns ") {
            println!("{SAYS}{}", take_turns(&clients, turns.parse().unwrap()).await.join(" "));
            continue;
        }
        match word.as_str() {
            "go" => held = ask_all(&clients).await,
            "free" => {
                for guard in held.drain(..) {
                    guard.release().await.unwrap();
                }
            }
            other => panic!("{other}?"),
        }
        report(&held);
    }
}

async fn ask_all(clients: &[Leasehold]) -> Vec<Guard> {
    let mut asks = JoinSet::new();
    for client in clients {
        asks.spawn(client.lock(LOCK).ttl(Duration::from_secs(30)).acquire());
    }
    let answers = asks.join_all().await;
    answers
        .into_iter()
        .filter_map(|answer| match answer {
            Ok(guard) => Some(guard),
            Err(Error::Conflict { .. }) => None,
            Err(other) => panic!("{other}: {other:?}"),
        })
        .collect()
}

async fn take_turns(clients: &[Leasehold], count: usize) -> Vec<String> {
    let mut crowd = JoinSet::new();
    for client in clients {
        let client = client.clone();
        crowd.spawn(async move {
            let mut turns = Vec::new();
            for _ in 0..count {
                let guard = loop {
                    match client.lock(LOCK).wait(Duration::from_mins(1)).acquire().await {
                        Ok(guard) => break guard,
                        Err(error) => must_be_busy(error),
                    }
                };
                let (token, got) = (guard.token(), micros());
                tokio::task::yield_now().await;
                turns.push(format!("{token},{got},{}", micros()));
                guard.release().await.unwrap_or_else(must_be_busy);
            }
            turns
        });
    }
    crowd.join_all().await.concat()
}

/// An engine on a busy machine may take longer than a call waits.
fn must_be_busy(error: Error) {
    match error {
        Error::Store { trouble: StoreErrorKind::Unavailable, .. } => {}
        other => panic!("{other:?}"),
    }
}

/// By a clock that both processes see.
fn micros() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros()
}

fn hear() -> Option<String> {
    std::io::stdin().lines().next().map(Result::unwrap)
}

fn report(held: &[Guard]) {
    let tokens: Vec<_> = held.iter().map(|guard| guard.token().to_string()).collect();
    println!("{SAYS}{}", tokens.join(" "));
}
