//! Runs one client for a while, and measures it; medians and formats of the results.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::clients::Client;
use crate::plan::Keys;

/// Measured period, in nanoseconds of [`now`]: calls that end in it are counted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Window {
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

    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        self.cycles.add(&other.cycles)?;
        self.shares.extend(&other.shares);
        self.turns.extend(&other.turns);
        Ok(())
    }
}

/// Number of cycles after which a client yields to the other clients of its thread.
const YIELD_EVERY: u32 = 64;

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

/// Returns the median; of an even number of values, the mean of the middle two.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Converts a count or a time.
#[expect(clippy::cast_precision_loss, reason = "all values are far below 2^53")]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

/// Formats a number with thousands separators: `1,234,567`.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 && digit.is_ascii_digit() {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats nanoseconds with a unit and three digits.
pub(crate) fn duration(nanos: f64) -> String {
    let (number, unit) = match nanos {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let digits = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    format!("{number:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([1.0, 999.4, 1234.0, 1_234_567.0].map(grouped), ["1", "999", "1,234", "1,234,567"]);
        assert_eq!(
            [512.0, 1_234.0, 99_960_000.0, 2e9].map(duration),
            ["512 ns", "1.23 µs", "100.0 ms", "2.00 s"]
        );
    }
}
