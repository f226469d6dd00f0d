//! Runs one client for a while, and measures it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::clients::Client;
use crate::sandbox::Keys;

/// Measured period, in nanoseconds of [`now`]: calls that end in it are counted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Window {
    /// Returns a window of this length that begins after a warm-up.
    pub(crate) fn after_warm_up(length: Duration) -> Self {
        let warm_up = (length / 5).clamp(Duration::from_millis(50), Duration::from_millis(500));
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let from = now() + nanos(warm_up);
        Self { from, until: from + nanos(length) }
    }

    pub(crate) fn nanos(&self) -> u64 {
        self.until - self.from
    }
}

/// Returns nanoseconds of a clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Measurements of one client, or of several together.
#[derive(Debug)]
pub(crate) struct Measurements {
    /// Duration of each cycle, if every client has its own lock.
    pub(crate) cycles: Histogram<u64>,
    /// Number of cycles of each client, by its number.
    pub(crate) shares: BTreeMap<u32, u64>,
    /// Every turn, if all clients use the same lock, including turns before the window, because clients of
    /// the window waited during them.
    pub(crate) turns: Vec<Turn>,
}

/// One client's turn with the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) token: u64,
    pub(crate) client: u32,
    /// Start of the request.
    pub(crate) requested: u64,
    /// Time by which the request had certainly arrived: its future was pending for the first time, or was
    /// done.
    pub(crate) queued: u64,
    pub(crate) acquired: u64,
    /// Start of the release.
    pub(crate) released: u64,
}

impl Measurements {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { cycles: Histogram::new(3)?, shares: BTreeMap::new(), turns: Vec::new() })
    }

    /// Returns the measurements of all clients together.
    pub(crate) fn sum(clients: impl IntoIterator<Item = Result<Self>>) -> Result<Self> {
        let mut all = Self::new()?;
        for client in clients {
            let client = client?;
            all.cycles.add(&client.cycles)?;
            all.shares.extend(&client.shares);
            all.turns.extend(&client.turns);
        }
        Ok(all)
    }
}

/// Returns the durations and their counts, for another process.
pub(crate) fn steps(times: &Histogram<u64>) -> Vec<(u64, u64)> {
    times.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
}

/// Returns the histogram of durations and their counts.
pub(crate) fn from_steps(steps: Vec<(u64, u64)>) -> Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    for (value, count) in steps {
        times.record_n(value, count)?;
    }
    Ok(times)
}

/// Number of calls after which a client yields to the other clients of its thread.
pub(crate) const YIELD_EVERY: u32 = 64;

/// Acquires and releases until the window has ended.
pub(crate) async fn work(
    mut client: impl Client,
    number: u32,
    keys: Keys,
    hold: Duration,
    window: Window,
) -> Result<Measurements> {
    let mut measurements = Measurements::new()?;
    let (mut requested, mut again) = (now(), 0);
    loop {
        if keys == Keys::One {
            let (token, queued) = with_first_wait(client.acquire()).await;
            let (token, acquired) = (token?, now());
            if !hold.is_zero() {
                tokio::time::sleep(hold).await;
            }
            let released = if hold.is_zero() { acquired } else { now() };
            measurements.turns.push(Turn { token, client: number, requested, queued, acquired, released });
        } else {
            client.acquire().await?;
        }
        client.release().await?;
        let ended = now();
        if ended >= window.until {
            measurements.shares.insert(number, measurements.cycles.len());
            return Ok(measurements);
        }
        if keys == Keys::Own && ended >= window.from {
            measurements.cycles.record(ended - requested)?;
        }
        requested = ended;
        again += 1;
        if again % YIELD_EVERY == 0 {
            tokio::task::yield_now().await;
            requested = now();
        }
    }
}

/// Returns the output of a future, and the time at which it was first pending; if it never was, the time
/// at which it was done.
async fn with_first_wait<T>(future: impl Future<Output = T>) -> (T, u64) {
    let mut future = pin!(future);
    let mut waits = None;
    let output = poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        waits.get_or_insert_with(now);
        polled
    });
    (output.await, waits.unwrap_or_else(now))
}

#[expect(clippy::cast_precision_loss, reason = "all values are far below 2^53")]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}
