//! The slot of the tasks moves to another node of a Cluster, key by key.

use std::time::Duration;

use leasehold::model::{Enqueued, Ttl};
use leasehold::store::redis::RedisStore;

use super::support::{lease, new_task, tasks};
use crate::engines::redis::server::{Server, free_port};
use crate::engines::redis::support::options;

/// Slots of each of two nodes.
const SLOTS: [[&str; 2]; 2] = [["0", "8191"], ["8192", "16383"]];

/// Starts a Cluster of two nodes.
async fn two_nodes() -> [Server; 2] {
    let buses = [free_port(), free_port()];
    let [one, two] = buses.map(|bus| format!("cluster-port {bus}"));
    let nodes = [
        Server::start(&["cluster-enabled yes", &one]).await,
        Server::start(&["cluster-enabled yes", &two]).await,
    ];
    for ((node, [first, last]), epoch) in nodes.iter().zip(SLOTS).zip(["1", "2"]) {
        node.command::<String>(&["CLUSTER", "ADDSLOTSRANGE", first, last]).await.unwrap();
        node.command::<String>(&["CLUSTER", "SET-CONFIG-EPOCH", epoch]).await.unwrap();
    }
    let (port, bus) = (nodes[1].port().to_string(), buses[1].to_string());
    nodes[0].command::<String>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await.unwrap();
    let have_met = async {
        for node in &nodes {
            loop {
                let info: String = node.command(&["CLUSTER", "INFO"]).await.unwrap();
                if info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2") {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_mins(1), have_met).await.expect("the nodes meet within a minute");
    nodes
}

async fn id(node: &Server) -> String {
    node.command(&["CLUSTER", "MYID"]).await.unwrap()
}

async fn move_keys(from: &Server, to: &Server, keys: &[String]) {
    let port = to.port().to_string();
    let mut arguments = vec!["MIGRATE", "127.0.0.1", port.as_str(), "", "0", "5000", "KEYS"];
    arguments.extend(keys.iter().map(String::as_str));
    assert_eq!(from.command::<String>(&arguments).await.unwrap(), "OK");
}

#[tokio::test]
async fn a_task_that_is_refused_while_the_slot_moves_can_be_added_afterwards() {
    let [one, two] = two_nodes().await;
    let slot: u16 = one.command(&["CLUSTER", "KEYSLOT", "p:{t}:tasks"]).await.unwrap();
    let (from, to) = if slot < 8192 { (one, two) } else { (two, one) };
    let (slot, from_id, to_id) = (slot.to_string(), id(&from).await, id(&to).await);
    let url = format!("redis+cluster://127.0.0.1:{}?nodes=127.0.0.1:{}", from.port(), to.port());
    let store = RedisStore::connect(options(&url, "p")).await.unwrap();
    tasks(&store).enqueue(&[new_task()]).await.unwrap();
    to.command::<String>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await.unwrap();
    from.command::<String>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await.unwrap();
    // The records stay for now.
    move_keys(&from, &to, &["p:{t}:ids".to_owned()]).await;
    let new = [new_task()];
    let error = tasks(&store).enqueue(&new).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    let keys: Vec<String> = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await.unwrap();
    move_keys(&from, &to, &keys).await;
    for node in [&to, &from] {
        node.command::<String>(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await.unwrap();
    }
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
