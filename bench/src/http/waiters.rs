//! Many waiters: a hundred for one lock, and ten thousand at once for many locks.

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use tokio::sync::mpsc;

use super::connection::Connection;
use super::server::ServerProcess;
use crate::measure::now;

/// Number of waiters for one lock.
pub(super) const WAITERS_PER_LOCK: u32 = 100;
/// Wait timeout of a request.
const WAIT_SECONDS: u32 = 60;
/// Number of connections that are opened without a pause: the accept backlog of the server is bounded.
const CONNECT_BATCH: u32 = 100;

/// Measures the time from the start of a release until the next waiter has its response.
pub(super) async fn hand_overs(address: &str) -> Result<Histogram<u64>> {
    let (sender, mut turns) = mpsc::unbounded_channel();
    let mut first = Connection::open(address).await?;
    let lease = first.acquire("queue", 0).await?;
    for _ in 0..WAITERS_PER_LOCK {
        let mut connection = Connection::open(address).await?;
        let sender = sender.clone();
        tokio::spawn(async move {
            let turn = async {
                let lease = connection.acquire("queue", WAIT_SECONDS).await?;
                let acquired = now();
                // Hold the lock for a moment, so that the other waiters observe a held lock.
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                let released = now();
                connection.release("queue", lease).await?;
                Ok::<_, anyhow::Error>((acquired, released))
            };
            let _ = sender.send(turn.await);
        });
    }
    wait_for_waiters(address, "queue", WAITERS_PER_LOCK).await?;
    let mut released = now();
    first.release("queue", lease).await?;
    let mut times = Histogram::new(3)?;
    for _ in 0..WAITERS_PER_LOCK {
        let turn = turns.recv().await.expect("every waiter sends its turn")?;
        times.record(turn.0.saturating_sub(released))?;
        released = turn.1;
    }
    Ok(times)
}

/// Result of very many waiters.
#[derive(Debug, Clone)]
pub(super) struct WaiterLoad {
    pub(super) waiters: u32,
    /// Memory of the server for each waiter, in bytes.
    pub(super) memory_each: u64,
    pub(super) errors: u32,
    /// Time from the first release until the last waiter had its turn.
    pub(super) nanos: u64,
}

/// Lets very many clients wait at once, a hundred for each lock, and serves them all.
pub(super) async fn waiter_load(server: &ServerProcess, waiters: u32) -> Result<WaiterLoad> {
    let address = &server.address;
    let locks = waiters.div_ceil(WAITERS_PER_LOCK);
    let before = server.memory()?;
    let mut holder = Connection::open(address).await?;
    let mut held = Vec::new();
    for lock in 0..locks {
        held.push(holder.acquire(&format!("waiters-{lock}"), 0).await?);
    }
    let mut clients = Vec::new();
    for number in 0..waiters {
        let (address, lock) = (address.clone(), format!("waiters-{}", number % locks));
        clients.push(tokio::spawn(async move {
            let mut connection = Connection::open(&address).await?;
            let lease = connection.acquire(&lock, WAIT_SECONDS).await?;
            connection.release(&lock, lease).await
        }));
        if number % CONNECT_BATCH == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    for lock in 0..locks {
        let expected = (0..waiters).filter(|number| number % locks == lock).count();
        wait_for_waiters(address, &format!("waiters-{lock}"), u32::try_from(expected)?).await?;
    }
    let memory_each = server.memory()?.saturating_sub(before) / u64::from(waiters);
    let begun = now();
    for (lock, lease) in held.into_iter().enumerate() {
        holder.release(&format!("waiters-{lock}"), lease).await?;
    }
    let mut errors = 0;
    for client in clients {
        if client.await?.is_err() {
            errors += 1;
        }
    }
    Ok(WaiterLoad { waiters, memory_each, errors, nanos: now() - begun })
}

/// Waits until the lock has this number of waiters.
async fn wait_for_waiters(address: &str, lock: &str, count: u32) -> Result<()> {
    let client = reqwest::Client::new();
    let url = format!("http://{address}/api/v1/locks/{lock}");
    for _ in 0..600 {
        let status: serde_json::Value = client.get(&url).send().await?.json().await?;
        let waiters = status["waiters"].as_array().or_else(|| status["lock"]["waiters"].as_array());
        if waiters.is_some_and(|waiters| waiters.len() >= count as usize) {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    ensure!(false, "lock '{lock}' did not get {count} waiters");
    Ok(())
}
