//! Store with a day of history: for the browser tests, and for the pictures of the documentation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{LockOp, Payload, Renew, Timestamp};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, NewDocument, RESERVED_PREFIX};
use leasehold::{Guard, Leasehold};
use leasehold_server::Access;
use serde_json::{Value, json};

use crate::test_server::TestServer;

const MINUTE: Duration = Duration::from_mins(1);
/// Interval at which the holders of the scene renew their leases.
const RENEWAL: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(30);

/// Store whose clock runs since the scene was set.
pub(super) struct Scene {
    pub(super) leasehold: Leasehold,
    _guards: Vec<Guard>,
    ticking: tokio::task::JoinHandle<()>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.ticking.abort();
    }
}

impl Scene {
    /// Plays the last 24 hours of a small team, and leaves locks held, tasks open and a worker at work.
    pub(super) async fn play() -> Self {
        let end = Clock::system().now();
        let clock = Clock::manual(end.minus(Duration::from_hours(24)));
        let leasehold = Leasehold::with_store(Arc::new(MemoryStore::with_clock(clock.clone()))).unwrap();
        for number in 0..36_u64 {
            deploy(&leasehold, &clock, number).await;
        }
        record_figures(&leasehold, end).await;
        clock.advance(end.since(clock.now()).saturating_sub(12 * MINUTE));
        let mut guards = Vec::new();
        for (name, holder, reason) in [
            ("tf/prod", "ada@laptop", "resize the database"),
            ("deploy/prod", "ci@runner-7", "release 2.14.0"),
            ("nightly/report", "cron@web-1", ""),
        ] {
            let lock = leasehold.lock(name).holder(holder).ttl(TTL).meta("commit", "4f1c2e9");
            let lock = if reason.is_empty() { lock } else { lock.reason(reason) };
            guards.push(lock.acquire().await.unwrap());
            hold(&leasehold, &clock, &guards, 2 * MINUTE).await;
        }
        hold(&leasehold, &clock, &guards, end.since(clock.now())).await;
        add_tasks(&leasehold).await;
        Self { leasehold, _guards: guards, ticking: tokio::spawn(run(clock)) }
    }
}

/// Lets the clock of the store run.
async fn run(clock: Clock) {
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        clock.advance(last.elapsed());
        last = Instant::now();
    }
}

/// Plays 39 minutes: one lease of `deploy/prod`, which seldom ends without a release, and one of another lock.
async fn deploy(leasehold: &Leasehold, clock: &Clock, number: u64) {
    let holder = format!("ci@runner-{}", 5 + number * 7 % 4);
    let held = MINUTE * u32::try_from(4 + number * 5 % 17).unwrap();
    let guard = leasehold.lock("deploy/prod").holder(holder).ttl(held + MINUTE).acquire().await.unwrap();
    clock.advance(held);
    if number % 15 == 7 {
        // The runner is killed: the lease expires, and the next holder finds it so.
        guard.detach();
    } else {
        guard.release().await.unwrap();
    }
    clock.advance(MINUTE * u32::try_from(21 - number * 5 % 17).unwrap());
    let name = ["build/web", "build/api", "nightly/report"][usize::try_from(number % 3).unwrap()];
    let guard = leasehold.lock(name).holder("cron@web-1").ttl(30 * MINUTE).acquire().await.unwrap();
    clock.advance(14 * MINUTE);
    guard.release().await.unwrap();
}

/// Lets time pass while the holders renew.
async fn hold(leasehold: &Leasehold, clock: &Clock, guards: &[Guard], time: Duration) {
    let store = leasehold.store();
    for _ in 0..time.as_secs() / RENEWAL.as_secs() {
        clock.advance(RENEWAL);
        for (name, lease) in guards.iter().flat_map(Guard::leases) {
            let renew = Renew { lease_id: lease.request.lease_id, token: lease.token, ttl: None };
            store.locks().apply(&name, &LockOp::Renew(renew)).await.unwrap();
        }
    }
}

/// Adds tasks in several states, an execution, a schedule and a worker.
async fn add_tasks(leasehold: &Leasehold) {
    let settings = "[workflows.build]\nrunner = \"external\"\n";
    let server = TestServer::configured(leasehold.clone(), Access::Open, settings).await;
    for number in 0..6 {
        let payload = Payload::of(&json!({ "to": "ada@example.com", "invoice": 4180 + number })).unwrap();
        leasehold.enqueue_to("mail", payload).await.unwrap();
    }
    for size in ["small", "large"] {
        let payload = Payload::of(&json!({ "video": "cat.mp4", "size": size })).unwrap();
        leasehold.enqueue_to("video", payload).lock("encoder").await.unwrap();
    }
    let input = json!({ "input": { "ref": "main", "commit": "4f1c2e9" } });
    let started = server.post("/api/v1/workflows/build/executions", &input).await;
    assert!((200..300).contains(&started.status), "{}", started.body);
    leasehold.schedule_to("nightly", "0 3 * * *", "mail", Payload::of(&json!({})).unwrap()).await.unwrap();
    let worker = json!({ "id": "01890a5d-ac96-774b-bcce-b302099a8057", "host": "web-1", "pid": 4711,
        "version": env!("CARGO_PKG_VERSION"), "queues": ["mail", "video"], "slots": 3 });
    let lease = |max: u32| json!({ "worker": worker, "ttlSeconds": 300, "max": max });
    let leased = server.post("/api/v1/queues/mail/lease", &lease(2)).await;
    assert_eq!(leased.status, 200, "{}", leased.body);
    let failed = &leased.body["tasks"][0];
    let body = json!({ "token": failed["token"], "error": "550 mailbox unavailable", "final": true });
    let reply = server.post(&format!("/api/v1/tasks/{}/fail", failed["id"].as_str().unwrap()), &body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(server.post("/api/v1/queues/video/lease", &lease(1)).await.status, 200);
    server.stop().await;
}

/// Writes the figures of the charts as servers have written them since the first version.
async fn record_figures(leasehold: &Leasehold, end: Timestamp) {
    let last = end.as_micros() / 60_000_000;
    let mut hours: BTreeMap<u64, Value> = BTreeMap::new();
    for minute in last - 24 * 60..=last {
        let hour = minute / 60;
        let document = hours.entry(hour).or_insert_with(
            || json!({ "hour": hour, "bounds": [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0], "minutes": {} }),
        );
        document["minutes"][(minute % 60).to_string()] = figures(minute);
    }
    let store = leasehold.store();
    for (hour, document) in hours {
        let key = format!("{RESERVED_PREFIX}server/figures/{:02}", hour % 48);
        let document = NewDocument::new(document.to_string());
        store.documents().unwrap().put_if(&key, None, document).await.unwrap();
    }
}

/// Returns the figures of one minute: more by day than by night, with some noise.
fn figures(minute: u64) -> Value {
    let of_day = minute % (24 * 60);
    let day = (24 * 60 - of_day.abs_diff(13 * 60)).saturating_sub(10 * 60) / 40;
    let noise = minute.wrapping_mul(2_654_435_761) >> 7;
    let (busy, pending) = (2 + day + noise % 5, day * 3 / 2 + noise % 11);
    json!({
        "a": busy * 4, "c": busy / 3, "r": u64::from(noise.is_multiple_of(97)), "l": busy * 3, "x": u64::from(noise.is_multiple_of(241)),
        "w": [busy * 3, busy / 2, busy / 4, noise % 3, u64::from(noise.is_multiple_of(13))],
        "h": 2 + busy / 3, "q": noise % (1 + day / 5),
        "t": { "pending": pending, "running": busy / 4, "blocked": noise % 3, "failed": of_day / 500 },
    })
}
