//! Race between clients: exactly one wins.

use std::time::Duration;

use leasehold::{Error, Leasehold};
use tokio::task::JoinSet;

use super::support::Served;

const CLIENTS: usize = 2;
const EACH: usize = 16;
const ROUNDS: usize = 200;

/// In each round 32 callers over two clients request the same lock: exactly one gets it, with a
/// higher token than before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_winner_each() {
    let served = Served::on_memory();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Leasehold::connect(&served.url()).await.unwrap());
    }
    let mut newest = 0;
    for round in 0..ROUNDS {
        let mut asks = JoinSet::new();
        for number in 0..CLIENTS * EACH {
            let client = &clients[(number + round) % CLIENTS];
            asks.spawn(client.lock("race").ttl(Duration::from_secs(30)).acquire());
        }
        let answers = asks.join_all().await;
        let won: Vec<_> = answers
            .into_iter()
            .filter_map(|answer| match answer {
                Ok(guard) => Some(guard),
                Err(Error::Conflict { .. }) => None,
                Err(other) => panic!("{other}: {other:?}"),
            })
            .collect();
        let [guard] = &won[..] else { panic!("round {round}: not one winner but {}", won.len()) };
        assert!(guard.token().get() > newest, "round {round}");
        newest = guard.token().get();
        for guard in won {
            guard.release().await.unwrap();
        }
    }
}
