//! Sentinels: the store finds the master, also after a failover.

use std::time::Duration;

use leasehold::Leasehold;

use super::server::Server;
use super::support::prefix;
use crate::engines::support::engine_at;

#[tokio::test]
async fn the_sentinels_know_where_the_master_is() {
    let url = engine_at("redis-sentinel");
    let leasehold = Leasehold::connect(&format!("{url}?prefix={}", prefix())).await.unwrap();
    leasehold.lock("lock").acquire().await.unwrap().release().await.unwrap();
    let error = Leasehold::connect(&format!("{url}-not")).await.unwrap_err();
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error:?}");
}

#[tokio::test]
async fn after_a_failover_tokens_still_rise() {
    let mut master = Server::start(&[]).await;
    let follows = format!("replicaof 127.0.0.1 {}", master.port());
    let replica = Server::start(&[&follows, "repl-diskless-sync-delay 0"]).await;
    let watch = format!("sentinel monitor locks 127.0.0.1 {} 1", master.port());
    let settings =
        [&watch, "sentinel down-after-milliseconds locks 300", "sentinel failover-timeout locks 2000"];
    let sentinel = Server::start_sentinel(&settings).await;
    let leasehold =
        Leasehold::connect(&format!("redis+sentinel://127.0.0.1:{}/locks", sentinel.port())).await.unwrap();
    let held = leasehold.lock("lock").acquire().await.unwrap();
    let replica_known = async {
        loop {
            let info: String = master.command(&["INFO", "replication"]).await.unwrap();
            let replicas: Vec<::redis::Value> =
                sentinel.command(&["SENTINEL", "REPLICAS", "locks"]).await.unwrap();
            if info.contains("state=online") && replicas.len() == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), replica_known)
        .await
        .expect("the Sentinel sees the replica");
    master.kill();
    let again = async {
        loop {
            match leasehold.lock("other").acquire().await {
                Ok(guard) => return guard,
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let other =
        tokio::time::timeout(Duration::from_mins(1), again).await.expect("a failover within a minute");
    assert!(other.token() > held.token());
    let role: Vec<::redis::Value> = replica.command(&["ROLE"]).await.unwrap();
    assert_eq!(role[0], ::redis::Value::BulkString(b"master".to_vec()));
}
