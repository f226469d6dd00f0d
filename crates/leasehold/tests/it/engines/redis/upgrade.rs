//! Data that an earlier version has written is read, and converted when it is changed.

use std::sync::Arc;

use leasehold::model::{
    AttemptResult, EventKind, LeaseId, LockName, LockOp, Outcome, QueueName, Release, Settle, Settled,
    TaskId, TaskState, Timestamp, Token,
};
use leasehold::store::redis::RedisStore;
use leasehold::store::{Clock, Cursor, EventRange, ListEvents, Store};
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use super::server::{Server, connect};
use super::support::open;

/// Lock of format 1: held by `ada` with lease 1, `bob` waits with lease 2.
const RECORD: &str = "01401000000000000043182890607900004318289062db5a140f313739343732373830343737362d30000100010000005f43\
    18289060790000431828906079000043182890607900244318289067a00e243ff0000000000000417c9c3800000000014318\
    28906079001c00000000000000000000000000000001000001036164610000000003657665066465706c6f79431828904b03\
    d61400000000000000000000000000000002";
const TICKET: &str = "43182890607900144318289062db5a14416312d000000000418c9c3800000000400800000000000002696e00000000000000\
    00000000000000000200000103626f62000000277b227072696f72697479223a332c226d65746164617461223a7b22686f73\
    74223a226831227d7d";
/// Time at which both are valid, and the token of the lease.
const NOW: u64 = 1_700_000_000_000_000;
/// Task of format 1: running, in the queue `mail` with the lock `l`.
const TASK: &str = "01030000000100030000000500060a24181e400000060a24181e400100060a24181e40000000000000000000000000010006\
    0a24181e4009000000000000000200060a24181e400900060a24181e400900060a2419e80389000000000000000001000000\
    031000000000000000000000000000000007046d61696c016c9c3e82dd6fcae8b10000001900000000000f424000000000d6\
    93a400016b7b2261223a317d0000000a7b22646f6e65223a317d00000000000000033d6e6f0000000000000000";
/// The same as it was before its first lease, without a lock.
const NEW_TASK: &str = "01020000000000030000000500060a24181e400000060a24181e400100060a24181e40000000000000000000\
    046d61696c009c3e82dd6fcae8b10000001900000000000f424000000000d693a400016b7b2261223a317d";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

struct OldStore {
    server: Server,
    conn: MultiplexedConnection,
}

impl OldStore {
    async fn start() -> Self {
        let server = Server::start(&[]).await;
        let conn = connect(&server.url()).await;
        Self { server, conn: conn.unwrap() }
    }

    async fn write(&mut self, words: &[&[u8]]) {
        let mut cmd = ::redis::Cmd::new();
        for word in words {
            cmd.arg(*word);
        }
        cmd.query_async::<::redis::Value>(&mut self.conn).await.unwrap();
    }

    async fn open(&self) -> Arc<RedisStore> {
        open(&self.server.url(), "leasehold", &Clock::manual(Timestamp::from_micros(NOW + 2_000_000))).await
    }
}

/// Packs an event as an earlier version did: kind 0 or 6, and the id of the event before.
fn old_event(kind: u8, before: &[u8], (id, holder): (u8, &[u8])) -> Vec<u8> {
    // `NOW` as a number of the scripts.
    let now = 1.7e15_f64.to_be_bytes();
    let (none, name) = (0_f64.to_be_bytes(), b"terraform-prod");
    let mut event = vec![kind];
    event.extend([now, now, none, none, none].concat());
    event.push(u8::try_from(before.len()).unwrap());
    event.extend(before);
    event.extend([0, 0, u8::try_from(name.len()).unwrap()]);
    event.extend(name);
    event.extend([[0; 15].as_slice(), &[id, 0, 0, 1, 3], holder].concat());
    event
}

#[tokio::test]
async fn a_lock_and_its_history_are_converted() {
    let mut old = OldStore::start().await;
    let (record, ticket) = (bytes(RECORD), bytes(TICKET));
    old.write(&[b"SET", b"leasehold:{35}:lock:terraform-prod", &record]).await;
    old.write(&[b"RPUSH", b"leasehold:{35}:queue:terraform-prod", &ticket]).await;
    old.write(&[b"ZADD", b"leasehold:{35}:names", b"0", b"terraform-prod"]).await;
    let events: [(&[u8], Vec<u8>); 2] = [
        (b"1700000000000-0", old_event(0, b"", (1, b"ada"))),
        (b"1700000000000-1", old_event(6, b"1700000000000-0", (2, b"bob"))),
    ];
    for (id, event) in &events {
        old.write(&[b"XADD", b"leasehold:{35}:events", id, b"e", event]).await;
    }

    let store = old.open().await;
    let name = LockName::new("terraform-prod").unwrap();
    let before = store.locks().get(&name).await.unwrap().unwrap();
    assert_eq!((before.holders.len(), before.waiters.len(), before.version), (1, 1, 4));
    let [ada, bob] = [1, 2].map(|number| LeaseId::from_uuid(Uuid::from_u128(number)));
    assert_eq!(store.locks().peek(&name, &ada).await.unwrap().lease.as_ref(), before.holders.first());
    let token = Token::new(NOW).unwrap();
    let release = LockOp::Release(Release { lease_id: ada, token, at_least: None });
    let released = store.locks().apply(&name, &release).await.unwrap();
    assert!(matches!(released, Outcome::Released(_)), "{released:?}");
    let after = store.locks().get(&name).await.unwrap().unwrap();
    assert_eq!((after.holders[0].request.lease_id, after.waiters.len(), after.version), (bob, 0, 5));
    let stored: Vec<u8> = ::redis::cmd("GET")
        .arg("leasehold:{35}:lock:terraform-prod")
        .query_async(&mut old.conn)
        .await
        .unwrap();
    assert_eq!(stored[0], 2, "an earlier version refuses the record");

    let expected = [EventKind::Acquired, EventKind::Queued, EventKind::Released, EventKind::Acquired];
    for lock in [Some(name), None] {
        for limit in [1, 2, 3, 100] {
            let mut query = ListEvents::default().lock(lock.clone()).limit(limit);
            let (mut forward, mut backward) = (Vec::new(), Vec::new());
            query.span = EventRange::After(Cursor::start());
            while forward.len() < expected.len() {
                let page = store.locks().history(&query).await.unwrap();
                assert!(!page.items.is_empty(), "after {forward:?}");
                forward.extend(page.items.iter().map(|event| event.kind));
                query.span = EventRange::After(page.next.unwrap());
            }
            query.span = EventRange::Newest;
            loop {
                let page = store.locks().history(&query).await.unwrap();
                backward.extend(page.items.iter().map(|event| event.kind));
                let Some(next) = page.next else { break };
                query.span = EventRange::Before(next);
            }
            backward.reverse();
            assert_eq!((&forward[..], &backward[..]), (&expected[..], &expected[..]), "{limit} at a time");
        }
    }
}

