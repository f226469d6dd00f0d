//! Settings and measurements.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

/// Timeout of a drain; a backlog that is not drained by then counts as far as it got.
const TIMEOUT: Duration = Duration::from_secs(8);
const INTERVAL: Duration = Duration::from_millis(20);

/// Number of handlers that have run, and the waits of the tasks, in µs.
pub static DONE: AtomicU64 = AtomicU64::new(0);
static WAITS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    pub enqueue: f64,
    pub bulk: f64,
    pub drain_default: f64,
    pub drain_tuned: f64,
    pub p50_millis: f64,
    pub p99_millis: f64,
}

pub fn tasks() -> u64 {
    number("PEER_TASKS", 10_000.0) as u64
}

/// Records the start of a handler, and the wait of its task if `sent` is not 0.
pub fn begun(sent: u64) {
    if sent > 0 {
        WAITS.lock().expect("the lock is not poisoned").push(micros() - sent);
    }
    DONE.fetch_add(1, Ordering::Relaxed);
}

/// Repeats a call for a while; returns tasks per second.
pub async fn rate(batch: u32, mut call: impl AsyncFnMut() -> Result<()>) -> Result<f64> {
    call().await?;
    let (begun, mut calls) = (Instant::now(), 0);
    while begun.elapsed().as_secs_f64() < number("PEER_SECONDS", 0.5) {
        call().await?;
        calls += 1;
    }
    Ok(f64::from(calls * batch) / begun.elapsed().as_secs_f64())
}

/// Waits until all tasks are done or the timeout has passed; returns tasks per second.
pub async fn drained() -> f64 {
    let (begun, before) = (Instant::now(), DONE.load(Ordering::Relaxed));
    let done = || DONE.load(Ordering::Relaxed) - before;
    while done() < tasks() && begun.elapsed() < TIMEOUT {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    done() as f64 / begun.elapsed().as_secs_f64()
}

/// Enqueues tasks that contain their enqueue time, 50 per second; returns p50 and p99 of the time until their
/// start, in milliseconds.
pub async fn starts(mut add: impl AsyncFnMut(u64) -> Result<()>) -> Result<(f64, f64)> {
    tokio::time::sleep(Duration::from_millis(500)).await;
    let ticks = (number("PEER_START_SECONDS", 2.0) / INTERVAL.as_secs_f64()).ceil() as usize;
    let mut schedule = tokio::time::interval(INTERVAL);
    for _ in 0..ticks {
        schedule.tick().await;
        add(micros()).await?;
    }
    let over = Instant::now() + TIMEOUT;
    while WAITS.lock().expect("the lock is not poisoned").len() < ticks && Instant::now() < over {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut waits = WAITS.lock().expect("the lock is not poisoned").clone();
    waits.sort_unstable();
    let at = |part: f64| waits.get((waits.len() as f64 * part) as usize).map_or(f64::NAN, |wait| *wait as f64 / 1e3);
    Ok((at(0.5), at(0.99)))
}

/// Returns the microseconds since the first call, never 0.
pub fn micros() -> u64 {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_micros() as u64 + 1
}

fn number(variable: &str, default: f64) -> f64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
