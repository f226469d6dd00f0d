//! How much is asked for, and how it is measured.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

/// A backlog that is not worked off by then counts as far as it got.
const PATIENCE: Duration = Duration::from_secs(8);
const EVERY: Duration = Duration::from_millis(20);

/// How many handlers have run, and how long tasks waited for theirs, in µs.
pub static DONE: AtomicU64 = AtomicU64::new(0);
static WAITS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// The one line that is read.
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

/// How many tasks are worked off.
pub fn tasks() -> u64 {
    number("PEER_TASKS", 10_000.0) as u64
}

/// What every handler does: notes that it has begun a task that was added then, if that matters.
pub fn begun(sent: u64) {
    if sent > 0 {
        WAITS.lock().expect("nobody panics with it").push(micros() - sent);
    }
    DONE.fetch_add(1, Ordering::Relaxed);
}

/// Calls one after the other for a while; tasks per second.
pub async fn rate(batch: u32, mut call: impl AsyncFnMut() -> Result<()>) -> Result<f64> {
    call().await?;
    let (begun, mut calls) = (Instant::now(), 0);
    while begun.elapsed().as_secs_f64() < number("PEER_SECONDS", 0.5) {
        call().await?;
        calls += 1;
    }
    Ok(f64::from(calls * batch) / begun.elapsed().as_secs_f64())
}

/// From now until so many are done, or the patience is over; tasks per second.
pub async fn drained() -> f64 {
    let (begun, before) = (Instant::now(), DONE.load(Ordering::Relaxed));
    let done = || DONE.load(Ordering::Relaxed) - before;
    while done() < tasks() && begun.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    done() as f64 / begun.elapsed().as_secs_f64()
}

/// Adds tasks that say when they were added, 50 a second; p50 and p99 until their start, in milliseconds.
pub async fn starts(mut add: impl AsyncFnMut(u64) -> Result<()>) -> Result<(f64, f64)> {
    tokio::time::sleep(Duration::from_millis(500)).await;
    let ticks = (number("PEER_START_SECONDS", 2.0) / EVERY.as_secs_f64()).ceil() as usize;
    let mut schedule = tokio::time::interval(EVERY);
    for _ in 0..ticks {
        schedule.tick().await;
        add(micros()).await?;
    }
    let over = Instant::now() + PATIENCE;
    while WAITS.lock().expect("nobody panics with it").len() < ticks && Instant::now() < over {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut waits = WAITS.lock().expect("nobody panics with it").clone();
    waits.sort_unstable();
    let at = |part: f64| waits.get((waits.len() as f64 * part) as usize).map_or(f64::NAN, |wait| *wait as f64 / 1e3);
    Ok((at(0.5), at(0.99)))
}

/// Since this process began to count, never 0.
pub fn micros() -> u64 {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_micros() as u64 + 1
}

fn number(variable: &str, otherwise: f64) -> f64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}