#[tokio::test]
async fn an_idle_lock_of_an_earlier_version_is_forgotten() {
    let mut old = OldStore::start().await;
    let mut record = bytes(RECORD);
    // No leases and no tickets follow the id of the last event.
    record.truncate(26 + 15);
    record.extend([0; 4]);
    old.write(&[b"SET", b"leasehold:{35}:lock:terraform-prod", &record]).await;
    old.write(&[b"ZADD", b"leasehold:{35}:names", b"0", b"terraform-prod"]).await;
    let store = old.open().await;
    assert_eq!(store.locks().forget(leasehold::model::Ttl::from_secs(1), 10).await.unwrap(), 1);
    assert!(store.locks().get(&LockName::new("terraform-prod").unwrap()).await.unwrap().is_none());
}

#[tokio::test]
async fn tasks_are_converted_when_they_change() {
    let mut old = OldStore::start().await;
    let [running, pending] = [1, 2].map(|number| TaskId::from_uuid(Uuid::from_u128(number)));
    let member = [&[0, 6, 0x0a, 0x24, 0x18, 0x1e, 0x40, 0][..], pending.as_uuid().as_bytes()].concat();
    for (id, record) in [(running, TASK), (pending, NEW_TASK)] {
        old.write(&[b"HSET", b"leasehold:{t}:tasks", id.as_uuid().as_bytes(), &bytes(record)]).await;
        old.write(&[b"ZADD", b"leasehold:{t}:ids", b"0", id.as_uuid().as_bytes()]).await;
    }
    old.write(&[b"ZADD", b"leasehold:{t}:running", b"1700000030000009", running.as_uuid().as_bytes()]).await;
    old.write(&[b"ZADD", b"leasehold:{t}:r:mail", b"1699999910000000", &member]).await;
    old.write(&[b"HSET", b"leasehold:{t}:chains", b"1:l:mail", running.as_uuid().as_bytes()]).await;
    old.write(&[b"HSET", b"leasehold:{t}:q:mail", b"3", b"1", b"2", b"1"]).await;
    old.write(&[b"SADD", b"leasehold:{t}:queues", b"mail"]).await;

    let store = old.open().await;
    let tasks = store.tasks().unwrap();
    let before = tasks.get(running).await.unwrap().unwrap();
    assert_eq!((before.state, before.version), (TaskState::Running, 2));
    let settle = Settle { id: running, token: before.token, result: AttemptResult::Done(None) };
    assert_eq!(tasks.settle(&[settle]).await.unwrap(), [Settled::Now(TaskState::Succeeded)]);
    let after = tasks.get(running).await.unwrap().unwrap();
    assert_eq!((after.state, after.version, after.error), (TaskState::Succeeded, 3, None));
    assert_eq!((after.payload, after.key, after.lock), (before.payload, before.key, before.lock));

    let before = tasks.get(pending).await.unwrap().unwrap();
    assert_eq!((before.state, before.version, before.updated_at), (TaskState::Pending, 1, before.created_at));
    let worker = leasehold::testing::task_fixture::worker(1);
    let queue = QueueName::new("mail").unwrap();
    let ttl = leasehold::model::Ttl::from_secs(30);
    let leased = tasks.lease(&leasehold::model::LeaseTasks::new(worker, vec![queue], 9, ttl)).await.unwrap();
    let [task] = &leased.tasks[..] else { panic!("{leased:?}") };
    assert_eq!((task.id, task.worker, task.version, task.attempt), (pending, Some(worker), 2, 1));
    assert_eq!((&task.payload, &task.key, task.priority), (&before.payload, &before.key, before.priority));
    for id in [running, pending] {
        let mut hget = ::redis::cmd("HGET");
        hget.arg("leasehold:{t}:tasks").arg(id.as_uuid().as_bytes());
        let record: Vec<u8> = hget.query_async(&mut old.conn).await.unwrap();
        assert_eq!(record[0], 2, "an earlier version refuses the record");
    }
}
