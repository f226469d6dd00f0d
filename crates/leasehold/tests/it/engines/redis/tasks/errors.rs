//! Permissions for tasks and documents, tasks in an unknown format, and missing replicas.

use std::time::Duration;

use leasehold::model::{
    AttemptResult, Enqueued, FinishedFilter, HeldTask, LockName, Message, NewTask, Settle, TaskKey,
    Timestamp, Ttl,
};
use leasehold::store::redis::RedisStore;
use leasehold::store::{ListTasks, NewDocument, PutIf, Store};

use super::support::{done, lease, new_task, queue, tasks};
use crate::engines::redis::server::{Server, connect};
use crate::engines::redis::support::options;

/// Permissions that docs/engines/redis.md adds to those for locks.
const MORE: &str = "ACL SETUSER locks +hget +hmget +hgetall +hset +hsetnx +hdel +hexists +hincrby \
                    +sadd +smembers +sismember +zrange +zrevrangebylex +zpopmin +zcard";

#[tokio::test]
async fn the_documented_permissions_are_enough() {
    let page = include_str!("../../../../../../../docs/engines/redis.md").replace(" \\\n    ", " ");
    assert!(page.contains(MORE), "docs/engines/redis.md should have this line:\n{MORE}");
    let locks = page.lines().find(|line| line.starts_with("ACL SETUSER locks on ")).unwrap();
    let server = Server::start(&[]).await;
    for line in [locks, MORE] {
        server.command::<String>(&line.split_whitespace().collect::<Vec<_>>()).await.unwrap();
    }
    let url = format!("redis://locks:s3cr3t@127.0.0.1:{}", server.port());
    let store = RedisStore::connect(options(&url, "leasehold")).await.unwrap();
    let _arrivals = tasks(&store).subscribe_queues(&[queue()]);
    let new = || NewTask {
        key: TaskKey::new(uuid::Uuid::now_v7().to_string()).ok(),
        lock: LockName::new("l").ok(),
        ..new_task()
    };
    tasks(&store).enqueue(&[new(), new(), new_task()]).await.unwrap();
    let leased = lease(&store, 2, Ttl::from_secs(30)).await.tasks;
    let held = HeldTask::new(leased[0].id, leased[0].token);
    let info = leasehold::testing::task_fixture::info(1);
    tasks(&store).heartbeat(&info, &[held], Ttl::from_secs(30)).await.unwrap();
    let fail = Settle { result: AttemptResult::Fail(Message::new("no")), ..done(&leased[1]) };
    tasks(&store).settle(&[done(&leased[0]), fail]).await.unwrap();
    tasks(&store).recover(10).await.unwrap();
    tasks(&store).pause(&queue(), None).await.unwrap();
    assert_eq!(tasks(&store).list(&ListTasks::default()).await.unwrap().items.len(), 3);
    assert_eq!(tasks(&store).workers().await.unwrap().len(), 1);
    tasks(&store).deregister(info.id).await.unwrap();
    let filter =
        FinishedFilter { queue: None, state: None, before: Timestamp::from_micros(u64::MAX), limit: 9 };
    assert_eq!(tasks(&store).archive(&filter).await.unwrap(), 2);
    assert_eq!(tasks(&store).purge(&filter).await.unwrap(), 2);
    let docs = store.documents().unwrap();
    let draft = NewDocument::new("b").keep(Ttl::from_secs(60));
    assert!(matches!(docs.put_if("d", None, draft).await.unwrap(), PutIf::Written(_)));
    assert_eq!(docs.list("", None, 0).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn a_task_in_a_later_format_is_reported_and_kept() {
    let server = Server::start(&[]).await;
    let store = RedisStore::connect(options(&server.url(), "p")).await.unwrap();
    let new = new_task();
    tasks(&store).enqueue(std::slice::from_ref(&new)).await.unwrap();
    let id = new.id.as_uuid().as_bytes().to_vec();
    let mut conn = connect(&server.url()).await.unwrap();
    let mut hset = ::redis::cmd("HSET");
    hset.arg("p:{t}:tasks").arg(&id).arg([[9_u8; 60].as_slice(), &[0; 60]].concat());
    hset.query_async::<u64>(&mut conn).await.unwrap();
    let request = leasehold::model::LeaseTasks::new(
        leasehold::testing::task_fixture::worker(1),
        vec![queue()],
        1,
        Ttl::from_secs(30),
    );
    let error = tasks(&store).lease(&request).await.unwrap_err();
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error:?}");
    let pending: u64 = ::redis::cmd("ZCARD").arg("p:{t}:r:q").query_async(&mut conn).await.unwrap();
    assert_eq!(pending, 1, "a newer version can still lease it");
}

/// Opens a store that requires one replica.
async fn replicated(server: &Server) -> RedisStore {
    let mut options = options(&server.url(), "p");
    options.wait_replicas = 1;
    RedisStore::connect(options).await.unwrap()
}

#[tokio::test]
async fn a_change_without_replicas_fails_and_can_be_repeated() {
    let server = Server::start(&[]).await;
    let replicated = replicated(&server).await;
    let new = [new_task()];
    let error = tasks(&replicated).enqueue(&new).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("0 of 1 replicas"), "{error}");
    let store = RedisStore::connect(options(&server.url(), "p")).await.unwrap();
    tasks(&store).enqueue(&new).await.unwrap();
    assert_eq!(lease(&store, 9, Ttl::from_secs(30)).await.tasks.len(), 1);
}

/// The second store finds the task that the first one has added, and changes nothing.
#[tokio::test]
async fn a_repeated_change_that_no_replica_has_fails_again() {
    let server = Server::start(&["repl-diskless-sync-delay 0"]).await;
    let replica = Server::start(&[&format!("replicaof 127.0.0.1 {}", server.port())]).await;
    let is_online = async {
        while !server.command::<String>(&["INFO", "replication"]).await.unwrap().contains("state=online") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), is_online).await.expect("the replica follows");
    replica.signal("STOP");
    let new = [new_task()];
    for _ in 0..2 {
        let error = tasks(&replicated(&server).await).enqueue(&new).await.unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("0 of 1 replicas"), "{error}");
    }
    // Before Redis 7.2, the second call would also fail without this write.
    assert!(server.calls("set").await >= 2);
    replica.signal("CONT");
    let store = replicated(&server).await;
    let repeated = async {
        loop {
            match tasks(&store).enqueue(&new).await {
                Ok(added) => return added,
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
    };
    let added = tokio::time::timeout(Duration::from_mins(1), repeated).await.expect("the replica continues");
    assert_eq!(added, [Enqueued::Added(new[0].id)]);
}
