//! The slot of the tasks moves to another node of a Cluster, key by key.

use std::time::Duration;

use leasehold::model::{Enqueued, Ttl};
use leasehold::store::redis::RedisStore;

use super::support::{lease, new_task, tasks};
use crate::engines::redis::cluster::MovingSlot;
use crate::engines::redis::support::options;

#[tokio::test]
async fn a_task_that_is_refused_while_the_slot_moves_can_be_added_afterwards() {
    let moving = MovingSlot::of("p:{t}:tasks").await;
    let store = RedisStore::connect(options(&moving.url(), "p")).await.unwrap();
    tasks(&store).enqueue(&[new_task()]).await.unwrap();
    moving.begin().await;
    // The records stay for now.
    moving.move_keys(&["p:{t}:ids".to_owned()]).await;
    let new = [new_task()];
    let error = tasks(&store).enqueue(&new).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    moving.finish().await;
    let repeated = async {
        loop {
            match tasks(&store).enqueue(&new).await {
                Ok(added) => return added,
                // The client still sends to the old node.
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let added = tokio::time::timeout(Duration::from_mins(1), repeated).await.expect("the slot has moved");
    assert_eq!(added, [Enqueued::Added(new[0].id)]);
    assert_eq!(lease(&store, 9, Ttl::from_secs(30)).await.tasks.len(), 2);
}
