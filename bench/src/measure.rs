//! One client at work for a while, and what is noted of it.

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

/// What counts: whatever ends between these two, in nanoseconds of [`now`].
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

/// Nanoseconds of a clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// What was noted of one client, or of several together.
#[derive(Debug)]
pub(crate) struct Notes {
    /// How long each cycle took, if every client has its own lock.
    pub(crate) cycles: Histogram<u64>,
    /// How many of them each client had, by its number.
    pub(crate) shares: BTreeMap<u32, u64>,
    /// Every turn, if all want the same one. Those before the window belong to it: they had their waiters.
    pub(crate) turns: Vec<Turn>,
}

/// One client's turn with the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) token: u64,
    pub(crate) client: u32,
    /// When it began to ask.
    pub(crate) asked: u64,
    /// When its asking had surely arrived: the call had come back to wait, or to say that it has the lock.
    pub(crate) queued: u64,
    pub(crate) got: u64,
    /// When it began to give it back.
    pub(crate) gave: u64,
}

impl Notes {
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

/// A client that does nothing but take and give back must let others on its thread have their time.
const YIELD_EVERY: u32 = 64;

/// Takes and gives back until the window is over.
pub(crate) async fn work(
    mut client: impl Client,
    number: u32,
    keys: Keys,
    hold: Duration,
    window: Window,
) -> Result<Notes> {
    let mut notes = Notes::new()?;
    let (mut asked, mut again) = (now(), 0);
    loop {
        if keys == Keys::One {
            let (token, queued) = noting_when_it_waits(client.acquire()).await;
            let (token, got) = (token?, now());
            if !hold.is_zero() {
                tokio::time::sleep(hold).await;
            }
            let gave = if hold.is_zero() { got } else { now() };
            notes.turns.push(Turn { token, client: number, asked, queued, got, gave });
        } else {
            client.acquire().await?;
        }
        client.release().await?;
        let ended = now();
        if ended >= window.until {
            notes.shares.insert(number, notes.cycles.len());
            return Ok(notes);
        }
        if keys == Keys::Own && ended >= window.from {
            notes.cycles.record(ended - asked)?;
        }
        asked = ended;
        again += 1;
        if again % YIELD_EVERY == 0 {
            tokio::task::yield_now().await;
            asked = now();
        }
    }
}

/// The output, and when the future first had to wait; if it never had, when it was done.
async fn noting_when_it_waits<T>(future: impl Future<Output = T>) -> (T, u64) {
    let mut future = pin!(future);
    let mut waits = None;
    let output = poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        waits.get_or_insert_with(now);
        polled
    });
    (output.await, waits.unwrap_or_else(now))
}
