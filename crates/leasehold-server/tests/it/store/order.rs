//! A dropped call, or one whose response was lost, takes effect before any later call for its lease
//! id, or never.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use leasehold::model::{LeaseId, LockOp, Outcome, Release, Withdraw};
use leasehold::store::Store;
use leasehold::{Leasehold, Strategy};
use leasehold_server::{Access, Server};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tower::ServiceExt;

use super::other_servers::serve;
use super::proxy::{Fault, Proxy};
use super::support::{Served, acquire, lease_id, name, open, record};

const TTL: Duration = Duration::from_mins(1);

fn leave(lease_id: LeaseId) -> LockOp {
    LockOp::Withdraw(Withdraw { lease_id })
}

async fn before(served: &Served) -> (Proxy, Arc<dyn Store>) {
    let proxy = Proxy::before(served.address);
    let store = open(&format!("http://{}", proxy.address())).await;
    (proxy, store)
}

/// Requests the lock and drops the call as soon as the request is sent.
async fn acquire_and_drop(store: &Arc<dyn Store>, id: LeaseId) {
    let asking = async {
        let asked = store.locks().apply(&name("lock"), &acquire(id, TTL)).await;
        panic!("nothing gets through, but: {asked:?}");
    };
    assert!(tokio::time::timeout(Duration::from_millis(200), asking).await.is_err());
}

#[tokio::test]
async fn a_late_request_does_not_reacquire_a_withdrawn_lease() {
    let served = Served::on_memory();
    let (proxy, store) = before(&served).await;
    let (id, there) = (lease_id(), proxy.counts().there);
    proxy.set(Fault::BlackHole);
    acquire_and_drop(&store, id).await;
    // The withdrawal waits for the dropped call. The proxy forwards again before the withdrawal
    // times out: both requests arrive, the dropped one first.
    let (leaving, delay) = (store.clone(), tokio::time::sleep(Duration::from_secs(3)));
    let left = tokio::spawn(async move { leaving.locks().apply(&name("lock"), &leave(id)).await });
    delay.await;
    proxy.set(Fault::None);
    assert_eq!(left.await.unwrap().unwrap(), Outcome::Withdrawn);
    assert!(proxy.counts().there > there + 500, "both requests have arrived");
    let direct = open(&served.url()).await;
    assert!(record(&direct, &name("lock")).await.holders.is_empty(), "the lock is free");
    assert!(matches!(
        direct.locks().apply(&name("lock"), &acquire(lease_id(), TTL)).await.unwrap(),
        Outcome::Granted(_)
    ));
}

#[tokio::test]
async fn a_call_waits_for_a_dropped_predecessor() {
    let served = Served::on_memory();
    let (proxy, store) = before(&served).await;
    let id = lease_id();
    proxy.set(Fault::Delay(Duration::from_millis(500)));
    acquire_and_drop(&store, id).await;
    proxy.set(Fault::None);
    // On its own connection the withdrawal would arrive first.
    let left = store.locks().apply(&name("lock"), &leave(id)).await.unwrap();
    assert_eq!(left, Outcome::Withdrawn);
    let record = record(&open(&served.url()).await, &name("lock")).await;
    assert!(record.token.get() > 0 && record.holders.is_empty(), "taken first, then taken back: {record:?}");
}

#[tokio::test]
async fn a_lost_response_is_requested_again() {
    let served = Served::on_memory();
    let (proxy, store) = before(&served).await;
    let (id, since) = (lease_id(), Instant::now());
    proxy.set(Fault::DropReplies(1));
    let granted = store.locks().apply(&name("lock"), &acquire(id, TTL)).await.unwrap();
    let Outcome::Granted(lease) = granted else { panic!("{granted:?}") };
    let release = LockOp::Release(Release { lease_id: id, token: lease.token, at_least: None });
    assert!(matches!(store.locks().apply(&name("lock"), &release).await.unwrap(), Outcome::Released(_)));
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    assert!(record(&store, &name("lock")).await.holders.is_empty());
}

/// Returns a proxy that answers the first operation on a lock with 504 and sends its request to `hold`.
fn proxy_that_times_out_once(server: Router, hold: oneshot::Sender<Request>) -> Router {
    let hold = Arc::new(Mutex::new(Some(hold)));
    Router::new().fallback(move |mut request: Request| {
        let (server, hold) = (server.clone(), hold.clone());
        async move {
            // What this router has added to the request must not reach the router of the server.
            request.extensions_mut().clear();
            let is_operation = request.uri().path().ends_with("/locks/apply");
            let first = if is_operation { hold.lock().unwrap().take() } else { None };
            let Some(first) = first else { return server.oneshot(request).await.unwrap() };
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, usize::MAX).await.unwrap();
            first.send(Request::from_parts(parts, Body::from(body))).unwrap();
            StatusCode::GATEWAY_TIMEOUT.into_response()
        }
    })
}

#[tokio::test]
async fn a_request_that_a_proxy_gave_up_does_not_reacquire_a_released_lease() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = Server::builder(leasehold.clone()).access(Access::Open).build().router();
    let (sender, delayed) = oneshot::channel();
    let store = open(&serve(proxy_that_times_out_once(server.clone(), sender)).await).await;
    let id = lease_id();
    let granted = store.locks().apply(&name("lock"), &acquire(id, TTL)).await.unwrap();
    let Outcome::Granted(lease) = granted else { panic!("{granted:?}") };
    let release = LockOp::Release(Release { lease_id: id, token: lease.token, at_least: None });
    assert!(matches!(store.locks().apply(&name("lock"), &release).await.unwrap(), Outcome::Released(_)));
    // The server reads the first request only now.
    let late = server.oneshot(delayed.await.unwrap()).await.unwrap();
    assert_eq!(late.status(), StatusCode::REQUEST_TIMEOUT, "{late:?}");
    assert!(record(&leasehold.store(), &name("lock")).await.holders.is_empty(), "the lock is free");
}

