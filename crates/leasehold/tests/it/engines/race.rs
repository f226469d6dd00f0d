//! Race between processes for one lock: exactly one wins.

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
/// Environment variable with the URL of the store; set only for the processes of the race.
const STORE: &str = "LEASEHOLD_TEST_RACE_STORE";
/// Prefix of the output of a process of the race: the test runner writes to the same line.
const PREFIX: &str = "race: ";

/// In each round, 16 clients in two processes request the same lock at once without waiting: exactly one gets it, with
/// a token above all earlier ones.
pub(super) fn one_winner_each(url: &str) {
    let mut racers: Vec<_> = (0..PROCESSES).map(|_| Racer::start(url)).collect();
    let mut newest = 0;
    let mut winners = BTreeSet::new();
    for round in 0..ROUNDS {
        for racer in &mut racers {
            racer.send("go");
        }
        let tokens: Vec<Vec<u64>> = racers.iter_mut().map(Racer::tokens).collect();
        let [token] = tokens.concat()[..] else { panic!("round {round}: not one winner but {tokens:?}") };
        assert!(token > newest, "round {round}: token {token} after {newest}");
        newest = token;
        let winner = tokens.iter().position(|won| !won.is_empty());
        winners.extend(winner.map(|index| racers[index].child.id()));
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
    let mut racers: Vec<_> = (0..PROCESSES).map(|_| Racer::start(url)).collect();
    for racer in &mut racers {
        racer.send(&format!("turns {turns}"));
    }
    let mut turns_taken: Vec<_> = racers.iter_mut().flat_map(Racer::turns).collect();
    assert_eq!(turns_taken.len(), PROCESSES * CLIENTS * turns);
    turns_taken.sort_unstable();
    for pair in turns_taken.windows(2) {
        let [(before, _, released), (token, acquired, _)] = *pair else { unreachable!("two") };
        assert!(token > before, "token {token} was issued twice");
        assert!(acquired >= released, "{token} was acquired at {acquired}, {before} released at {released}");
    }
}

/// Process of the race: this test binary, which runs only the test `race_process`.
struct Racer {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Racer {
    fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "engines::race::race_process"])
            .env(STORE, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut racer = Self { child, output };
        assert!(racer.tokens().is_empty(), "a new process holds no lock");
        racer
    }

    fn send(&mut self, command: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{command}").unwrap();
    }

    /// Returns the tokens that its clients hold.
    fn tokens(&mut self) -> Vec<u64> {
        self.receive().split_whitespace().map(|token| token.parse().unwrap()).collect()
    }

    /// Returns the turns of its clients: the token, and the times of acquisition and release in microseconds.
    fn turns(&mut self) -> Vec<(u64, u128, u128)> {
        let turn = |fields: &str| {
            let mut fields = fields.split(',');
            let mut next = || fields.next().unwrap();
            (next().parse().unwrap(), next().parse().unwrap(), next().parse().unwrap())
        };
        self.receive().split_whitespace().map(turn).collect()
    }

    fn receive(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "a process of the race has ended");
            if let Some((_, reply)) = line.split_once(PREFIX) {
                return reply.to_owned();
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

/// Does nothing unless the environment variable of the race is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn race_process() {
    let Ok(url) = std::env::var(STORE) else { return };
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Leasehold::connect(&url).await.unwrap());
    }
    let mut held = Vec::new();
    report(&held);
    while let Some(command) = tokio::task::block_in_place(read_command) {
        if let Some(turns) = command.strip_prefix("turns ") {
            println!("{PREFIX}{}", take_turns(&clients, turns.parse().unwrap()).await.join(" "));
            continue;
        }
        match command.as_str() {
            "go" => held = acquire_all(&clients).await,
            "free" => {
                for guard in held.drain(..) {
                    guard.release().await.unwrap();
                }
            }
            other => panic!("unknown command {other}"),
        }
        report(&held);
    }
}

async fn acquire_all(clients: &[Leasehold]) -> Vec<Guard> {
    let mut requests = JoinSet::new();
    for client in clients {
        requests.spawn(client.lock(LOCK).ttl(Duration::from_secs(30)).acquire());
    }
    let answers = requests.join_all().await;
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
    let mut tasks = JoinSet::new();
    for client in clients {
        let client = client.clone();
        tasks.spawn(async move {
            let mut turns = Vec::new();
            for _ in 0..count {
                let guard = loop {
                    match client.lock(LOCK).wait(Duration::from_mins(1)).acquire().await {
                        Ok(guard) => break guard,
                        Err(error) => must_be_busy(error),
                    }
                };
                let (token, acquired) = (guard.token(), micros());
                tokio::task::yield_now().await;
                turns.push(format!("{token},{acquired},{}", micros()));
                guard.release().await.unwrap_or_else(must_be_busy);
            }
            turns
        });
    }
    tasks.join_all().await.concat()
}

/// Panics unless the engine was unavailable: on a busy machine it may exceed the timeout of a call.
fn must_be_busy(error: Error) {
    match error {
        Error::Store { kind: StoreErrorKind::Unavailable, .. } => {}
        other => panic!("{other:?}"),
    }
}

/// Returns the wall clock, which both processes share.
fn micros() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros()
}

fn read_command() -> Option<String> {
    std::io::stdin().lines().next().map(Result::unwrap)
}

fn report(held: &[Guard]) {
    let tokens: Vec<_> = held.iter().map(|guard| guard.token().to_string()).collect();
    println!("{PREFIX}{}", tokens.join(" "));
}
