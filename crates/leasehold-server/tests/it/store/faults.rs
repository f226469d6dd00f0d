//! A server that restarts, ends, or cannot be reached.

use std::time::{Duration, Instant};

use leasehold::{BootInstant, Leasehold};
use leasehold_server::Access;

use super::proxy::{Fault, Proxy};
use super::support::{Served, acquire, lease_id, name, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_survives_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("locks.db").display());
    let served =
        Served::with(Leasehold::connect(&store).await.unwrap(), Access::Open, "127.0.0.1:0".parse().unwrap());
    let address = served.address;
    let through = Leasehold::connect(&served.url()).await.unwrap();
    let guard = through.lock("lock").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    let token = guard.token();
    drop(served);
    let served = Served::with(Leasehold::connect(&store).await.unwrap(), Access::Open, address);
    let direct = Leasehold::connect(&store).await.unwrap();
    let first = direct.locks().status(&name("lock")).await.unwrap().holders[0].expires_at;
    let since = Instant::now();
    while direct.locks().status(&name("lock")).await.unwrap().holders[0].expires_at == first {
        assert!(since.elapsed() < Duration::from_secs(6), "it was not renewed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(direct.locks().status(&name("lock")).await.unwrap().holders[0].token, token);
    guard.release().await.unwrap();
    assert!(direct.locks().status(&name("lock")).await.unwrap().holders.is_empty());
    drop(served);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_without_a_server_loses_its_lease_in_time() {
    let served = Served::on_memory();
    let through = Leasehold::connect(&served.url()).await.unwrap();
    let guard = through.lock("lock").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let acquired = BootInstant::now();
    served.kill();
    guard.lost().await;
    assert!(BootInstant::now().after(acquired) < Duration::from_secs(4));
    let error = through.lock("lock").acquire().await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_unavailable_within_seconds_and_comes_back() {
    let served = Served::on_memory();
    let proxy = Proxy::before(served.address);
    let store = open(&format!("http://{}", proxy.address())).await;
    proxy.set(Fault::BlackHole);
    let since = Instant::now();
    let error = store.locks().now().await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(error.to_string().contains("did not answer in time"), "{error}");
    assert!(since.elapsed() < Duration::from_secs(8));
    proxy.set(Fault::Reset);
    let error = store.locks().now().await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    proxy.set(Fault::None);
    store.locks().apply(&name("lock"), &acquire(lease_id(), Duration::from_secs(9))).await.unwrap();
}

/// A caller that blocks its runtime does not stop renewals.
#[tokio::test]
async fn a_caller_that_blocks_keeps_its_lease() {
    let served = Served::on_memory();
    let through = Leasehold::connect(&served.url()).await.unwrap();
    // Long enough for a busy machine.
    let guard = through.lock("lock").ttl(Duration::from_secs(4)).acquire().await.unwrap();
    std::thread::sleep(Duration::from_secs(6));
    guard.release().await.unwrap();
}
