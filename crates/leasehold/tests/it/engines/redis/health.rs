//! Health checks of the server.

use leasehold::store::redis::RedisStore;
use leasehold::store::{HealthCheck, Store};

use super::server::Server;
use super::support::{options, prefix};
use crate::engines::support::engine_at;

async fn check_health(url: &str) -> Vec<HealthCheck> {
    RedisStore::connect(options(url, &prefix())).await.unwrap().check_health().await.unwrap()
}

fn codes(checks: &[HealthCheck]) -> Vec<&'static str> {
    checks.iter().filter_map(|check| check.issue.as_ref()).map(|issue| issue.code).collect()
}

#[tokio::test]
async fn a_well_configured_server_has_no_issues() {
    let server = Server::start(&["appendonly yes"]).await;
    let checks = check_health(&server.url()).await;
    assert_eq!(codes(&checks), Vec::<&str>::new(), "{checks:?}");
    let names: Vec<_> = checks.iter().map(|check| check.name).collect();
    assert_eq!(names, ["address", "version", "eviction", "persistence", "role"]);
}

#[tokio::test]
async fn settings_that_break_a_guarantee_are_found() {
    let server = Server::start(&["maxmemory 100mb", "maxmemory-policy allkeys-lru"]).await;
    assert_eq!(codes(&check_health(&server.url()).await), ["REDIS_EVICTION", "REDIS_NO_AOF"]);
    for (setting, value) in
        [("maxmemory-policy", "volatile-ttl"), ("appendonly", "yes"), ("appendfsync", "no")]
    {
        server.command::<String>(&["CONFIG", "SET", setting, value]).await.unwrap();
    }
    assert_eq!(codes(&check_health(&server.url()).await), ["REDIS_EVICTION", "REDIS_FSYNC"]);
    // Without a memory limit nothing is evicted, whatever the policy.
    server.command::<String>(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    assert_eq!(codes(&check_health(&server.url()).await), ["REDIS_FSYNC"]);
}

#[tokio::test]
async fn settings_hidden_from_a_user_are_no_issue() {
    let server = Server::start(&["appendonly yes"]).await;
    for acl in
        ["ACL SETUSER half on >x ~* &* +@all -config", "ACL SETUSER blind on >x ~* &* +@all -info -config"]
    {
        server.command::<String>(&acl.split_whitespace().collect::<Vec<_>>()).await.unwrap();
    }
    for (user, command) in [("half", "CONFIG"), ("blind", "INFO")] {
        let checks = check_health(&format!("redis://{user}:x@127.0.0.1:{}", server.port())).await;
        assert_eq!(codes(&checks), Vec::<&str>::new());
        assert!(checks.iter().any(|check| check.detail.contains(command)), "{checks:?}");
    }
}

#[tokio::test]
async fn a_user_that_cannot_end_connections_is_an_issue() {
    let server = Server::start(&["appendonly yes"]).await;
    for (user, denied) in [("nameless", "info"), ("harmless", "kill")] {
        let acl = format!("ACL SETUSER {user} on >x ~* &* +@all -client|{denied}");
        server.command::<String>(&acl.split_whitespace().collect::<Vec<_>>()).await.unwrap();
        let checks = check_health(&format!("redis://{user}:x@127.0.0.1:{}", server.port())).await;
        assert_eq!(codes(&checks), ["REDIS_NO_CLIENT_KILL"], "{checks:?}");
        let denied = denied.to_uppercase();
        assert!(checks.iter().any(|check| check.detail.contains(&denied)), "{checks:?}");
    }
}

#[tokio::test]
async fn the_state_of_a_cluster_is_reported() {
    let url = engine_at("redis-cluster");
    let checks = check_health(&url).await;
    let cluster = checks.iter().find(|check| check.name == "cluster").expect("a check of the cluster");
    assert_eq!(cluster.detail, "state ok, 16384 of 16384 slots ok");
}

#[tokio::test]
async fn a_grant_needs_the_required_replicas() {
    let master = Server::start(&["appendonly yes"]).await;
    let url = format!("{}?wait_replicas=1", master.url());
    assert_eq!(codes(&check_health(&url).await), ["REDIS_REPLICAS"]);
    let leasehold = leasehold::Leasehold::connect(&url).await.unwrap();
    let started = std::time::Instant::now();
    loop {
        let error = leasehold.lock("lock").acquire().await.unwrap_err();
        assert_eq!(error.code(), "STORE_UNAVAILABLE");
        if error.to_string().contains("0 of 1 replicas") {
            break;
        }
        // On a busy machine an answer may come late.
        assert!(started.elapsed() < std::time::Duration::from_mins(1), "{error}");
    }
    // The lease was withdrawn: once a replica is connected, the lock is free.
    let replica = Server::start(&[&format!("replicaof 127.0.0.1 {}", master.port())]).await;
    let is_connected = async {
        loop {
            let info: String = replica.command(&["INFO", "replication"]).await.unwrap();
            if info.contains("master_link_status:up") {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), is_connected)
        .await
        .expect("the replica is connected");
    leasehold.lock("lock").acquire().await.unwrap().release().await.unwrap();
}