/// Sends requests as the library would, with chosen headers.
struct RawClient {
    http: reqwest::Client,
    url: String,
    client: uuid::Uuid,
}

impl RawClient {
    fn new(served: &Served) -> Self {
        Self { http: crate::test_server::client(), url: served.url(), client: uuid::Uuid::now_v7() }
    }

    /// Returns the instance of the server and the reading of its clock.
    async fn clock(&self) -> (String, u64) {
        let asked = self.http.get(format!("{}/api/v1/store/capabilities", self.url));
        let response = asked.header("leasehold-protocol", "1").send().await.unwrap();
        let clock = response.headers()["leasehold-clock"].to_str().unwrap().to_owned();
        let (instance, micros) = clock.split_once('=').unwrap();
        (instance.to_owned(), micros.parse().unwrap())
    }

    async fn apply(&self, op: &LockOp, number: &str, until: &str) -> Value {
        let body = serde_json::to_string(&(name("lock"), op)).unwrap();
        let request = self.http.post(format!("{}/api/v1/store/locks/apply", self.url));
        let request = request
            .header("content-type", "application/json")
            .header("leasehold-protocol", "1")
            .header("leasehold-call", format!("{}/{number}", self.client.simple()))
            .header("leasehold-until", until);
        let text = request.body(body).send().await.unwrap().text().await.unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

#[tokio::test]
async fn a_server_does_not_execute_abandoned_calls() {
    let served = Served::on_memory();
    let client = RawClient::new(&served);
    let (instance, now) = client.clock().await;
    let soon = format!("{instance}={}", now + 5_000_000);
    let (id, ask) = (lease_id(), |id| acquire(id, TTL));
    // The deadline has passed; it is by the clock of another server, or of this one before a
    // restart; it is missing.
    let elsewhere = format!("{}={}", uuid::Uuid::now_v7().simple(), now + 5_000_000);
    for until in [format!("{instance}={now}"), elsewhere.clone(), "nonsense".to_owned(), String::new()] {
        assert_eq!(client.apply(&ask(id), "1", &until).await["code"], "LATE", "{until}");
    }
    let both = format!("{elsewhere},{soon}");
    assert_eq!(client.apply(&ask(id), "3!", &both).await["outcome"], "granted");
    assert_eq!(client.apply(&leave(id), "4", &soon).await["outcome"], "withdrawn");
    // The first call, which the third has superseded, arrives now.
    let late = client.apply(&ask(id), "2", &soon).await;
    assert_eq!((&late["code"], &late["status"]), (&json!("LATE"), &json!(408)));
    // A lower number of another client is not superseded.
    let other = RawClient::new(&served);
    assert_eq!(other.apply(&leave(id), "1", &soon).await["outcome"], "withdrawn");
    let direct = open(&served.url()).await;
    assert!(record(&direct, &name("lock")).await.holders.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeatedly_cut_connections_leave_nothing_behind() {
    let served = Served::on_memory();
    let (proxy, _) = before(&served).await;
    let leasehold = Leasehold::connect(&format!("http://{}", proxy.address())).await.unwrap();
    let (inside, won) =
        (Arc::new(std::sync::atomic::AtomicU32::new(0)), Arc::new(std::sync::atomic::AtomicU32::new(0)));
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..8_u64 {
        let (leasehold, inside, won) = (leasehold.clone(), inside.clone(), won.clone());
        callers.spawn(async move {
            for round in 0..15 {
                let strategy = Strategy::Wait(Some(Duration::from_secs(10)));
                let asking = leasehold.lock("lock").ttl(TTL).strategy(strategy).acquire();
                // Some callers give up while the request is in flight.
                let timeout = if (number + round) % 3 == 0 { 15 } else { 10_000 };
                let asked = tokio::time::timeout(Duration::from_millis(timeout), asking).await;
                if let Ok(Ok(guard)) = asked {
                    use std::sync::atomic::Ordering::SeqCst;
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two at once");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    inside.fetch_sub(1, SeqCst);
                    won.fetch_add(1, SeqCst);
                    drop(guard);
                }
            }
        });
    }
    let cutting = async {
        loop {
            tokio::time::sleep(Duration::from_millis(25)).await;
            proxy.cut_all();
        }
    };
    tokio::select! {
        () = cutting => {}
        done = callers.join_all() => drop(done),
    }
    assert!(won.load(std::sync::atomic::Ordering::SeqCst) > 0, "none of 120");
    // Abandoned requests are withdrawn in the background, and nothing takes effect after that.
    let direct = open(&served.url()).await;
    let free = async || {
        let record = record(&direct, &name("lock")).await;
        record.holders.is_empty() && record.waiters.is_empty()
    };
    let since = Instant::now();
    while !free().await {
        assert!(since.elapsed() < Duration::from_secs(15), "{:?}", record(&direct, &name("lock")).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(free().await, "something came late: {:?}", record(&direct, &name("lock")).await);
}
