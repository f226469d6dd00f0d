//! What the engine finds out about its server.

use leasehold::store::redis::RedisStore;
use leasehold::store::{HealthCheck, Store};

use super::private::Server;
use super::support::{options, prefix};
use crate::engines::support::engine_at;

async fn check_health(url: &str) -> Vec<HealthCheck> {
    RedisStore::connect(options(url, &prefix())).await.unwrap().check_health().await.unwrap()
}

fn codes(findings: &[HealthCheck]) -> Vec<&'static str> {
    findings.iter().filter_map(|finding| finding.concern.as_ref()).map(|concern| concern.code).collect()
}

#[tokio::test]
async fn a_server_that_is_set_up_well_gives_no_concern() {
    let Some(server) = Server::start(&["appendonly yes"]).await else { return };
    let findings = check_health(&server.url()).await;
    assert_eq!(codes(&findings), Vec::<&str>::new(), "{findings:?}");
    let names: Vec<_> = findings.iter().map(|finding| finding.name).collect();
    assert_eq!(names, ["address", "version", "eviction", "persistence", "role"]);
}

#[tokio::test]
async fn settings_that_break_a_promise_are_found() {
    let Some(server) = Server::start(&["maxmemory 100mb", "maxmemory-policy allkeys-lru"]).await else {
        return;
    };
    assert_eq!(codes(&check_health(&server.url()).await), ["REDIS_EVICTION", "REDIS_NO_AOF"]);
    for (setting, value) in
        [("maxmemory-policy", "volatile-ttl"), ("appendonly", "yes"), ("appendfsync", "no")]
    {
        server.says::<String>(&["CONFIG", "SET", setting, value]).await.unwrap();
    }
    assert_eq!(codes(&check_health(&server.url()).await), ["REDIS_EVICTION", "REDIS_FSYNC"]);
    // Without a limit nothing is evicted, whatever the policy.
    server.says::<String>(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    assert_eq!(codes(&check_health(&server.url()).await), ["REDIS_FSYNC"]);
}

#[tokio::test]
async fn what_a_user_may_not_see_is_no_trouble() {
    let Some(server) = Server::start(&["appendonly yes"]).await else { return };
    for acl in
        ["ACL SETUSER half on >x ~* &* +@all -config", "ACL SETUSER blind on >x ~* &* +@all -info -config"]
    {
        server.says::<String>(&acl.split_whitespace().collect::<Vec<_>>()).await.unwrap();
    }
    for (user, said) in [("half", "CONFIG"), ("blind", "INFO")] {
        let findings = check_health(&format!("redis://{user}:x@127.0.0.1:{}", server.port())).await;
        assert_eq!(codes(&findings), Vec::<&str>::new());
        assert!(findings.iter().any(|finding| finding.detail.contains(said)), "{findings:?}");
    }
}

#[tokio::test]
async fn a_cluster_tells_its_state() {
    let Some(url) = engine_at("redis-cluster") else { return };
    let findings = check_health(&url).await;
    let cluster = findings.iter().find(|finding| finding.name == "cluster").expect("a line on the cluster");
    assert_eq!(cluster.detail, "state ok, 16384 of 16384 slots in order");
}

#[tokio::test]
async fn replicas_that_are_waited_for_must_be_there() {
    let Some(master) = Server::start(&["appendonly yes"]).await else { return };
    let url = format!("{}?wait_replicas=1", master.url());
    assert_eq!(codes(&check_health(&url).await), ["REDIS_REPLICAS"]);
    let leasehold = leasehold::Leasehold::connect(&url).await.unwrap();
    let error = leasehold.lock("lock").acquire().await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    // It was given back: with the replica there, the lock is free.
    let replica = Server::start(&[&format!("replicaof 127.0.0.1 {}", master.port())]).await.unwrap();
    let in_step = async {
        loop {
            let info: String = replica.says(&["INFO", "replication"]).await.unwrap();
            if info.contains("master_link_status:up") {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), in_step).await.expect("the replica follows");
    leasehold.lock("lock").acquire().await.unwrap().release().await.unwrap();
}
