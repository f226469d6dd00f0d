//! Tests of many clients at once: one of them wins.

use std::sync::Arc;

use leasehold::model::{LeaseId, LockName, Outcome};
use leasehold::store::{NewDocument, PutIf};
use leasehold::testing::TestClient;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::support::{client, new_id};
use crate::engines::github::support::fake;

const CLIENTS: usize = 8;
const ROUNDS: usize = 25;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_clients_one_wins_each_round() {
    let (fake, clock) = fake().await;
    let mut test_clients = Vec::new();
    for number in 0..CLIENTS {
        let login = ["ada", "bob", "eve"][number % 3];
        let store = client(&fake, login, &clock).await;
        test_clients.push(TestClient::new(store, new_id(), LockName::new("race").unwrap()));
    }
    let (mut newest, mut winners) = (0, std::collections::BTreeSet::new());
    for round in 0..ROUNDS {
        let mut asks = JoinSet::new();
        for (number, test_client) in test_clients.iter_mut().enumerate() {
            test_client.request.lease_id = LeaseId::from_uuid(Uuid::from_u128(new_id()));
            let test_client = test_client.clone();
            asks.spawn(async move { (number, test_client.try_acquire().await) });
        }
        let won = asks.join_all().await.into_iter().filter_map(|(number, outcome)| match outcome {
            Outcome::Granted(lease) => Some((number, lease)),
            _ => None,
        });
        let [(winner, lease)] = &won.collect::<Vec<_>>()[..] else { panic!("round {round}: not one winner") };
        assert!(lease.token.get() > newest, "round {round}");
        newest = lease.token.get();
        winners.insert(*winner);
        assert!(matches!(test_clients[*winner].release(lease).await, Outcome::Released(_)));
    }
    assert!(winners.len() > 1, "the clients did not compete");
    assert!(fake.repo().git.conflicts > 0, "the clients did not compete");
}

/// In git, two commits with the same content are the same commit: two writers must not both take it
/// for their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_equal_writes_in_the_same_second_one_succeeds() {
    let (fake, clock) = fake().await;
    let (one, two) = (client(&fake, "ada", &clock).await, client(&fake, "ada", &clock).await);
    let draft = || NewDocument::new("the same");
    for round in 0..10 {
        let key: Arc<str> = format!("key {round}").into();
        let PutIf::Written(first) = one.documents().unwrap().put_if(&key, None, draft()).await.unwrap()
        else {
            panic!("a conflict")
        };
        two.documents().unwrap().get(&key).await.unwrap();
        let put = |store: &Arc<dyn leasehold::store::Store>| {
            let (store, key) = (store.clone(), key.clone());
            tokio::spawn(async move {
                store.documents().unwrap().put_if(&key, Some(first), draft()).await.unwrap()
            })
        };
        let (a, b) = (put(&one), put(&two));
        let written = [a.await.unwrap(), b.await.unwrap()];
        let written = written.iter().filter(|put| matches!(put, PutIf::Written(_))).count();
        assert_eq!(written, 1, "round {round}");
    }
}
