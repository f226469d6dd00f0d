//! Many who wait: for one lock, one after the other, and very many at once for many locks.

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use tokio::sync::mpsc;

use super::line::Line;
use super::server::Started;
use crate::measure::now;

/// So many wait for one lock.
pub(super) const IN_LINE: u32 = 100;
/// The longest that a request may wait.
const PATIENCE: u32 = 60;
/// So many connections are opened before the next are: the server's backlog of new ones is bounded.
const AT_ONCE: u32 = 100;

/// How long it takes from the beginning of a release until the next waiter has its answer.
pub(super) async fn hand_overs(address: &str) -> Result<Histogram<u64>> {
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut first = Line::open(address).await?;
    let lease = first.acquire("line", 0).await?;
    for _ in 0..IN_LINE {
        let mut line = Line::open(address).await?;
        let tell = tell.clone();
        tokio::spawn(async move {
            let turn = async {
                let lease = line.acquire("line", PATIENCE).await?;
                let got = now();
                // The others are to see a lock that is held, not one that is passed on in the same breath.
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                let gave = now();
                line.release("line", lease).await?;
                Ok::<_, anyhow::Error>((got, gave))
            };
            let _ = tell.send(turn.await);
        });
    }
    waiting(address, "line", IN_LINE).await?;
    let mut gave = now();
    first.release("line", lease).await?;
    let mut times = Histogram::new(3)?;
    for _ in 0..IN_LINE {
        let turn = told.recv().await.expect("each of them tells")?;
        times.record(turn.0.saturating_sub(gave))?;
        gave = turn.1;
    }
    Ok(times)
}

/// What very many waiters took.
#[derive(Debug, Clone)]
pub(super) struct Crowd {
    pub(super) waiters: u32,
    /// Of the server, in bytes for each of them.
    pub(super) memory_each: u64,
    pub(super) errors: u32,
    /// From the first release until the last of them had its turn.
    pub(super) nanos: u64,
}

/// Lets very many wait at once, a hundred for each lock, and serves them all.
pub(super) async fn crowd(server: &Started, waiters: u32) -> Result<Crowd> {
    let address = &server.address;
    let locks = waiters.div_ceil(IN_LINE);
    let before = server.memory()?;
    let mut holder = Line::open(address).await?;
    let mut held = Vec::new();
    for lock in 0..locks {
        held.push(holder.acquire(&format!("crowd-{lock}"), 0).await?);
    }
    let mut clients = Vec::new();
    for number in 0..waiters {
        let (address, lock) = (address.clone(), format!("crowd-{}", number % locks));
        clients.push(tokio::spawn(async move {
            let mut line = Line::open(&address).await?;
            let lease = line.acquire(&lock, PATIENCE).await?;
            line.release(&lock, lease).await
        }));
        if number % AT_ONCE == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    for lock in 0..locks {
        let in_line = (0..waiters).filter(|number| number % locks == lock).count();
        waiting(address, &format!("crowd-{lock}"), u32::try_from(in_line)?).await?;
    }
    let memory_each = server.memory()?.saturating_sub(before) / u64::from(waiters);
    let begun = now();
    for (lock, lease) in held.into_iter().enumerate() {
        holder.release(&format!("crowd-{lock}"), lease).await?;
    }
    let mut errors = 0;
    for client in clients {
        if client.await?.is_err() {
            errors += 1;
        }
    }
    Ok(Crowd { waiters, memory_each, errors, nanos: now() - begun })
}

/// Waits until so many stand in line.
async fn waiting(address: &str, lock: &str, count: u32) -> Result<()> {
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
    ensure!(false, "{count} waiters did not get into line for '{lock}'");
    Ok(())
}
